"""Makes the data of ARENA's SFT baselines for ragrl sft:

  ragrl make-arena-sft --data QUESTIONS --out SFT.jsonl.gz
  ragrl make-arena-sft --data QUESTIONS --out SFT.jsonl.gz --answers CACHE --url URL --model NAME

The first writes only answers, for --config arena:sft,direct. The second also asks the backbone, behind an
OpenAI-compatible endpoint, for the reasoning, for --config arena:sft. Its answers are cached in CACHE, so a
second call asks only for missing ones. The API key is read from the environment variable BACKBONE_KEY.
"""

import functools

from absl import app, flags

from ragrl_jax.cli import commands, generation
from ragrl_jax.data import readers, writers
from ragrl_jax.recipes import scripts
from ragrl_jax.recipes.arena import sft_data

DATA = commands.data_flag()
OUT = flags.DEFINE_string("out", None, "FILE.jsonl[.gz] of the transcripts.", required=True)
URL = flags.DEFINE_string("url", "", "Endpoint of the backbone, such as http://localhost:8000/v1.")
MODEL = flags.DEFINE_string("model", "", "Name of the backbone at that endpoint.")
ANSWERS = flags.DEFINE_string("answers", "", "File for the backbone's answers.")
WORDING = flags.DEFINE_string(
  "wording", "paper", "file:PATH with its prompt: {question}, {references}, {relevance_ids} and {answer}."
)
TEMPERATURE = flags.DEFINE_float("temperature", 0.9, "Sampling temperature of the backbone.", lower_bound=0.0)
MAX_TOKENS = flags.DEFINE_integer("max_tokens", 1024, "Most tokens per answer.", lower_bound=1)


def main():
  if len({bool(flag.value) for flag in (URL, MODEL, ANSWERS)}) > 1:
    raise app.UsageError(
      "--url, --model and --answers belong together: give all of them, or none to write only answers."
    )
  make = functools.partial(sft_data.reasoned, words=sft_data.asked(WORDING.value))
  writers.refuse_inputs([OUT.value], readers.named(DATA.value))
  examples = list(readers.read_examples(DATA.value))
  if not URL.value:
    writers.write_examples(OUT.value, examples, turns=scripts.answer_directly(examples))
    print(OUT.value)
    return
  sampling = dict(temperature=TEMPERATURE.value, max_tokens=MAX_TOKENS.value)
  backbone = generation.model(URL.value, MODEL.value, "BACKBONE_KEY", ANSWERS.value, **sampling)
  kept, counts = generation.ask(make, examples, backbone)
  writers.write_examples(OUT.value, [example for example, _ in kept], turns=[turns for _, turns in kept])
  generation.report(counts, OUT.value)
