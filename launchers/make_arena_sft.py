"""The data of ARENA's SFT baselines, as launchers/sft.py takes it:

  python launchers/make_arena_sft.py --data QUESTIONS --out SFT.jsonl.gz
  python launchers/make_arena_sft.py --data QUESTIONS --out SFT.jsonl.gz --answers DIR --url URL --model NAME

The first writes answers alone, for --config configs/arena.py:sft,direct. The second has the backbone, behind an
OpenAI-compatible endpoint, write the reasoning, for --config configs/arena.py:sft; what it says is kept in DIR: started
again, it is asked only for what is missing. The API key is read from the environment, BACKBONE_KEY.
"""

import os

import asking
import commands
from absl import app, flags

from ragrl_jax.chat import endpoint
from ragrl_jax.data import readers, writers
from ragrl_jax.recipes.arena import sft_data

DATA = flags.DEFINE_string("data", None, "Questions: FILE.jsonl[.gz], a glob, or hf:NAME/SUBSET/SPLIT.")
OUT = flags.DEFINE_string("out", None, "FILE.jsonl[.gz] of the transcripts.")
MAX_EXAMPLES = flags.DEFINE_integer("max_examples", 0, "Stop after so many questions; 0 is all.", lower_bound=0)
URL = flags.DEFINE_string("url", "", "Endpoint of the backbone, such as http://localhost:8000/v1.")
MODEL = flags.DEFINE_string("model", "", "Its name there.")
ANSWERS = flags.DEFINE_string("answers", "", "Folder in which its answers are kept.")
CONCURRENCY = flags.DEFINE_integer("concurrency", 16, "Questions under way at a time.", lower_bound=1)
TEMPERATURE = flags.DEFINE_float("temperature", 0.9, "Of the backbone.", lower_bound=0.0)
MAX_TOKENS = flags.DEFINE_integer("max_tokens", 1024, "Of one answer.", lower_bound=1)


def reason(examples):
  backbone = endpoint.Endpoint(
    URL.value,
    MODEL.value,
    folder=ANSWERS.value,
    key=os.environ.get("BACKBONE_KEY", ""),
    sampling=dict(temperature=TEMPERATURE.value, max_tokens=MAX_TOKENS.value),
  )
  return asking.ask(sft_data.reasoned, examples, backbone, concurrency=CONCURRENCY.value)


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f"unknown argument {argv[1]!r}")
  if len({bool(flag.value) for flag in (URL, MODEL, ANSWERS)}) > 1:
    raise app.UsageError("--url, --model and --answers belong together: give all of them, or none for answers alone.")
  examples = list(readers.read_examples(DATA.value, max_examples=MAX_EXAMPLES.value))
  if not URL.value:
    writers.write_examples(OUT.value, examples, turns=sft_data.direct(examples))
    print(OUT.value)
  else:
    kept, fates = reason(examples)
    writers.write_examples(OUT.value, [example for example, _ in kept], turns=[turns for _, turns in kept])
    asking.report(fates, OUT.value)


if __name__ == "__main__":
  flags.mark_flags_as_required(["data", "out"])
  commands.run(main)
