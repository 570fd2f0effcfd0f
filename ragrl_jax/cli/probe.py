"""Asks whether a policy really searches: ragrl probe RUN --data FILE.jsonl[.gz] --out DIR

The same questions are answered with the run's retriever (twice: the noise floor), with an empty one, with random
passages of the corpus, with another question's results, and with the question's supporting passages first. Prints the
outcomes with paired intervals, the searches by hops, the corpus's coverage and a verdict in words with the rule that
gave it (docs/howto/evaluate.md). RUN is what --checkpoint names elsewhere; --config.field=value changes a setting.

Writes DIR/probe.json, of which ragrl report makes a page, and DIR/own, DIR/empty and so on, which are evaluations.
After a kill, the same command continues where it stopped.
"""

import shlex

from absl import flags

from ragrl_jax.cli import commands
from ragrl_jax.evaluation import search_probe
from ragrl_jax.jobs import checkpoints, probe
from ragrl_jax.run import checks
from ragrl_jax.store import compile_cache, folders

FROM_CHECKPOINT = "run"
FIRST_IS_CHECKPOINT = True
CONFIG = commands.config_flag(required=False)
CHECKPOINT = flags.DEFINE_string("checkpoint", None, "RUN, RUN/checkpoints/STEP, model's folder or Hugging Face name.")
DATA = commands.data_flag()
OUT = flags.DEFINE_string("out", None, "Folder of probe.json and of the evaluations.", required=True)
SAMPLE = flags.DEFINE_bool("sample", False, "Sample with the settings of config.rollout instead of greedy decoding.")
flags.register_validator(
  "config",
  lambda given: given is not None,
  "name a RUN, or a --config for a model without a run or behind a server (--help shows an example).",
)


def main():
  compile_cache.keep()
  settings = commands.ready(CONFIG.value, "out", OUT.value, training=False)
  folders.refuse_others(OUT.value)  # before a model is looked for
  if CHECKPOINT.value is not None:
    checkpoints.locate(CHECKPOINT.value)
    checks.devices()
  with commands.answers_bar() as progress:
    numbers = probe.probe(settings, CHECKPOINT.value, DATA.value, OUT.value, sample=SAMPLE.value, progress=progress)
  print(numbers["text"])
  print(f"On a page: ragrl report --workdir {shlex.quote(OUT.value)}")
  print(f"{OUT.value}/{search_probe.RESULT}")
