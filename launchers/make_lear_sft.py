"""The data of LEAR's study of vanilla, rational and rationale evidence, as launchers/sft.py takes it:

  python launchers/make_lear_sft.py --data QUESTIONS --out DIR --answers KEPT --url URL --model NAME
  python launchers/make_lear_sft.py --data QUESTIONS --out DIR

The first has a teacher, behind an OpenAI-compatible endpoint, reason, extract and answer, and writes what it got right
three times, DIR/vanilla.jsonl.gz, DIR/rational.jsonl.gz and DIR/rationale.jsonl.gz, for --config
configs/lear.py:sft,vanilla, :sft and :sft,rationale. What it says is kept in KEPT: started again, it is asked only for
what is missing. The API key is read from the environment, TEACHER_KEY. The second writes the questions to test on,
DIR/answerable.jsonl.gz: those with a passage that holds a right answer. In both, --index finds the passages of
questions that bring none.
"""

import os
import pathlib

import asking
import commands
import index_flags
from absl import app, flags

from ragrl_jax.chat import endpoint
from ragrl_jax.data import readers, writers
from ragrl_jax.recipes.lear import sft_data

DATA = flags.DEFINE_string("data", None, "Questions: FILE.jsonl[.gz], a glob, or hf:NAME/SUBSET/SPLIT.")
OUT = flags.DEFINE_string("out", None, "Folder of the files.")
MAX_EXAMPLES = flags.DEFINE_integer("max_examples", 0, "Stop after so many questions; 0 is all.", lower_bound=0)
URL = flags.DEFINE_string("url", "", "Endpoint of the teacher, such as http://localhost:8000/v1.")
MODEL = flags.DEFINE_string("model", "", "Its name there.")
ANSWERS = flags.DEFINE_string("answers", "", "Folder in which its answers are kept.")
CONCURRENCY = flags.DEFINE_integer("concurrency", 16, "Questions under way at a time.", lower_bound=1)
MAX_TOKENS = flags.DEFINE_integer("max_tokens", 8192, "Of one answer, its thoughts included.", lower_bound=1)


def teach(examples):
  teacher = endpoint.Endpoint(
    URL.value,
    MODEL.value,
    folder=ANSWERS.value,
    key=os.environ.get("TEACHER_KEY", ""),
    sampling=dict(max_tokens=MAX_TOKENS.value),
  )
  return asking.ask(sft_data.taught, examples, teacher, concurrency=CONCURRENCY.value)


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f"unknown argument {argv[1]!r}")
  if len({bool(flag.value) for flag in (URL, MODEL, ANSWERS)}) > 1:
    raise app.UsageError("--url, --model and --answers belong together: give all of them, or none for test questions.")
  examples = index_flags.with_passages(list(readers.read_examples(DATA.value, max_examples=MAX_EXAMPLES.value)))
  out = pathlib.Path(OUT.value)
  if not URL.value:
    kept = sft_data.answerable(examples)
    writers.write_examples(out / "answerable.jsonl.gz", kept)
    print(f"{len(kept)} of {len(examples)}: {out / 'answerable.jsonl.gz'}")
    return
  kept, fates = teach(examples)
  for reply in sft_data.ARMS:
    turns = [sft_data.arm(turns, reply) for _, turns in kept]
    writers.write_examples(out / f"{reply}.jsonl.gz", [example for example, _ in kept], turns=turns)
  asking.report(fates, out)


if __name__ == "__main__":
  flags.mark_flags_as_required(["data", "out"])
  commands.run(main)
