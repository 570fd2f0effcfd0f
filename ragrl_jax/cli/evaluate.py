"""Scores a checkpoint: ragrl evaluate --checkpoint RUN --data FILE.jsonl[.gz] --out DIR

Recipe, retrieval and sizes come from the run's config.json; --config.field=value changes a setting. A model without a
run needs --config NAME. Without --checkpoint, the model --config.endpoint.model=NAME behind a server answers
(docs/howto/evaluate.md).
--best evaluation/em evaluates the checkpoint that was best on the run's held-out questions, not the last one.

Writes DIR/predictions.jsonl (one row per question) and DIR/metrics.json, and prints the metrics as a table. With
--seeds=3 each question is answered three times, and DIR/seed_0, DIR/seed_1 and DIR/seed_2 hold one evaluation each.
After a kill, the same command continues where it stopped.
"""

import pathlib
import shlex

from absl import app, flags, logging

from ragrl_jax.cli import commands
from ragrl_jax.data import readers
from ragrl_jax.evaluation import answer_files
from ragrl_jax.jobs import checkpoints, evaluate
from ragrl_jax.report import metric_tables
from ragrl_jax.run import checks
from ragrl_jax.store import compile_cache

FROM_CHECKPOINT = "run"
CONFIG = commands.config_flag(required=False)
CHECKPOINT = flags.DEFINE_string("checkpoint", None, "RUN, RUN/checkpoints/STEP, model's folder or Hugging Face name.")
BEST = flags.DEFINE_string(
  "best", "", "Evaluate the checkpoint with the highest value of this metric, such as evaluation/em, if it was kept."
)
DATA = commands.data_flag()
OUT = flags.DEFINE_string("out", None, "Folder of predictions.jsonl and metrics.json.", required=True)
SAMPLE = flags.DEFINE_bool("sample", False, "Sample with the settings of config.rollout instead of greedy decoding.")
SEEDS = flags.DEFINE_integer("seeds", 1, "Number of answers to each question; several are sampled.", lower_bound=1)
flags.register_validator(
  "config",
  lambda given: given is not None,
  "give a --checkpoint, or a --config for a model without a run or behind a server (--help shows examples).",
)


def main():
  compile_cache.keep()
  settings = commands.ready(CONFIG.value, "out", OUT.value, training=False)
  answer_files.folders(pathlib.Path(OUT.value), SEEDS.value)  # before a model is looked for
  if BEST.value and not CHECKPOINT.value:
    raise app.UsageError("--best chooses among a run's checkpoints: give the run with --checkpoint.")
  checkpoint = checkpoints.best(CHECKPOINT.value, BEST.value) if BEST.value else CHECKPOINT.value
  of_sets = lambda data: {part.partition("~")[0].strip() for part in readers.parts(data)}
  if BEST.value and of_sets(DATA.value) & of_sets(checkpoints.config_of(CHECKPOINT.value).data.evaluate):
    logging.warning("--best=%s was measured on this set: its score is that of the set it was chosen on.", BEST.value)
  if checkpoint is not None:
    checkpoints.locate(checkpoint)
    checks.devices()
  with commands.answers_bar() as progress:
    options = dict(sample=SAMPLE.value, seeds=SEEDS.value, chosen_by=BEST.value, progress=progress)
    metrics = evaluate.evaluate(settings, checkpoint, DATA.value, OUT.value, **options)
  print(metric_tables.one(metrics))
  if settings.endpoint.model:
    print(asked(metrics))
  folder = answer_files.parts(pathlib.Path(OUT.value))[0]  # of several seeds, a page is one's
  print(f"Each question on a page: ragrl report --workdir {shlex.quote(str(folder))}")
  print(f"{OUT.value}/metrics.json")


def asked(metrics) -> str:
  """Total calls, tokens and cost of all questions but those that failed, as text."""
  measure, n = metrics.get("measure", {}), metrics["n"] * metrics.get("seeds", 1)
  total = lambda name: None if measure.get(name) is None else measure[name] * n
  names = dict(calls="calls", tokens_in="tokens in", tokens_out="tokens out")
  totals = [f"{round(value):,} {words}" for name, words in names.items() if (value := total(name)) is not None]
  cost = total("cost")
  return ", ".join(totals + ([f"cost {cost:.4f}"] if cost else [])) or "The server reports no token counts."
