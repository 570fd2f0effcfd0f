"""Scores a checkpoint: python launchers/evaluate.py --config CONFIG --checkpoint DIR --data FILE.jsonl[.gz] --out DIR

Writes DIR/predictions.jsonl (a row a question) and DIR/metrics.json, and prints the latter as a table. Started again
after a kill, it goes on where it stopped.
"""

from absl import app, flags, logging
from ml_collections import config_flags
from tqdm import tqdm

from ragrl_jax import evaluate
from ragrl_jax.evaluation import tables
from ragrl_jax.store import compiled

CONFIG = config_flags.DEFINE_config_file("config", lock_config=True)
CHECKPOINT = flags.DEFINE_string("checkpoint", None, "Hugging Face folder, run's folder, or RUN/checkpoints/STEP.")
DATA = flags.DEFINE_string("data", None, "Questions: FILE.jsonl[.gz], a glob, or hf:NAME/SUBSET/SPLIT.")
OUT = flags.DEFINE_string("out", None, "Folder of predictions.jsonl and metrics.json.")
SAMPLE = flags.DEFINE_bool("sample", False, "Draw as config.rollout says instead of taking the likeliest token.")


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f"unknown argument {argv[1]!r}: settings are given as --config.field=value")
  logging.set_verbosity(logging.WARNING)
  compiled.keep()
  with tqdm(unit="question") as bar:
    def progress(done: int, of: int) -> None:
      bar.total = of
      bar.update(done - bar.n)

    metrics = evaluate.evaluate(
      CONFIG.value, CHECKPOINT.value, DATA.value, OUT.value, sample=SAMPLE.value, progress=progress)
  print(tables.one(metrics))
  print(f"{OUT.value}/metrics.json")


if __name__ == "__main__":
  flags.mark_flags_as_required(["config", "checkpoint", "data", "out"])
  app.run(main)
