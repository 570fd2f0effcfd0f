"""CARE's warm start from two models behind OpenAI-compatible endpoints:

  python launchers/make_sft_data.py --data QUESTIONS --out SFT.jsonl.gz --answers DIR \
    --reasoner_url URL --reasoner_model NAME --inserter_url URL --inserter_model NAME

The questions bring passages and gold sentences (HotpotQA's files do). What the models answer is kept in DIR: started
again, it asks only for what is missing. API keys are read from the environment, REASONER_KEY and INSERTER_KEY.
"""

import os

import asking
import commands
from absl import app, flags

from ragrl_jax.chat import endpoint as endpoint_lib
from ragrl_jax.data import readers, writers
from ragrl_jax.recipes.care import generate

DATA = flags.DEFINE_string("data", None, "Questions: FILE.jsonl[.gz], a glob, or hf:NAME/SUBSET/SPLIT.")
OUT = flags.DEFINE_string("out", None, "FILE.jsonl[.gz] of the transcripts, as launchers/sft.py takes them.")
ANSWERS = flags.DEFINE_string("answers", None, "Folder in which the models' answers are kept.")
MAX_EXAMPLES = flags.DEFINE_integer("max_examples", 0, "Stop after so many questions; 0 is all.", lower_bound=0)
CONCURRENCY = flags.DEFINE_integer("concurrency", 16, "Questions under way at a time.", lower_bound=1)
TIMEOUT_S = flags.DEFINE_float("timeout_s", 600.0, "Of one call.", lower_bound=0.01)
DEADLINE_S = flags.DEFINE_float("deadline_s", 1800.0, "Of all calls for one answer.", lower_bound=0.01)
RETRIES = flags.DEFINE_integer("retries", 5, "Further calls after a failed one.", lower_bound=0)
TEMPERATURE = flags.DEFINE_float("temperature", 0.6, "Of both models.", lower_bound=0.0)
MAX_TOKENS = flags.DEFINE_integer("max_tokens", 4096, "Of one answer.", lower_bound=1)
for role, what in (("reasoner", "reads the context and reasons"), ("inserter", "works the evidence in")):
  flags.DEFINE_string(f"{role}_url", None, f"Endpoint of the model that {what}, such as http://localhost:8000/v1.")
  flags.DEFINE_string(f"{role}_model", None, "Its name there.")


def endpoint(role: str) -> endpoint_lib.Endpoint:
  return endpoint_lib.Endpoint(
    flags.FLAGS[f"{role}_url"].value,
    flags.FLAGS[f"{role}_model"].value,
    folder=ANSWERS.value,
    key=os.environ.get(f"{role.upper()}_KEY", ""),
    timeout_s=TIMEOUT_S.value,
    deadline_s=DEADLINE_S.value,
    retries=RETRIES.value,
    sampling=dict(temperature=TEMPERATURE.value, max_tokens=MAX_TOKENS.value),
  )


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f"unknown argument {argv[1]!r}")
  examples = list(readers.read_examples(DATA.value, max_examples=MAX_EXAMPLES.value))
  kept, fates = asking.ask(
    generate.transcripts, examples, endpoint("reasoner"), endpoint("inserter"), concurrency=CONCURRENCY.value
  )
  writers.write_examples(OUT.value, [example for example, _ in kept], turns=[turns for _, turns in kept])
  asking.report(fates, OUT.value)


if __name__ == "__main__":
  flags.mark_flags_as_required(
    ["data", "out", "answers", "reasoner_url", "reasoner_model", "inserter_url", "inserter_model"]
  )
  commands.run(main)
