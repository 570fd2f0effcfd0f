"""Makes the data of LEAR's study of vanilla, rational and rationale evidence for ragrl sft:

  ragrl make-lear-sft --data QUESTIONS --out DIR --answers CACHE --url URL --model NAME
  ragrl make-lear-sft --data QUESTIONS --out DIR
  ragrl make-lear-sft --data QUESTIONS --out DIR --oracle string_inclusion

The first asks a teacher, behind an OpenAI-compatible endpoint, to reason, extract and answer. It writes reason and
evidence of correct answers in two forms, DIR/vanilla.jsonl.gz (only the evidence) and DIR/rational.jsonl.gz, for
--config lear:sft,study_vanilla and :sft,study_rational. The teacher's answers are cached in CACHE, so a
second call asks only for missing ones. The API key is read from the environment variable TEACHER_KEY. The second writes
the test questions, DIR/answerable.jsonl.gz: those with a right answer in a passage. The third writes
DIR/filter.jsonl.gz, FilCo's transcripts for configs/lear.py:sft,filter: the sentence that the oracle selects from the
passages (string_inclusion or lexical_overlap). In all three, --index retrieves passages for questions without passages.
"""

import functools
import pathlib

from absl import app, flags

from ragrl_jax.cli import commands, generation, index_flags
from ragrl_jax.core.metrics import qa
from ragrl_jax.data import readers, writers
from ragrl_jax.recipes.lear import prompt, sft_data

DATA = commands.data_flag()
OUT = flags.DEFINE_string("out", None, "Folder of the files.", required=True)
URL = flags.DEFINE_string("url", "", "Endpoint of the teacher, such as http://localhost:8000/v1.")
MODEL = flags.DEFINE_string("model", "", "Name of the teacher at that endpoint.")
ANSWERS = flags.DEFINE_string("answers", "", "File for the teacher's answers.")
WORDING = flags.DEFINE_string("wording", "paper", "file:PATH with the teacher's prompt: {question} and {passages}.")
ORACLE = flags.DEFINE_enum("oracle", None, sft_data.ORACLES, "How FilCo's oracle selects a sentence.")
RECALL = flags.DEFINE_enum(
  "recall", "words", list(qa.CONTAINS), "How test questions hold an answer: as whole words, or as letters inside words."
)
MAX_TOKENS = flags.DEFINE_integer("max_tokens", 8192, "Most tokens per answer, including its reasoning.", lower_bound=1)


def main():
  if URL.value and ORACLE.value:
    raise app.UsageError("--oracle needs no teacher: give it without --url, --model and --answers.")
  if len({bool(flag.value) for flag in (URL, MODEL, ANSWERS)}) > 1:
    raise app.UsageError("--url, --model and --answers belong together: give all of them, or none for test questions.")
  if not URL.value and (unused := commands.given(WORDING, MAX_TOKENS, generation.MAX_MISSING)):
    raise app.UsageError(f"{unused} without --url: only a teacher has these. Name one, or leave them out.")
  if (URL.value or ORACLE.value) and RECALL.present:
    raise app.UsageError("--recall is for test questions: give it without a teacher or --oracle.")
  prompt.Prompt(WORDING.value)  # refuses an invalid wording before the questions are read
  out = pathlib.Path(OUT.value)
  names = ["filter"] if ORACLE.value else sft_data.ARMS if URL.value else ["answerable"]
  files = [out / f"{name}.jsonl.gz" for name in names]
  writers.refuse_inputs(files, readers.named(DATA.value))
  teacher = None
  if URL.value:  # refuses an invalid one before passages are searched
    teacher = generation.model(URL.value, MODEL.value, "TEACHER_KEY", ANSWERS.value, max_tokens=MAX_TOKENS.value)
  examples = index_flags.with_passages(list(readers.read_examples(DATA.value)))
  if ORACLE.value:
    made = sft_data.demonstrate_filter(examples, ORACLE.value)
    writers.write_examples(files[0], [example for example, _ in made], turns=[turns for _, turns in made])
    print(f"{len(made)} of {len(examples)}: {files[0]}")
    return
  if teacher is None:
    answerable = sft_data.answerable(examples, RECALL.value)
    writers.write_examples(files[0], answerable)
    print(f"{len(answerable)} of {len(examples)}: {files[0]}")
    return
  make = functools.partial(sft_data.taught, instructions=WORDING.value)
  kept, counts = generation.ask(make, examples, teacher)
  for file, reply in zip(files, sft_data.ARMS.values(), strict=True):
    turns = [sft_data.arm(turns, reply) for _, turns in kept]
    writers.write_examples(file, [example for example, _ in kept], turns=turns)
  generation.report(counts, out)
