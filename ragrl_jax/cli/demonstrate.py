r"""Writes demonstrations for ragrl sft, without a model, from questions with marked supporting passages:

  ragrl demonstrate --config arena --data QUESTIONS --out SFT.jsonl.gz --examples 500
  ragrl demonstrate --config search_r1 --data QUESTIONS --out SFT.jsonl.gz \
    --config.retrieval.index=INDEX --config.model.path=Qwen/Qwen2.5-7B
  ragrl sft --config search_r1:sft --config.data.train=SFT.jsonl.gz --workdir out/sft \
    --config.model.path=Qwen/Qwen2.5-7B

The recipe's script plays the model: it searches in the index of config.retrieval, quotes the sentence with the answer,
and answers. The recipe is arena, care, lear, search_r1, veritas or when_to_search. A question that cannot be shown this
way is left out and counted. The tokenizer of the model, if it is named, cuts passages as training does; without one,
four bytes count as a token. config.seed draws the questions.
"""

import asyncio

from absl import flags
from tqdm import tqdm

from ragrl_jax import settings
from ragrl_jax.cli import commands, generation
from ragrl_jax.data import readers, writers
from ragrl_jax.evaluation import demonstrations

CONFIG = commands.config_flag()
DATA = commands.data_flag()
OUT = flags.DEFINE_string("out", None, "FILE.jsonl[.gz] of the transcripts.", required=True)
EXAMPLES = flags.DEFINE_integer("examples", 0, "Most transcripts to write; 0 writes all.", lower_bound=0)


def main():
  config = settings.of(CONFIG.value)
  writers.refuse_inputs([OUT.value], readers.named(DATA.value))
  readers.check(DATA.value, "--data")  # before an index is loaded
  maker = demonstrations.Maker(config)
  examples = list(readers.read_examples(DATA.value, max_examples=config.data.max_examples))
  with tqdm(total=EXAMPLES.value or len(examples), unit="transcript") as bar:
    kept, counts = asyncio.run(maker.many(examples, EXAMPLES.value, lambda done: bar.update(done - bar.n)))
  if not kept:
    why = "; ".join(f"{count}: {status}" for status, count in counts.most_common())
    raise ValueError(
      f"--data={DATA.value}: none of {len(examples)} questions can be demonstrated ({why}): rows must have `answers`, "
      "`passages`, and in `supporting` the positions of those that state the answer."
    )
  writers.write_examples(OUT.value, [example for example, _ in kept], turns=[turns for _, turns in kept])
  generation.report(counts, OUT.value)
