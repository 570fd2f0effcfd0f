"""The order in which examples are drawn, a pure function of (seed, cursor), so that a resumed run draws the same; and
random parts of a set."""

import functools
import math
import random
from collections.abc import Callable, Sequence

from ragrl_jax.data import digests
from ragrl_jax.structs import Example


class Stream:
  """An endless stream over `size` examples, shuffled again in each epoch.

  The only state is the cursor, the number of prompts drawn so far. The caller keeps and saves it. Every host draws the
  same prompts; the caller divides them among hosts.

  Args:
    size: at least 1.
  """

  def __init__(self, size: int, *, seed: int):
    self.size = size
    self.seed = seed
    self._order = functools.lru_cache(maxsize=2)(self._shuffled)

  def draw(self, cursor: int, count: int) -> list[tuple[int, int]]:
    """The next `count` draws after `cursor`, each (number of the draw, position of its example)."""
    if cursor < 0 or count < 0:
      raise ValueError(f"cursor {cursor} and count {count} must not be negative.")
    return [(index, self.at(index)) for index in range(cursor, cursor + count)]

  def at(self, index: int) -> int:
    """The position of the example in draw number `index`."""
    epoch, place = divmod(index, self.size)
    return self._order(epoch)[place]

  def _shuffled(self, epoch: int) -> list[int]:
    order = list(range(self.size))
    random.Random(f"{self.seed}/{epoch}").shuffle(order)  # the same on every platform and Python
    return order


class Mixture(Stream):
  """A curriculum: an endless stream over an easy and a hard set, whose shares change during the run.

  Draws are independent, with replacement. A draw depends only on the seed and its number.

  Args:
    easy, hard: number of examples in each set; positions count the easy examples first.
    share: step → probability of an easy example. A step is one batch of prompts drawn, and the first one is 0, so that
      a share of 1 there begins with easy examples alone. It is one less than the optimiser's step if each of these
      draws one batch.

  Source: CARE (EMNLP 2025) Algorithm 1.
  """

  def __init__(self, easy: int, hard: int, *, share: Callable[[int], float], prompts_per_step: int, seed: int):
    super().__init__(easy + hard, seed=seed)
    self.easy, self.hard, self.share, self.prompts_per_step = easy, hard, share, prompts_per_step

  def at(self, index: int) -> int:
    """The position of the example in draw number `index`."""
    step, slot = divmod(index, self.prompts_per_step)
    rng = random.Random(f"mixture/{self.seed}/{step}/{slot}")
    if rng.random() < self.share(step):
      return rng.randrange(self.easy)
    return self.easy + rng.randrange(self.hard)


def split(examples: Sequence[Example], shares: Sequence[float], *, seed: int = 0) -> list[list[Example]]:
  """Parts with these shares of the examples, each in the order of the set.

  Examples with the same question (`digests.key_of`) are in the part of the first of them.

  Args:
    examples: of one set or of several.
    shares: above 0, in any unit: 80, 20 and .8, .2 are the same.
    seed: seed of the draw. The draw depends only on the seed and the number of examples.

  Raises:
    ValueError: fewer than two shares, one that is not above 0, or a part that would be empty.
  """
  if len(shares) < 2 or not all(0 < share < math.inf for share in shares):
    raise ValueError(f"shares={list(shares)}: there must be at least two, all above 0.")
  places = random.Random(f"split/{seed}").sample(range(len(examples)), len(examples))
  ends = [round(sum(shares[: number + 1]) / sum(shares) * len(examples)) for number in range(len(shares))]
  drawn = {place: part for part, (start, end) in enumerate(zip([0, *ends], ends)) for place in places[start:end]}
  part_of: dict[str, int] = {}
  parts: list[list[Example]] = [[] for _ in shares]
  for place, example in enumerate(examples):
    parts[part_of.setdefault(digests.key_of(example.question), drawn[place])].append(example)
  if not all(parts):
    raise ValueError(f"{len(examples)} examples in shares {list(shares)}: a part would be empty.")
  return parts
