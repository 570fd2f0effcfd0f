"""Which items share a row, and how long rows are. By sizes alone: no token is copied here, and same sizes, same rows.

The cost of a layout is its places, rows · T, because the learner computes full and empty places alike. Attention skips
the blocks of a row that belong to different sequences, so long rows cost no more of it.
"""

import dataclasses
import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
  from ragrl_jax.learner.packing import Item

STEP = 128  # chosen row lengths are multiples of it, as TPU attention needs
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
class Layout:
  """Rows of at most T tokens in blocks: blocks [block][row] of pieces, and what T each block's fullest row needs."""

  blocks: list[list[Row]]
  fullest: list[int]

  @property
  def tokens(self) -> int:
    """Tokens in the rows; those that a family shares are counted once."""
    return sum(piece.stop - piece.start for block in self.blocks for row in block for piece in row)

  def fitted(self, lengths: Sequence[int]) -> list[int]:
    """The smallest of the lengths that holds each block."""
    return [min(t for t in lengths if t >= used) for used in self.fullest]


def best(
  items: Sequence["Item"], *, rows: int, lengths: Sequence[int], sharing: Sharing | None
) -> list[tuple[int, list[Row]]]:
  """(T, rows of pieces) per block, the longest first: the layout with the fewest places; of equal ones the longest T.

  Args:
    items, rows, lengths, sharing: see `packing.pack_items`.

  Raises:
    ValueError: see `packing.pack_items`.
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
  layouts = [laid(items, t, rows, sharing) for t in lengths if t >= len(longest.tokens)]
  chosen = min(layouts, key=lambda layout: sum(layout.fitted(lengths)))
  return list(zip(chosen.fitted(lengths), chosen.blocks))


def laid(items: Sequence["Item"], length: int, rows: int, sharing: Sharing | None) -> Layout:
  """Best-fit decreasing into rows of `length` tokens, full rows in the first blocks.

  The units of the last block are spread over all of its rows, so that a shorter block may hold them.
  """
  whole = [[Piece(number, 0, len(item.tokens))] for number, item in enumerate(items)]
  units = families(items, length, sharing) if sharing else whole
  sizes = [sum(piece.stop - piece.start for piece in unit) for unit in units]
  if sharing:  # what a unit takes of a row's tokens, or of its entries if that is more
    counts = [sum(len(entries(items[piece.item])) for piece in unit) for unit in units]
    sizes = [max(size, -(-count // sharing.entries)) for size, count in zip(sizes, counts)]
  filled = _fit(sizes, length)
  used = lambda row: sum(sizes[unit] for unit in row)
  filled.sort(key=lambda row: -used(row))
  blocks = [filled[start : start + rows] for start in range(0, len(filled), rows)]
  blocks[-1] = min((blocks[-1], _spread(sizes, blocks[-1], rows)), key=lambda block: max(map(used, block)))
  fullest = [max(map(used, block)) for block in blocks]
  blocks[-1] += [[] for _ in range(rows - len(blocks[-1]))]
  return Layout([[[piece for unit in row for piece in units[unit]] for row in block] for block in blocks], fullest)


def _fit(sizes: Sequence[int], length: int) -> list[list[int]]:
  """Unit numbers per row: each unit goes to the fullest row with room for it, the largest units first."""
  rows: list[list[int]] = []
  room: list[int] = []
  # Equal sizes keep their order, so rows are deterministic.
  for unit in sorted(range(len(sizes)), key=lambda unit: -sizes[unit]):
    at = min((r for r, left in enumerate(room) if left >= sizes[unit]), key=lambda r: room[r], default=len(rows))
    if at == len(rows):
      rows.append([])
      room.append(length)
    rows[at].append(unit)
    room[at] -= sizes[unit]
  return rows


def _spread(sizes: Sequence[int], block: Sequence[Sequence[int]], rows: int) -> list[list[int]]:
  """The block's units in `rows` rows: each goes to the emptiest row, the largest units first."""
  spread: list[list[int]] = [[] for _ in range(rows)]
  used = [0] * rows
  for unit in sorted((unit for row in block for unit in row), key=lambda unit: (-sizes[unit], unit)):
    at = used.index(min(used))
    spread[at].append(unit)
    used[at] += sizes[unit]
  return spread


def families(items: Sequence["Item"], longest: int, sharing: Sharing) -> list[Row]:
  """Pieces that must share a row: those of each group, cut so that a family has at most `longest` tokens.

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
    counts = [len(entries(items[number])) for number in numbers]
    for first, end in _parts(sizes, common, counts, longest, sharing):
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
  return np.flatnonzero(mask | np.pad(mask, (1, 0))[:-1])


def _parts(
  sizes: Sequence[int], common: Sequence[int], counts: Sequence[int], longest: int, sharing: Sharing
) -> list[tuple[int, int]]:
  """The families of a group's items: stretches first:end with the fewest tokens in all.

  Args:
    sizes: tokens of each item.
    common: tokens that each item has in common with the one before it.
    counts: entries of each item.
  """
  best: list[tuple[int, int]] = [(0, 0)]  # for the first n items: tokens, and where their last family begins
  for end in range(1, len(sizes) + 1):
    found, more, count, least = [], 0, 0, sizes[end - 1]  # tokens and number of the items behind the family's first one
    for first in range(end - 1, -1, -1):
      tokens = sizes[first] + more - count * least
      if tokens <= longest and sum(counts[first:end]) <= sharing.entries * longest:
        found.append((best[first][0] + tokens, -first))
      if sharing.deep or common[first] == sizes[first]:
        more += sizes[first] - common[first]
      else:
        more, count = more + sizes[first], count + 1
      least = min(least, common[first])
    tokens, first = min(found)  # of equal ones the smallest families, which fill rows best
    best.append((tokens, -first))
  parts = []
  end = len(sizes)
  while end:
    parts.append((best[end][1], end))
    end = parts[-1][0]
  return parts[::-1]


def _common(one: np.ndarray, other: np.ndarray) -> int:
  """Number of leading tokens that both have in common."""
  least = min(len(one), len(other))
  differ = one[:least] != other[:least]
  return int(np.argmax(differ)) if differ.any() else least


def check(rows: int, lengths: Sequence[int]) -> tuple[int, ...]:
  """The lengths, longest first.

  Raises:
    ValueError: no row, or not one to three different lengths of at least 2.
  """
  if rows < 1:
    raise ValueError(f"rows={rows}: a block needs at least one row (config.learner.micro_rows).")
  different = tuple(sorted(set(lengths), reverse=True))
  if not 1 <= len(different) <= 3 or len(different) != len(lengths) or different[-1] < 2:
    raise ValueError(
      f"row lengths {tuple(lengths)}: one to three different numbers of tokens, at least 2 each "
      "(config.learner.row_lengths)."
    )
  return different


def chosen(
  steps: Sequence[Sequence["Item"]],
  *,
  rows: int,
  lengths: Sequence[int] = (),
  sharing: Sharing | None = None,
  context: int = 0,
  multiple: int = 1,
) -> tuple[int, ...]:
  """The row lengths of a run: those given, or the two with the fewest places for these items. It says which, and why.

  Args:
    steps: the items of each of a few optimiser steps; at least one item.
    rows, sharing: as for `packing.pack_items`.
    lengths: the given ones; they are kept, with a warning if they waste much. Empty: lengths are chosen.
    context: tokens that the longest row must hold, besides the longest item.
    multiple: a divisor of every chosen length, config.mesh.sequence.
  """
  steps = [items for items in steps if items]
  bound = longest(max([context, *(len(item.tokens) for items in steps for item in items)]), multiple)
  unit = math.lcm(STEP, multiple)
  layouts = {}
  for t in range(unit, bound + 1, unit):
    if all(len(item.tokens) <= t for items in steps for item in items):
      layouts[t] = [laid(items, t, rows, sharing) for items in steps]
  places = lambda some: (
    rows * sum(min(sum(layouts[t][n].fitted(some)) for t in some if t in layouts) for n in range(len(steps)))
  )
  pairs = [(t, other) for t in layouts if t >= context for other in range(unit, t + 1, unit)]
  # Of equal ones the shortest rows, which need the least memory, and one length, which is compiled once.
  result = tuple(sorted(set(min(pairs, key=lambda pair: (places(pair), pair[0], -pair[1])))))
  sizes = [len(item.tokens) for items in steps for item in items]
  if not lengths:
    tokens = sum(layout.tokens for layout in layouts[result[-1]])
    logging.warning(
      "config.learner.row_lengths: %s are chosen from %d sequences of %d to %d tokens; rows are %.0f %% full.",
      *(result, len(sizes), min(sizes), max(sizes), 100 * tokens / places(result)),
    )
    return result
  laid_as_given = [best(items, rows=rows, lengths=lengths, sharing=sharing) for items in steps]
  given = rows * sum(length for blocks in laid_as_given for length, _ in blocks)
  if given > WASTE * places(result):
    logging.warning(
      "config.learner.row_lengths=%s: the rows of %d sequences of %d to %d tokens have %d places, with %s they have "
      "%d, and the learner computes every place. Leave the setting empty, (), to have the lengths chosen.",
      *(tuple(lengths), len(sizes), min(sizes), max(sizes), given, result, places(result)),
    )
  return tuple(lengths)


def longest_row(config: Any) -> int:
  """The longest row that a run with these settings may have."""
  return max(config.learner.row_lengths, default=longest(config.rollout.context, max(config.mesh.sequence, 1)))


def longest(context: int, multiple: int = 1) -> int:
  """The longest row that may be chosen for items of up to `context` tokens: four of them, but no more than 4,096."""
  unit = math.lcm(STEP, multiple)
  return unit * math.ceil(max(context, min(4 * context, 4096)) / unit)
