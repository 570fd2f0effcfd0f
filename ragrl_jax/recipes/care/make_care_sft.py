r"""Makes CARE's warm start with two models behind OpenAI-compatible endpoints:

  ragrl make-care-sft --data QUESTIONS --out SFT.jsonl.gz --answers CACHE \
    --reasoner_url URL --reasoner_model NAME --inserter_url URL --inserter_model NAME

The questions must have passages and gold sentences, as in HotpotQA. The answers are stored in the file CACHE: a second
call asks only for missing ones. The API keys are read from the environment variables REASONER_KEY and INSERTER_KEY.
"""

import functools

from absl import flags

from ragrl_jax.cli import commands, generation
from ragrl_jax.data import readers, writers
from ragrl_jax.recipes.care import generate

DATA = commands.data_flag()
OUT = flags.DEFINE_string("out", None, "FILE.jsonl[.gz] of the transcripts.", required=True)
ANSWERS = flags.DEFINE_string("answers", None, "File for the models' answers.", required=True)
TEMPERATURE = flags.DEFINE_float("temperature", 0.6, "Sampling temperature of both models.", lower_bound=0.0)
MAX_TOKENS = flags.DEFINE_integer("max_tokens", 4096, "Most tokens per answer.", lower_bound=1)
REASONER_WORDING = flags.DEFINE_string(
  "reasoner_wording", "paper", "file:PATH with the prompt of the reasoning model, with {context} and {question}."
)
INSERTER_WORDING = flags.DEFINE_string(
  "inserter_wording",
  "paper",
  "file:PATH with the prompt of the inserting model, with {question}, {reasoning} and {evidence}.",
)
REASONER_URL = flags.DEFINE_string(
  "reasoner_url", None, "Endpoint of the reasoning model, such as http://localhost:8000/v1.", required=True
)
REASONER_MODEL = flags.DEFINE_string("reasoner_model", None, "Name of that model at its endpoint.", required=True)
INSERTER_URL = flags.DEFINE_string(
  "inserter_url", None, "Endpoint of the model that inserts the evidence.", required=True
)
INSERTER_MODEL = flags.DEFINE_string("inserter_model", None, "Name of that model at its endpoint.", required=True)


def main():
  words = generate.wordings(REASONER_WORDING.value, INSERTER_WORDING.value)
  writers.refuse_inputs([OUT.value], readers.named(DATA.value))
  examples = list(readers.read_examples(DATA.value))
  sampling = dict(temperature=TEMPERATURE.value, max_tokens=MAX_TOKENS.value)
  model = functools.partial(generation.model, answers=ANSWERS.value, **sampling)
  reasoner = model(REASONER_URL.value, REASONER_MODEL.value, "REASONER_KEY")
  inserter = model(INSERTER_URL.value, INSERTER_MODEL.value, "INSERTER_KEY")
  make = functools.partial(generate.transcripts, words=words)
  kept, counts = generation.ask(make, examples, reasoner, inserter)
  writers.write_examples(OUT.value, [example for example, _ in kept], turns=[turns for _, turns in kept])
  generation.report(counts, OUT.value)
