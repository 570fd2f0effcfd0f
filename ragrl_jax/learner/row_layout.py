"""Which items share a row, and how long rows are. By sizes alone: no token is copied here, and same sizes, same rows.

The cost of a layout is its places, rows · T, because the learner computes full and empty places alike. Attention skips
the blocks of a row that belong to different sequences, so long rows cost no more of it.
"""

import bisect
import dataclasses
import functools
import heapq
import itertools
import logging
import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
  from ragrl_jax.learner.packing import Item

STEP = 128  # chosen row lengths are multiples of it, as TPU attention needs
# One more length is compiled if without it the rows have this many times the places: at first, and at later steps,
# where only one or two more may be added in the whole run.
WORTH, LATER = 1.05, 1.1
MOST = 3  # lengths of a run, because each is compiled separately
WASTE = 1.2  # given lengths that need this many times the places of the best ones are worth a word


class Piece(NamedTuple):
  """Tokens start:stop of the item with this number, where stop is its last token's end.

  The tokens before start are those of the piece before it in the row, which is of the same family. So a piece that
  starts at 0 begins a family, and one of an item that repeats another has no tokens.
  """

  item: int
  start: int
  stop: int


Row = list[Piece]


@dataclasses.dataclass(frozen=True)
class Sharing:
  """Which items of a group share their beginnings in a row.

  Attributes:
    deep: families are trees of any depth. Otherwise a family has one shared beginning, and then the rest of each item.
    entries: L / T of `structs.Batch`: a row of T tokens holds as many times T entries of the items' trained tokens.
  """

  deep: bool = True
  entries: int = 4  # groups of eight in trained runs had up to 2.9 entries a token


@dataclasses.dataclass(frozen=True)
class Units:
  """What is laid in rows: items, or families of them, which are split where a row has room for a part.

  Attributes:
    pieces: of each unit.
    counts: entries of each item; zeros if there are as many as tokens.
    entries: a row's entries per token.
  """

  pieces: list[Row]
  counts: Sequence[int]
  entries: int = 1

  @classmethod
  def of(cls, items: Sequence["Item"], sharing: Sharing | None) -> "Units":
    """The units of these items."""
    if sharing is None:
      return cls([[Piece(number, 0, len(item.tokens))] for number, item in enumerate(items)], [0] * len(items))
    return cls(families(items, sharing), [len(entries(item)) for item in items], sharing.entries)

  @functools.cached_property
  def sizes(self) -> list[int]:
    """The size of each unit."""
    return [self.size(unit) for unit in self.pieces]

  def size(self, unit: Sequence[Piece]) -> int:
    """What a unit takes of a row's tokens, or of its entries if that is more."""
    count = sum(self.counts[piece.item] for piece in unit)
    return max(sum(piece.stop - piece.start for piece in unit), -(-count // self.entries))


def best(
  items: Sequence["Item"], *, rows: int, lengths: Sequence[int], sharing: Sharing | None
) -> list[tuple[int, list[Row]]]:
  """(T, rows of pieces) per block, the longest first: a layout with few places; of equal ones the fewest blocks.

  For arguments and errors see `packing.pack_items`.
  """
  lengths = check(rows, lengths)
  longest = max(items, key=lambda item: len(item.tokens), default=None)
  if longest is not None and len(longest.tokens) > lengths[0]:
    raise ValueError(
      f"{longest.name} has {len(longest.tokens)} tokens, the longest row {lengths[0]}: raise "
      "config.learner.row_lengths to at least config.rollout.context, or lower the latter."
    )
  if longest is None:  # one block, the smallest, because every host must run the same programs
    return [(lengths[-1], [[] for _ in range(rows)])]
  return lay_out(Units.of(items, sharing), rows, lengths)


def lay_out(units: Units, rows: int, lengths: Sequence[int]) -> list[tuple[int, list[Row]]]:
  """`best`, of units none of whose items is longer than the longest row.

  Tried are blocks of one length with up to two of any: as many as hold all tokens, and more of the one length if those
  do not hold all units.
  """
  least = -(-sum(units.sizes) // rows)
  tries = set()
  for length in lengths:
    for others in itertools.chain.from_iterable(itertools.combinations_with_replacement(lengths, n) for n in range(3)):
      tries.add((length, (*others, *[length] * max(0, -(-(least - sum(others)) // length)))))
  found: list[tuple[int, list[Row]]] = []
  for length, blocks in sorted(tries, key=lambda one: (sum(one[1]), len(one[1]), one)):
    if found and sum(blocks) >= _places(found):
      break
    other = _fit(units, rows, blocks, length)
    if other and (not found or _places(other) < _places(found)):
      found = other
  return sorted(found, key=lambda block: -block[0])


def _places(blocks: Sequence[tuple[int, list[Row]]]) -> int:
  """Places in the rows of these blocks, which have equally many."""
  return sum(length for length, _ in blocks)


def _fit(units: Units, rows: int, lengths: Sequence[int], more: int) -> list[tuple[int, list[Row]]]:
  """Best-fit decreasing: each unit goes to the fullest row with room for it, the largest units first.

  A unit for which no row has room leaves as many items as possible in the emptiest row; the others begin again, with a
  copy of their beginning. If that row has no room for one, a block of length `more` is opened. Returns nothing if that
  is too short.
  """
  blocks: list[tuple[int, list[Row]]] = []
  room: list[tuple[int, int, int]] = []  # ascending: tokens, block, row

  def open_block(length: int) -> None:
    for row in range(rows):
      bisect.insort(room, (length, len(blocks), row))
    blocks.append((length, [[] for _ in range(rows)]))

  for length in lengths:
    open_block(length)
  # Equal sizes keep their order, so rows are deterministic.
  waiting = [(-size, number, unit) for number, (size, unit) in enumerate(zip(units.sizes, units.pieces))]
  heapq.heapify(waiting)
  while waiting:
    size, number, unit = heapq.heappop(waiting)
    at = bisect.bisect_left(room, (-size,))
    if at == len(room):
      free = room[-1][0] if room else 0
      at = bisect.bisect_left(room, (free,))
      fitting = next(n for n in reversed(range(len(unit))) if units.size(unit[:n]) <= free)
      if not fitting:
        if units.size(unit[:1]) > more:
          return []
        open_block(more)
        heapq.heappush(waiting, (size, number, unit))
        continue
      rest = [unit[fitting]._replace(start=0), *unit[fitting + 1 :]]
      heapq.heappush(waiting, (-units.size(rest), number, rest))
      unit = unit[:fitting]
    free, block, row = room.pop(at)
    blocks[block][1][row].extend(unit)
    bisect.insort(room, (free - units.size(unit), block, row))
  return blocks


def families(items: Sequence["Item"], sharing: Sharing) -> list[Row]:
  """Pieces that share a row if it has room for them: those of each group, or several families of it if flat.

  a b c d, a b c e and a b f share a row as a b c d, e and f if deep. Otherwise the first two share a b c, and the third
  one shares a row with them if their two more tokens are fewer than those of a b.
  """
  groups: dict[int, list[int]] = {}  # in the order of each group's first item
  for number, item in enumerate(items):
    groups.setdefault(item.group_id, []).append(number)
  units = []
  for members in groups.values():
    # In this order each item follows the one that it has most tokens in common with. Bytes of ids, the highest first,
    # are in the order of the ids.
    numbers = sorted(members, key=lambda number: items[number].tokens.astype(">u4").tobytes())
    common = [0, *(_common(items[a].tokens, items[b].tokens) for a, b in zip(numbers, numbers[1:]))]
    sizes = [len(items[number].tokens) for number in numbers]
    for first, end in _parts(sizes, common, sharing.deep):
      least = 0 if sharing.deep else min(common[first + 1 : end], default=0)
      starts = [c if sharing.deep or c == size else least for c, size in zip(common[first:end], sizes[first:end])]
      pieces = zip(numbers[first:end], [0, *starts[1:]], sizes[first:end])
      units.append([Piece(*piece) for piece in pieces])
  return units


def entries(item: "Item") -> np.ndarray:
  """The numbers of the tokens that [R, L] has entries for: the trained ones, and the one behind each turn.

  That one keeps turns apart, for losses that compare the tokens of a turn.
  """
  mask = item.loss_mask.astype(bool)
  mask[:1] = False  # no state predicts the first token
  mask[1:] |= mask[:-1]
  return np.flatnonzero(mask)


def _parts(sizes: Sequence[int], common: Sequence[int], deep: bool) -> list[tuple[int, int]]:
  """The families of a group's items: stretches first:end with the fewest tokens in all.

  `sizes` are the items' tokens, and `common` those that each has in common with the one before it.
  """
  best: list[tuple[int, int]] = [(0, 0)]  # for the first n items: tokens, and where their last family begins
  for end in range(1, len(sizes) + 1):
    tries, more, count, least = [], 0, 0, sizes[end - 1]  # tokens and number of the items behind the family's first one
    for first in range(end - 1, -1, -1):
      tries.append((best[first][0] + sizes[first] + more - count * least, -first))
      if deep or common[first] == sizes[first]:
        more += sizes[first] - common[first]
      else:
        more, count = more + sizes[first], count + 1
      least = min(least, common[first])
    tokens, first = min(tries)  # of equal ones the smallest families, which fill rows best
    best.append((tokens, -first))
  parts = []
  end = len(sizes)
  while end:
    parts.append((best[end][1], end))
    end = parts[-1][0]
  return parts[::-1]


def _common(a: np.ndarray, b: np.ndarray) -> int:
  """Number of leading tokens that both have in common."""
  least = min(len(a), len(b))
  differ = a[:least] != b[:least]
  return int(np.argmax(differ)) if differ.any() else least


def check(rows: int, lengths: Sequence[int]) -> tuple[int, ...]:
  """The lengths, longest first.

  Raises:
    ValueError: no row, or not one to three different lengths of at least 2.
  """
  if rows < 1:
    raise ValueError(f"rows={rows}: a block needs at least one row (config.learner.micro_rows).")
  different = tuple(sorted(set(lengths), reverse=True))
  if not 1 <= len(different) <= MOST or len(different) != len(lengths) or different[-1] < 2:
    raise ValueError(
      f"row lengths {tuple(lengths)}: one to three different numbers of tokens, at least 2 each "
      "(config.learner.row_lengths)."
    )
  return different


class Choice:
  """The items of a few optimiser steps, for which row lengths are chosen; see `choose`."""

  def __init__(
    self, steps: Sequence[Sequence["Item"]], rows: int, sharing: Sharing | None, context: int, multiple: int
  ):
    self.units = [Units.of(items, sharing) for items in steps if items]
    self.rows, self.step = rows, math.lcm(STEP, multiple)
    self.sizes = [len(item.tokens) for items in steps for item in items]
    self.least = max(context, *self.sizes)
    self.bound = longest(self.least, multiple)
    self.tokens = sum(sum(units.sizes) for units in self.units)

  def places(self, lengths: Collection[int]) -> int:
    """Places in the rows of all steps."""
    descending = sorted(lengths, reverse=True)
    return self.rows * sum(_places(lay_out(units, self.rows, descending)) for units in self.units)

  def more(self, lengths: tuple[int, ...], most: int, worth: float) -> tuple[int, ...]:
    """The lengths, and others until they are `most`, as long as without one more there are `worth` times the places."""
    places = self.places(lengths) if lengths else math.inf
    while len(lengths) < most and places > worth * self.tokens:
      possible = [t for t in range(self.step, self.bound + 1, self.step) if lengths or t >= self.least]
      # Of equal ones the shortest, which needs the least memory.
      fewest, length = min((self.places({*lengths, t}), t) for t in possible)
      if places < worth * fewest:
        break
      lengths, places = tuple(sorted((*lengths, length))), fewest
    return lengths

  def __str__(self) -> str:
    return f"{len(self.sizes)} sequences of {min(self.sizes)} to {max(self.sizes)} tokens"

  def tell(self, lengths: tuple[int, ...]) -> None:
    """Says which lengths are chosen, and how full their rows are."""
    share = 100 * self.tokens / self.places(lengths)
    text = "config.learner.row_lengths: %s are chosen from %s; rows are %.0f %% full."
    logging.warning(text, lengths, self, share)


def choose(
  steps: Sequence[Sequence["Item"]],
  *,
  rows: int,
  lengths: Sequence[int] = (),
  sharing: Sharing | None = None,
  context: int = 0,
  multiple: int = 1,
) -> tuple[int, ...]:
  """The row lengths of a run: those given, or one or two for these items. It says which, and why.

  Args:
    steps: the items of each of a few optimiser steps; at least one item.
    rows, sharing: as for `packing.pack_items`.
    lengths: the given ones; they are kept, with a warning if they waste much. Empty: lengths are chosen.
    context: tokens that the longest row must hold, besides the longest item.
    multiple: a divisor of every chosen length, config.mesh.sequence.
  """
  choice = Choice(steps, rows, sharing, context, multiple)
  result = choice.more((), 2, WORTH)
  if not lengths:
    choice.tell(result)
    return result
  places_before, places = choice.places(lengths), choice.places(result)
  if places_before > WASTE * places:
    logging.warning(
      "config.learner.row_lengths=%s: the rows of %s have %d places, with %s they have "
      "%d, and the learner computes every place. Leave the setting empty, (), to have the lengths chosen.",
      *(tuple(lengths), choice, places_before, result, places),
    )
  return tuple(lengths)


def extend(
  steps: Sequence[Sequence["Item"]],
  *,
  lengths: Sequence[int],
  rows: int,
  sharing: Sharing | None = None,
  context: int = 0,
  multiple: int = 1,
) -> tuple[int, ...]:
  """The lengths that were chosen, and a third or second one if the items of a later step leave too much empty.

  The lengths and these items alone decide, so that a run that is resumed adds the same.
  """
  if len(lengths) == MOST:  # nothing is laid out for nothing
    return tuple(lengths)
  choice = Choice(steps, rows, sharing, context, multiple)
  result = choice.more(tuple(lengths), MOST, LATER)
  if len(result) > len(lengths):
    choice.tell(result)
  return result


def longest_row(config: Any) -> int:
  """The longest row that a run with these settings may have."""
  return max(config.learner.row_lengths, default=longest(config.rollout.context, max(config.mesh.sequence, 1)))


def longest(context: int, multiple: int = 1) -> int:
  """The longest row that may be chosen for items of up to `context` tokens: four of them, but no more than 4,096."""
  unit = math.lcm(STEP, multiple)
  return unit * math.ceil(max(context, min(4 * context, 4096)) / unit)
