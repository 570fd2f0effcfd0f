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
    advantages: float; in SFT the token's weight.
    sampler_logprobs: float, of the tokens under the mask.
    group_id: the prompt's running number.
    name: what an error message calls it.
  """

  tokens: np.ndarray
  loss_mask: np.ndarray
  advantages: np.ndarray
  sampler_logprobs: np.ndarray
  group_id: int = 0
  name: str = ""


def pack(
    episodes: Sequence[structs.Episode], advantages: Sequence[float | np.ndarray | None], *, rows: int,
    lengths: Sequence[int],
) -> list[Batch]:
  """Episodes with their advantages → blocks [rows, T].

  Args:
    episodes: in a fixed order: the blocks depend on it.
    advantages: one a episode: a number for all its model tokens, an array with one number a token, or None: the
      episode could not be scored and is left out.
    rows: of a block.
    lengths: the row lengths T that may be used, at most three: each is one more compilation.

  Returns:
    Blocks, the longest rows first; empty rows fill up the last of each length. If nothing was scored, one block of
    empty rows: on a pod another host's episodes may have been.

  Raises:
    ValueError: an episode longer than the longest row, log-probabilities that do not belong to their tokens, or
      impossible rows or lengths.
  """
  if len(episodes) != len(advantages):
    raise ValueError(f"{len(episodes)} episodes with {len(advantages)} advantages: each needs one (or None).")
  items = [of_episode(e, a) for e, a in zip(episodes, advantages) if a is not None]
  return pack_items(items, rows=rows, lengths=lengths)


def pack_weighted(
    sequences: Iterable[tuple[Sequence[int], Sequence[float]]], *, rows: int, lengths: Sequence[int],
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


def of_episode(episode: structs.Episode, advantage: float | np.ndarray) -> Item:
  """All segments' ids in order; the model's are trained, the environment's never."""
  name = f"episode {episode.prompt_index}.{episode.sample} (example {episode.example_id!r})"
  tokens, mask, logprobs = [], [], []
  for s in episode.segments:
    mine = s.owner == structs.MODEL
    if mine and len(s.logprobs) != len(s.ids):
      raise ValueError(f"{name}: a model segment has {len(s.ids)} ids and {len(s.logprobs)} log-probabilities.")
    tokens += s.ids
    mask += [mine] * len(s.ids)
    logprobs += s.logprobs if mine else (0.0,) * len(s.ids)
  tokens, mask = np.asarray(tokens, np.int32), np.asarray(mask, bool)
  advantages = np.asarray(advantage, np.float32)
  if advantages.ndim and advantages.shape != tokens.shape:
    raise ValueError(f"{name}: advantages of shape {advantages.shape} for {len(tokens)} tokens; one each is needed.")
  return Item(
    tokens, mask, np.broadcast_to(advantages, tokens.shape), np.asarray(logprobs, np.float32),
    group_id=episode.prompt_index, name=name)


def pack_items(items: Sequence[Item], *, rows: int, lengths: Sequence[int]) -> list[Batch]:
  """First-fit decreasing into blocks of `rows` rows, see `pack`."""
  lengths = check(rows, lengths)
  blocks = _fit(items, rows, lengths)
  return [_block([[items[i] for i in row] for row in members], length) for length, members in blocks]


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
      "(config.learner.row_lengths).")
  return different


def _fit(items: Sequence[Item], rows: int, lengths: tuple[int, ...]) -> list[tuple[int, list[list[int]]]]:
  """Which items share a row: (T, one list of item numbers a row) a block.

  Each item goes to the first row with room for it. A block of rows is opened, at the smallest length that holds the
  item, only when no open row has room: space that is paid for anyway is used first.
  """
  blocks: list[tuple[int, list[list[int]]]] = []
  room: list[int] = []  # of every open row, in the order of the blocks
  for i in sorted(range(len(items)), key=lambda i: (-len(items[i].tokens), i)):
    size = len(items[i].tokens)
    if size > lengths[0]:
      raise ValueError(
        f"{items[i].name} has {size} tokens, the longest row {lengths[0]}: raise config.learner.row_lengths to at "
        "least config.rollout.context, or lower the latter.")
    at = next((r for r, left in enumerate(room) if left >= size), None)
    if at is None:
      at = len(room)
      length = min(t for t in lengths if t >= size)
      blocks.append((length, [[] for _ in range(rows)]))
      room += [length] * rows
    blocks[at // rows][1][at % rows].append(i)
    room[at] -= size
  return blocks or [(lengths[-1], [[] for _ in range(rows)])]


def _block(members: list[list[Item]], length: int) -> Batch:
  """One block of rows."""
  shape = (len(members), length)
  ints = lambda fill=0: np.full(shape, fill, np.int32)
  floats = lambda: np.zeros(shape, np.float32)
  tokens, segment_ids, positions, group_ids = ints(), ints(), ints(), ints(-1)
  loss_mask, advantages, sampler_logprobs = np.zeros(shape, bool), floats(), floats()
  for r, row in enumerate(members):
    start = 0
    for number, item in enumerate(row, start=1):
      here = (r, slice(start, start + len(item.tokens)))
      mask = item.loss_mask.copy()
      mask[:1] = False  # no state in this sequence comes before its first token
      tokens[here], segment_ids[here], group_ids[here] = item.tokens, number, item.group_id
      positions[here] = np.arange(len(item.tokens), dtype=np.int32)
      loss_mask[here] = mask
      advantages[here] = np.where(mask, item.advantages, 0.0)
      sampler_logprobs[here] = np.where(mask, item.sampler_logprobs, 0.0)
      start += len(item.tokens)
  return Batch(
    tokens=tokens, segment_ids=segment_ids, positions=positions, loss_mask=loss_mask, advantages=advantages,
    sampler_logprobs=sampler_logprobs, old_logprobs=floats(), ref_logprobs=floats(), values=floats(),
    returns=floats(), group_ids=group_ids)
