"""What the launchers share that have chat models write transcripts."""

import asyncio

from tqdm import tqdm


def ask(make, examples, *models, concurrency: int):
  """(kept, fates) of `make(examples, *models, concurrency=…, progress=…)`, with a bar; then the models are closed."""
  return asyncio.run(_ask(make, examples, models, concurrency))


async def _ask(make, examples, models, concurrency):
  try:
    with tqdm(total=len(examples), unit="question") as bar:
      return await make(
        examples, *models, concurrency=concurrency, progress=lambda fates: bar.update(fates.total() - bar.n))
  finally:
    for model in models:
      await model.close()


def report(fates) -> None:
  """Prints what became of the questions, the most frequent first."""
  for fate, count in fates.most_common():
    print(f"{count:7d}  {fate}")
