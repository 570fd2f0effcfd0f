"""Sequences → packed rows of few fixed shapes, and the place of each sequence. Pure NumPy; same input, same rows.

The layout is computed once, here. Later code reads and writes a sequence's values through its span:

  items a (5 tokens), b (3), c (4), rows of 8    row 0: a a a a a b b b    spans[0] = Span(block=0, row=0, 0, 5)
                                                 row 1: c c c c . . . .    spans[1] = Span(block=0, row=0, 5, 8)
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ragrl_jax import structs
from ragrl_jax.learner import row_layout
from ragrl_jax.structs import Batch

UNROUTED = -1  # in place of an expert: the model's own router chooses (models/experts.py)


@dataclasses.dataclass(frozen=True)
class Item:
  """One sequence to be packed; every array has one entry per token.

  Attributes:
    tokens: int ids.
    loss_mask: bool, True for trained tokens; the first token is never trained, whatever its entry.
    advantages: float; in SFT the token's weight; zeros if they are computed from the rewards later.
    sampler_logprobs: float, for the tokens under the mask.
    group_id: the prompt's running number.
    name: the item's name in error messages.
    rewards: float, the reward of each token; None for no rewards.
    episode: a key shared by the items of one episode; None if the episode has only this item.
    routes: int16 [tokens, n], see `structs.Batch`; None if the sampler recorded none.
  """

  tokens: np.ndarray
  loss_mask: np.ndarray
  advantages: np.ndarray
  sampler_logprobs: np.ndarray
  group_id: int = 0
  name: str = ""
  rewards: np.ndarray | None = None
  episode: tuple[int, int] | None = None
  routes: np.ndarray | None = None


class Span(NamedTuple):
  """The place of an item's own tokens: tokens start:stop of a row of a block. Spans sort in the order of the rows."""

  block: int
  row: int
  start: int
  stop: int

  def of(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The item's part of one array [R, T] per block. It is a view, so it can be written to."""
    return arrays[self.block][self.row, self.start : self.stop]


@dataclasses.dataclass(frozen=True)
class Packed:
  """Items in rows.

  Attributes:
    blocks: Batches [rows, T], the longest rows first.
    spans: one per item, in the order of the items. With a shared prefix, a span excludes the tokens that the group
      shares. It includes all trained tokens.
    episodes: the field `episode` of each item; empty if every item is an episode.
  """

  blocks: list[Batch]
  spans: list[Span]
  episodes: Sequence[tuple[int, int] | None] = ()

  def by_episode(self) -> list[list[Span]]:
    """The spans of each episode, in the order of the items. Nearly all episodes have one span."""
    found: dict[Any, list[Span]] = {}
    for number, span in enumerate(self.spans):
      own = self.episodes[number] if self.episodes else None
      found.setdefault(number if own is None else own, []).append(span)
    return list(found.values())


def rows(episode: structs.Episode, rewards: Sequence[float]) -> list[Item]:
  """The items of an episode: one for each conversation in which the model sampled a token (see `of_episode`).

  Args:
    episode: see `of_episode`.
    rewards: one number per model segment.

  Raises:
    ValueError: see `of_episode`.
  """
  if not episode.starts:
    return [of_episode(episode, rewards)]
  parts: list[tuple[tuple[structs.Segment, ...], list[float]]] = []
  at, unplaced = 0, 0.0
  for segments in episode.conversations:
    said = [segment for segment in segments if segment.owner == structs.MODEL]
    earned, at = [*rewards[at : at + len(said)]], at + len(said)
    if any(segment.ids for segment in said):
      earned[0] += unplaced
      unplaced = 0.0
      parts.append((segments, earned))
    elif parts:  # nothing was sampled here, so the reward goes to the last token before it, or to the next conversation
      parts[-1][1][-1] += sum(earned)
    else:
      unplaced += sum(earned)
  made = [of_episode(dataclasses.replace(episode, segments=part, starts=()), earned) for part, earned in parts]
  return [dataclasses.replace(item, episode=(episode.prompt_index, episode.sample)) for item in made]


def of_episode(episode: structs.Episode, rewards: Sequence[float]) -> Item:
  """All segments' ids in order. The model's segments are trained, the environment's never.

  The reward of a model segment goes to its last token. If the segment has no token, the reward goes to the last trained
  token before it, or else to the first trained token after it.

  Args:
    episode: its segments have ids, and model segments have log-probabilities.
    rewards: one number per model segment.

  Raises:
    ValueError: log-probabilities or rewards do not match the segments.
  """
  name = f"episode {episode.prompt_index}.{episode.sample} (example {episode.example_id!r})"
  tokens, mask, logprobs, ends = [], [], [], []
  for s in episode.segments:
    is_model = s.owner == structs.MODEL
    if is_model and len(s.logprobs) != len(s.ids):
      raise ValueError(f"{name}: a model segment has {len(s.ids)} ids and {len(s.logprobs)} log-probabilities.")
    tokens += s.ids
    mask += [is_model] * len(s.ids)
    logprobs += s.logprobs if is_model else (0.0,) * len(s.ids)
    if is_model:
      ends.append(len(tokens))
  if len(rewards) != len(ends):
    raise ValueError(f"{name}: {len(rewards)} rewards for {len(ends)} model segments; one each is needed.")
  tokens, mask = np.asarray(tokens, np.int32), np.asarray(mask, bool)
  earned = np.zeros(tokens.shape, np.float32)
  trained = np.flatnonzero(mask)
  for end, reward in zip(ends, rewards):
    if trained.size:
      # trained = [2 3 4 6 7], end = 5: searchsorted finds 3, and trained[2] = 4 is the segment's last token.
      earned[trained[max(np.searchsorted(trained, end) - 1, 0)]] += reward
  return Item(
    tokens,
    mask,
    np.zeros(tokens.shape, np.float32),
    np.asarray(logprobs, np.float32),
    rewards=earned,
    group_id=episode.prompt_index,
    name=name,
    routes=_routes(episode),
  )


def _routes(episode: structs.Episode) -> np.ndarray | None:
  """The experts of each token of an episode, int16 [tokens, n], with UNROUTED where none are recorded."""
  width = next((len(s.routes) // len(s.ids) // 2 for s in episode.segments if s.routes), 0)
  if not width:
    return None
  none = lambda segment: np.full((len(segment.ids), width), UNROUTED, np.int16)
  parts = [np.frombuffer(s.routes, np.int16).reshape(-1, width) if s.routes else none(s) for s in episode.segments]
  return np.concatenate(parts)


def of_demonstration(ids: Sequence[int], weights: Sequence[float], number: int = 0) -> Item:
  """A sequence for SFT: tokens with a weight above 0 are trained; the weights are in `advantages`.

  Raises:
    ValueError: the numbers of weights and ids differ. The message names the demonstration by `number`.
  """
  tokens, weighed, name = np.asarray(ids, np.int32), np.asarray(weights, np.float32), f"demonstration {number}"
  if tokens.shape != weighed.shape:
    raise ValueError(f"{name}: {len(tokens)} ids with {len(weighed)} weights, one each is needed.")
  return Item(tokens, weighed > 0, weighed, np.zeros(tokens.shape, np.float32), group_id=number, name=name)


def pack_items(
  items: Sequence[Item], *, rows: int, lengths: Sequence[int], share_prefix: bool = False, routes: int = 0
) -> Packed:
  """Best-fit decreasing into blocks of `rows` rows, see `row_layout.best`.

  Args:
    items: in a fixed order, on which the blocks depend.
    rows: rows per block.
    lengths: the allowed row lengths T, at most three, because each is compiled separately.
    share_prefix: store the common beginning of a group's items once per row, before the items of that row.
    routes: experts of a token, n in `structs.Batch`; 0: the blocks have no routes.

  Returns:
    The blocks and a span per item. Empty rows fill up the last block of each length. Without items there is one block
    of empty rows, because another host may have items.

  Raises:
    ValueError: an item longer than the longest row, or impossible rows or lengths.
  """
  blocks, spans = [], {}
  # Rows are chosen by sizes alone. Tokens are copied once, after the place of each piece is known.
  for length, pieces in row_layout.best(items, rows=rows, lengths=lengths, share_prefix=share_prefix):
    spans |= _spans(items, pieces, block=len(blocks))
    blocks.append(_block(items, pieces, length, share_prefix, routes))
  several = [item.episode for item in items] if any(item.episode is not None for item in items) else []
  return Packed(blocks, [spans[number] for number in range(len(items))], several)


def join(parts: Sequence[Packed]) -> Packed:
  """The blocks of all parts, one after the other, with the spans of all items."""
  blocks, spans, several = [], [], []
  for part in parts:
    several += part.episodes or [None] * len(part.spans)
    # After 2 blocks, block 0 becomes block 2; rows and tokens stay the same.
    spans += [span._replace(block=span.block + len(blocks)) for span in part.spans]
    blocks += part.blocks
  return Packed(blocks, spans, several if any(one is not None for one in several) else [])


def _spans(items: Sequence[Item], pieces: Sequence[Sequence[row_layout.Piece]], *, block: int) -> dict[int, Span]:
  """Item → the span of its own piece, for one block's rows of pieces."""
  found = {}
  for row, members in enumerate(pieces):
    stop = 0
    for piece in members:
      start, stop = stop, stop + piece.stop - piece.start
      if piece.stop == len(items[piece.item].tokens):  # a shared beginning ends before its item does
        found[piece.item] = Span(block, row, start, stop)
  return found


def _block(
  items: Sequence[Item], pieces: Sequence[Sequence[row_layout.Piece]], length: int, share_prefix: bool, routes: int
) -> Batch:
  """One block, from the pieces in each of its rows."""
  shape = (len(pieces), length)
  ints = lambda fill=0: np.full(shape, fill, np.int32)
  floats = lambda: np.zeros(shape, np.float32)
  # Zeros are padding: segment 0 is not a sequence, and its mask is 0.
  tokens, segment_ids, prefix_ids, positions, group_ids = ints(), ints(), ints(), ints(), ints(-1)
  loss_mask, advantages, rewards, sampler_logprobs = np.zeros(shape, bool), floats(), floats(), floats()
  chosen = np.full((*shape, routes), UNROUTED, np.int16)
  for row, members in enumerate(pieces):
    stop = root = 0
    for segment, piece in enumerate(members, start=1):
      item, part = items[piece.item], slice(piece.start, piece.stop)
      start, stop = stop, stop + piece.stop - piece.start
      here = (row, slice(start, stop))
      root = root if piece.start else segment  # the segment that a continued piece attends to besides its own
      mask = item.loss_mask[part].copy()
      mask[:1] = False  # no state in this segment predicts its first token
      tokens[here], segment_ids[here], group_ids[here] = item.tokens[part], segment, item.group_id
      prefix_ids[here], positions[here] = root, np.arange(piece.start, piece.stop, dtype=np.int32)
      loss_mask[here] = mask
      # Untrained tokens get zeros, whatever the item contains.
      advantages[here] = np.where(mask, item.advantages[part], 0.0)
      rewards[here] = 0.0 if item.rewards is None else item.rewards[part]
      sampler_logprobs[here] = np.where(mask, item.sampler_logprobs[part], 0.0)
      if routes and item.routes is not None:
        chosen[here] = np.where(mask[:, None], item.routes[part], UNROUTED)
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
    routes=chosen if routes else None,
  )
