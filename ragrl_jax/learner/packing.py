"""Sequences → packed rows of few fixed shapes. Pure NumPy; the same input always gives the same rows."""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from ragrl_jax import structs
from ragrl_jax.structs import Batch


@dataclasses.dataclass(frozen=True)
class Item:
  """One sequence to be packed; every array has one entry a token.

  Attributes:
    tokens: int ids.
    loss_mask: bool, True where it is trained; the first token never is, whatever is said here.
    advantages: float; in SFT the token's weight; zeros where they come from the rewards later.
    sampler_logprobs: float, of the tokens under the mask.
    group_id: the prompt's running number.
    name: what an error message calls it.
    rewards: float, what each token earns; None for nothing.
    start: position of its first token; above 0 it continues the item before it in its row (see `families`).
  """

  tokens: np.ndarray
  loss_mask: np.ndarray
  advantages: np.ndarray
  sampler_logprobs: np.ndarray
  group_id: int = 0
  name: str = ""
  rewards: np.ndarray | None = None
  start: int = 0


def pack(
  episodes: Sequence[structs.Episode],
  rewards: Sequence[Sequence[float] | None],
  *,
  rows: int,
  lengths: Sequence[int],
  share_prefix: bool = False,
) -> list[Batch]:
  """Episodes with what they earned → blocks [rows, T].

  Args:
    episodes: in a fixed order: the blocks depend on it.
    rewards: for each episode one number a model segment, laid on the segment's last token, or None: the episode could
      not be scored, or has no token to train, and is left out.
    rows: of a block.
    lengths: the row lengths T that may be used, at most three: each is one more compilation.
    share_prefix: lay down once a row what the samples of a prompt have in common.

  Returns:
    Blocks, the longest rows first; empty rows fill up the last of each length. If nothing was scored, one block of
    empty rows: on a pod another host's episodes may have been.

  Raises:
    ValueError: an episode longer than the longest row, log-probabilities or rewards that do not belong to their
      segments, or impossible rows or lengths.
  """
  items = [of_episode(e, r) for e, r in zip(episodes, rewards, strict=True) if r is not None]
  return pack_items(items, rows=rows, lengths=lengths, share_prefix=share_prefix)


def pack_weighted(
  sequences: Iterable[tuple[Sequence[int], Sequence[float]]], *, rows: int, lengths: Sequence[int]
) -> list[Batch]:
  """(ids, weights) → blocks for SFT: a token with a weight above 0 is trained, with that weight in `advantages`."""
  items = []
  for number, (ids, weights) in enumerate(sequences):
    tokens, weights = np.asarray(ids, np.int32), np.asarray(weights, np.float32)
    if tokens.shape != weights.shape:
      raise ValueError(f"demonstration {number}: {len(tokens)} ids with {len(weights)} weights, one each is needed.")
    unsampled = np.zeros(tokens.shape, np.float32)
    items.append(Item(tokens, weights > 0, weights, unsampled, group_id=number, name=f"demonstration {number}"))
  return pack_items(items, rows=rows, lengths=lengths)


def of_episode(episode: structs.Episode, rewards: Sequence[float]) -> Item:
  """All segments' ids in order; the model's are trained, the environment's never.

  A reward lands on the last token of its model segment; where a segment has none, on the last one trained before it,
  or, before any, on the first one trained after it.
  """
  name = f"episode {episode.prompt_index}.{episode.sample} (example {episode.example_id!r})"
  tokens, mask, logprobs, ends = [], [], [], []
  for s in episode.segments:
    mine = s.owner == structs.MODEL
    if mine and len(s.logprobs) != len(s.ids):
      raise ValueError(f"{name}: a model segment has {len(s.ids)} ids and {len(s.logprobs)} log-probabilities.")
    tokens += s.ids
    mask += [mine] * len(s.ids)
    logprobs += s.logprobs if mine else (0.0,) * len(s.ids)
    if mine:
      ends.append(len(tokens))
  if len(rewards) != len(ends):
    raise ValueError(f"{name}: {len(rewards)} rewards for {len(ends)} model segments; one each is needed.")
  tokens, mask = np.asarray(tokens, np.int32), np.asarray(mask, bool)
  earned = np.zeros(tokens.shape, np.float32)
  trained = np.flatnonzero(mask)
  for end, reward in zip(ends, rewards):
    if trained.size:
      earned[trained[max(np.searchsorted(trained, end) - 1, 0)]] += reward
  return Item(
    tokens,
    mask,
    np.zeros(tokens.shape, np.float32),
    np.asarray(logprobs, np.float32),
    rewards=earned,
    group_id=episode.prompt_index,
    name=name,
  )


def pack_items(items: Sequence[Item], *, rows: int, lengths: Sequence[int], share_prefix: bool = False) -> list[Batch]:
  """First-fit decreasing into blocks of `rows` rows, see `pack`.

  With share_prefix, what a group's items have in common is laid down once a row, before those that the row holds.
  """
  return [_block(members, length, share_prefix) for length, members in _laid(items, rows, lengths, share_prefix)]


def places(
  items: Sequence[Item], *, rows: int, lengths: Sequence[int], share_prefix: bool = False
) -> list[tuple[int, int, slice]]:
  """(block, row, tokens) of each item as `pack_items` lays it: of all its tokens, or of those it does not share.

  The items' names tell them apart.
  """
  found = {}
  for block, (_, members) in enumerate(_laid(items, rows, lengths, share_prefix)):
    for row, parts in enumerate(members):
      start = 0
      for part in parts:  # a shared beginning bears the name of an item whose own part comes later
        found[part.name] = (block, row, slice(start, start + len(part.tokens)))
        start += len(part.tokens)
  return [found[item.name] for item in items]


def _laid(items, rows, lengths, share_prefix) -> list[tuple[int, list[list[Item]]]]:
  """(T, the items or parts of items in each row) a block."""
  lengths = check(rows, lengths)
  units = families(items, lengths[0]) if share_prefix else [[item] for item in items]
  sizes = [sum(len(item.tokens) for item in unit) for unit in units]
  blocks = _fit(sizes, [unit[0].name for unit in units], rows, lengths)
  return [(length, [[item for i in row for item in units[i]] for row in members]) for length, members in blocks]


def families(items: Sequence[Item], longest: int) -> list[list[Item]]:
  """Items that must share a row: for each group the beginning its items have in common, then what each adds to it.

  The last common token is left to each item, so that a state that predicts a trained token stands before it in its
  own segment. A group that does not fit into a row of `longest` tokens becomes several families.
  """
  groups: dict[int, list[Item]] = {}
  for item in items:
    groups.setdefault(item.group_id, []).append(item)
  units = []
  for members in groups.values():
    common = _common(members) - 1
    if common < 1 or len(members) == 1:
      units += [[item] for item in members]
      continue
    fitting: list[list[Item]] = []
    room: list[int] = []
    for item in sorted(members, key=lambda item: -len(item.tokens)):
      size = len(item.tokens) - common
      at = next((i for i, left in enumerate(room) if left >= size), None)
      if at is None:
        at = len(room)
        fitting.append([])
        room.append(longest - common)
      fitting[at].append(item)
      room[at] -= size
    for some in fitting:
      units.append(some if len(some) == 1 else [_part(some[0], 0, common), *(_part(x, common, None) for x in some)])
  return units


def _common(items: Sequence[Item]) -> int:
  """How many tokens all items begin with, before any of them is trained."""
  lengths = [int(np.argmax(x.loss_mask)) if x.loss_mask.any() else len(x.tokens) for x in items]
  begins = np.stack([x.tokens[: min(lengths)] for x in items])
  same = (begins == begins[:1]).all(axis=0)
  return int(same.size if same.all() else np.argmin(same))


def _part(item: Item, start: int, stop: int | None) -> Item:
  arrays = {
    f.name: getattr(item, f.name)[start:stop]
    for f in dataclasses.fields(item)
    if isinstance(getattr(item, f.name), np.ndarray)
  }
  return dataclasses.replace(item, start=start, **arrays)


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


def _fit(
  sizes: Sequence[int], names: Sequence[str], rows: int, lengths: tuple[int, ...]
) -> list[tuple[int, list[list[int]]]]:
  """Which items share a row: (T, one list of item numbers a row) a block.

  Each item goes to the first row with room for it. A block of rows is opened, at the smallest length that holds the
  item, only when no open row has room: space that is paid for anyway is used first.
  """
  blocks: list[tuple[int, list[list[int]]]] = []
  room: list[int] = []  # of every open row, in the order of the blocks
  for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
    size = sizes[i]
    if size > lengths[0]:
      raise ValueError(
        f"{names[i]} has {size} tokens, the longest row {lengths[0]}: raise config.learner.row_lengths to at "
        "least config.rollout.context, or lower the latter."
      )
    at = next((r for r, left in enumerate(room) if left >= size), None)
    if at is None:
      at = len(room)
      length = min(t for t in lengths if t >= size)
      blocks.append((length, [[] for _ in range(rows)]))
      room += [length] * rows
    blocks[at // rows][1][at % rows].append(i)
    room[at] -= size
  return blocks or [(lengths[-1], [[] for _ in range(rows)])]


def _block(members: list[list[Item]], length: int, share_prefix: bool = False) -> Batch:
  """One block of rows."""
  shape = (len(members), length)
  ints = lambda fill=0: np.full(shape, fill, np.int32)
  floats = lambda: np.zeros(shape, np.float32)
  tokens, segment_ids, prefix_ids, positions, group_ids = ints(), ints(), ints(), ints(), ints(-1)
  loss_mask, advantages, rewards, sampler_logprobs = np.zeros(shape, bool), floats(), floats(), floats()
  for r, row in enumerate(members):
    start = root = 0
    for number, item in enumerate(row, start=1):
      root = root if item.start else number
      here = (r, slice(start, start + len(item.tokens)))
      mask = item.loss_mask.copy()
      mask[:1] = False  # no state in this sequence comes before its first token
      tokens[here], segment_ids[here], group_ids[here] = item.tokens, number, item.group_id
      prefix_ids[here], positions[here] = root, item.start + np.arange(len(item.tokens), dtype=np.int32)
      loss_mask[here] = mask
      advantages[here] = np.where(mask, item.advantages, 0.0)
      rewards[here] = 0.0 if item.rewards is None else item.rewards
      sampler_logprobs[here] = np.where(mask, item.sampler_logprobs, 0.0)
      start += len(item.tokens)
  return Batch(
    tokens=tokens,
    segment_ids=segment_ids,
    positions=positions,
    loss_mask=loss_mask,
    advantages=advantages,
    rewards=rewards,
    sampler_logprobs=sampler_logprobs,
    old_logprobs=floats(),
    ref_logprobs=floats(),
    values=floats(),
    returns=floats(),
    group_ids=group_ids,
    prefix_ids=prefix_ids if share_prefix else None,
  )
