"""Makes transcripts for SFT by asking models about many examples at a time."""

import asyncio
import collections
import logging
from collections.abc import Awaitable, Callable, Sequence

from ragrl_jax.structs import Example, ToolFailed

Turns = list[tuple[str, str]]
NO_ANSWER = "no answer"


async def make(
  examples: Sequence[Example],
  one: Callable[[Example], Awaitable[tuple[str, Turns | None]]],
  *,
  concurrency: int = 16,
  progress: Callable[[collections.Counter], None] = lambda fates: None,
) -> tuple[list[tuple[Example, Turns]], collections.Counter]:
  """Makes a transcript of each example, if possible.

  Examples without an answer are tried once more when all others are done. A warning says so, with the first reason.

  Args:
    one: example → (fate, turns or None). If it raises ToolFailed twice, the fate is NO_ANSWER.
    concurrency: examples at the same time.
    progress: called with the fates so far, after each example.

  Returns:
    ([(example, turns)] of the examples with turns, in order; the number of examples by fate).
  """
  fates, gate, made, reasons = collections.Counter(), asyncio.Semaphore(concurrency), {}, []

  async def run(number: int) -> None:
    async with gate:
      try:
        fate, made[number] = await one(examples[number])
      except ToolFailed as failure:
        fate = NO_ANSWER
        reasons.append(failure)
    fates[fate] += 1
    progress(fates)

  await asyncio.gather(*map(run, range(len(examples))))
  if reasons:
    logging.warning(
      "%d of %d questions got no answer and are asked once more; the first: %s", len(reasons), len(examples), reasons[0]
    )
    del fates[NO_ANSWER]
    await asyncio.gather(*(run(number) for number in range(len(examples)) if number not in made))
  return [(examples[number], made[number]) for number in sorted(made) if made[number] is not None], fates
