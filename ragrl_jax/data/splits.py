"""Splits a set of examples at random into parts."""

import math
import random
from collections.abc import Sequence

from ragrl_jax.structs import Example


def split(examples: Sequence[Example], shares: Sequence[float], *, seed: int = 0) -> list[list[Example]]:
  """Parts with these shares of the examples, each in the order of the set.

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
  parts = [sorted(places[start:end]) for start, end in zip([0, *ends], ends)]
  if not all(parts):
    raise ValueError(f"{len(examples)} examples in shares {list(shares)}: a part would be empty.")
  return [[examples[place] for place in part] for part in parts]
