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
  make_one: Callable[[Example], Awaitable[tuple[str, Turns | None]]],
  *,
  concurrency: int = 16,
  progress: Callable[[collections.Counter], None] = lambda counts: None,
) -> tuple[list[tuple[Example, Turns]], collections.Counter]:
  """Makes a transcript of each example, if possible.

  Examples without an answer are tried once more when all others are done. A warning says so, with the first reason.

  Args:
    make_one: example → (status, turns or None). If it raises ToolFailed twice, the status is NO_ANSWER.
    progress: called with the counts so far, after each example.

  Returns:
    ([(example, turns)] of the examples with turns, in order; the number of examples by status).
  """
  counts, gate, turns, reasons = collections.Counter(), asyncio.Semaphore(concurrency), {}, []

  async def run(number: int) -> None:
    async with gate:
      try:
        status, turns[number] = await make_one(examples[number])
      except ToolFailed as failure:
        status = NO_ANSWER
        reasons.append(failure)
    counts[status] += 1
    progress(counts)

  await asyncio.gather(*map(run, range(len(examples))))
  if reasons:
    logging.warning(
      "%d of %d questions got no answer and are asked once more; the first: %s", len(reasons), len(examples), reasons[0]
    )
    del counts[NO_ANSWER]
    await asyncio.gather(*(run(number) for number in range(len(examples)) if number not in turns))
  return [(examples[number], turns[number]) for number in sorted(turns) if turns[number] is not None], counts
