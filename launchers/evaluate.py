"""Scores a checkpoint: python launchers/evaluate.py --checkpoint RUN --data FILE.jsonl[.gz] --out DIR

Recipe, retrieval and sizes are the run's own (its config.json); --config.field=value changes one of them. A model that
belongs to no run takes them from --config configs/NAME.py.

Writes DIR/predictions.jsonl (a row a question) and DIR/metrics.json, and prints the latter as a table. Started again
after a kill, it goes on where it stopped.
"""

import pathlib
import sys

import commands
from absl import app, flags, logging
from ml_collections import config_flags
from tqdm import tqdm

from ragrl_jax import evaluate
from ragrl_jax.report import tables
from ragrl_jax.run import devices
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
  commands.ready(CONFIG.value, "out", OUT.value, training=False)
  evaluate.locate(CHECKPOINT.value)
  devices.found()
  with tqdm(unit="question", delay=0.1) as bar:  # not before the questions begin

    def progress(done: int, of: int) -> None:
      bar.total = of
      bar.update(done - bar.n)

    metrics = evaluate.evaluate(
      CONFIG.value, CHECKPOINT.value, DATA.value, OUT.value, sample=SAMPLE.value, progress=progress
    )
  print(tables.one(metrics))
  print(f"{OUT.value}/metrics.json")


def with_config(argv: list[str]) -> list[str]:
  """The arguments, with the checkpoint's run as --config where none is given."""
  given = {word.split("=", 1)[0].lstrip("-"): at for at, word in enumerate(argv) if word.startswith("-")}
  if "config" in given or "checkpoint" not in given:
    return argv
  words = [*argv[given["checkpoint"]].split("=", 1)[1:], *argv[given["checkpoint"] + 1 :]]
  file = pathlib.Path(__file__).with_name("of_run.py")
  return [argv[0], f"--config={file}:{words[0]}", *argv[1:]] if words else argv


if __name__ == "__main__":
  sys.argv = with_config(sys.argv)
  flags.mark_flags_as_required(["checkpoint", "data", "out", "config"])
  commands.run(main)
