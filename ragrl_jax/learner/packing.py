"""Sequences → packed rows of few fixed shapes, and the place of each sequence. Pure NumPy; same input, same rows.

The layout is computed once, here. Scores of a sequence are read from the rows, and values written to them, through its
span:

  items a (5 tokens), b (3), c (4), rows of 8    row 0: a a a a a b b b    spans[0] = Span(block=0, row=0, 0, 5)
                                                 row 1: c c c c . . . .    spans[1] = Span(block=0, row=0, 5, 8)
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ragrl_jax import structs
from ragrl_jax.learner import row_layout
from ragrl_jax.structs import Batch

UNROUTED = -1  # in place of an expert: the model's own router chooses (models/experts.py)


@dataclasses.dataclass(frozen=True)
class Item:
  """One sequence to be packed; arrays have one entry per token, except `rewards`.

  Attributes:
    tokens: int ids.
    loss_mask: bool, True for trained tokens; the first token is never trained, whatever its entry.
    advantages: float; in SFT the token's weight; zeros before they are computed from the rewards.
    sampler_logprobs: float, for the tokens under the mask.
    group_id: the prompt's running number.
    name: the item's name in error messages.
    turns: int, the number of the turn that the token belongs to, counted in its episode; -1 for the environment's
      tokens. Empty in SFT.
    rewards: float [turns], the reward of each turn of its episode. Empty in SFT.
    episode: a key shared by the items of one episode; None if the episode has only this item.
    routes: int16 [tokens, n], see `structs.Batch`; None if the sampler recorded none.
  """

  tokens: np.ndarray
  loss_mask: np.ndarray
  advantages: np.ndarray
  sampler_logprobs: np.ndarray
  group_id: int = 0
  name: str = ""
  turns: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int32))
  rewards: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.float32))
  episode: tuple[int, int] | None = None
  routes: np.ndarray | None = None


class Span(NamedTuple):
  """The place of an item's own tokens: tokens start:stop of a row of a block."""

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
  """

  blocks: list[Batch]
  spans: list[Span]

  def column(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """One array [R, T] per block: the last values of each item at the item's own tokens, zeros elsewhere."""
    filled = [np.zeros(block.tokens.shape, np.float32) for block in self.blocks]
    for span, own in zip(self.spans, values, strict=True):
      span.of(filled)[:] = own[len(own) - (span.stop - span.start) :]
    return filled


def of_episode(episode: structs.Episode, rewards: Sequence[float]) -> list[Item]:
  """The items of an episode: one for each conversation in which the model sampled a token.

  The model's segments are trained, the environment's never. A model segment with tokens is a turn. The reward of one
  without tokens is added to that of the turn before it, or else of the turn after it.

  Args:
    episode: its segments have ids, and model segments have log-probabilities.
    rewards: one number per model segment.

  Raises:
    ValueError: log-probabilities or rewards do not match the segments.
  """
  name = f"episode {episode.prompt_index}.{episode.sample} (example {episode.example_id!r})"
  written = [s for s in episode.segments if s.owner == structs.MODEL]
  for s in written:
    if len(s.logprobs) != len(s.ids):
      raise ValueError(f"{name}: a model segment has {len(s.ids)} ids and {len(s.logprobs)} log-probabilities.")
  if len(rewards) != len(written):
    raise ValueError(f"{name}: {len(rewards)} rewards for {len(written)} model segments; one each is needed.")
  earned, waiting = [], 0.0
  for s, reward in zip(written, rewards):
    if s.ids:
      earned.append(waiting + reward)
      waiting = 0.0
    elif earned:
      earned[-1] += reward
    else:
      waiting += reward
  items, turn = [], 0
  for segments in episode.conversations:
    turns, logprobs = [], []
    for s in segments:
      is_model = s.owner == structs.MODEL
      turns += [turn if is_model else -1] * len(s.ids)
      logprobs += s.logprobs if is_model else (0.0,) * len(s.ids)
      turn += bool(is_model and s.ids)
    turns = np.asarray(turns, np.int32)
    if (turns >= 0).any():
      items.append(
        Item(
          np.asarray([token for s in segments for token in s.ids], np.int32),
          turns >= 0,
          np.zeros(turns.shape, np.float32),
          np.asarray(logprobs, np.float32),
          group_id=episode.prompt_index,
          name=name,
          turns=turns,
          rewards=np.asarray(earned, np.float32),
          episode=(episode.prompt_index, episode.sample) if episode.starts else None,
          routes=_routes(segments),
        )
      )
  return items


def _routes(segments: Sequence[structs.Segment]) -> np.ndarray | None:
  """The experts of each token of a conversation, int16 [tokens, n], with UNROUTED where none are recorded."""
  width = next((len(s.routes) // len(s.ids) // 2 for s in segments if s.routes), 0)
  if not width:
    return None
  none = lambda segment: np.full((len(segment.ids), width), UNROUTED, np.int16)
  parts = [np.frombuffer(s.routes, np.int16).reshape(-1, width) if s.routes else none(s) for s in segments]
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
  return Packed(blocks, [spans[number] for number in range(len(items))])


def join(parts: Sequence[Packed]) -> Packed:
  """The blocks of all parts, one after the other, with the spans of all items."""
  blocks, spans = [], []
  for part in parts:
    # After 2 blocks, block 0 becomes block 2; rows and tokens stay the same.
    spans += [span._replace(block=span.block + len(blocks)) for span in part.spans]
    blocks += part.blocks
  return Packed(blocks, spans)


def _spans(items: Sequence[Item], pieces: Sequence[Sequence[row_layout.Piece]], *, block: int) -> dict[int, Span]:
  """Item → the span of its own piece, for one block's rows of pieces."""
  result = {}
  for row, members in enumerate(pieces):
    stop = 0
    for piece in members:
      start, stop = stop, stop + piece.stop - piece.start
      if piece.stop == len(items[piece.item].tokens):  # a shared beginning ends before its item does
        result[piece.item] = Span(block, row, start, stop)
  return result


def _block(
  items: Sequence[Item], pieces: Sequence[Sequence[row_layout.Piece]], length: int, share_prefix: bool, routes: int
) -> Batch:
  """One block, from the pieces in each of its rows."""
  shape = (len(pieces), length)
  ints = lambda: np.zeros(shape, np.int32)
  floats = lambda: np.zeros(shape, np.float32)
  # Zeros are padding: segment 0 is not a sequence, and its mask is 0.
  tokens, segment_ids, prefix_ids, positions = ints(), ints(), ints(), ints()
  loss_mask, advantages, sampler_logprobs = np.zeros(shape, bool), floats(), floats()
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
      tokens[here], segment_ids[here] = item.tokens[part], segment
      prefix_ids[here], positions[here] = root, np.arange(piece.start, piece.stop, dtype=np.int32)
      loss_mask[here] = mask
      # Untrained tokens get zeros, whatever the item contains.
      advantages[here] = np.where(mask, item.advantages[part], 0.0)
      sampler_logprobs[here] = np.where(mask, item.sampler_logprobs[part], 0.0)
      if routes and item.routes is not None:
        chosen[here] = np.where(mask[:, None], item.routes[part], UNROUTED)
  return Batch(
    tokens=tokens,
    segment_ids=segment_ids,
    positions=positions,
    loss_mask=loss_mask,
    advantages=advantages,
    sampler_logprobs=sampler_logprobs,
    old_logprobs=floats(),
    ref_logprobs=floats(),
    values=floats(),
    returns=floats(),
    prefix_ids=prefix_ids if share_prefix else None,
    routes=chosen if routes else None,
  )
