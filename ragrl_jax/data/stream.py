"""Which examples are drawn when: a pure function of (seed, cursor), so that a resumed run draws the same."""

import functools
import random


class Stream:
  """An endless stream over `size` examples, shuffled anew each epoch.

  Its only state is a cursor that the caller keeps (and saves): how many prompts were drawn so far. Every host draws
  the same; which host plays what is decided by whoever plays.

  Args:
    size: number of examples, at least 1.
    seed: of the order.
  """

  def __init__(self, size: int, *, seed: int):
    if size < 1:
      raise ValueError(f"a stream over {size} examples: there must be at least one (config.data.train).")
    self.size = size
    self.seed = seed
    self._order = functools.lru_cache(maxsize=2)(self._shuffled)

  def draw(self, cursor: int, count: int) -> list[tuple[int, int]]:
    """The next `count` draws after `cursor`: (running number of the prompt, position of its example)."""
    if cursor < 0 or count < 0:
      raise ValueError(f"cursor {cursor} and count {count} must not be negative.")
    return [(index, self.at(index)) for index in range(cursor, cursor + count)]

  def at(self, index: int) -> int:
    """Position of the example that draw number `index` asks."""
    epoch, place = divmod(index, self.size)
    return self._order(epoch)[place]

  def _shuffled(self, epoch: int) -> list[int]:
    order = list(range(self.size))
    random.Random(f"{self.seed}/{epoch}").shuffle(order)  # the same on every platform and Python
    return order
