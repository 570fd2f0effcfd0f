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
from ragrl_jax.structs import Batch, TeacherRows

UNROUTED = -1  # in place of an expert: the model's own router chooses (models/experts.py)


@dataclasses.dataclass(frozen=True)
class Item:
  """One sequence to be packed; arrays have one entry per token, except `rewards` and `gains`.

  Attributes:
    tokens: int ids.
    loss_mask: bool, True for trained tokens; the first token is never trained, whatever its entry.
    advantages: float; in SFT the token's weight; zeros before they are computed from the rewards.
    sampler_logprobs: float, for the tokens under the mask.
    group_id: the prompt's running number. Only items of one group share their beginnings in a row.
    name: the item's name in error messages.
    turns: int, the number of the turn that the token belongs to, counted in its episode; -1 for the environment's
      tokens. Empty in SFT.
    rewards: float [turns], the reward of each turn of its episode. Empty in SFT.
    gains: float [turns], the information gain of each turn of its episode, in nats; NaN where there is none. Empty if
      none is measured.
    episode: a key shared by the items of one episode; None if the episode has only this item.
    routes: int16 [tokens, n], see `structs.Batch`; None if the sampler recorded none.
    teaching: float, the weight of the teacher's term at each token; None: nowhere.
    teacher_logprobs: float, the log-probability of each token by a teacher behind a server; None: there is none.
    trained: whether its tokens are trained. If not, its reward alone counts, in its group: see
      config.loss.mask_truncated.
    teacher_prompt: (number of its first tokens, ids that the teacher reads instead), equal for the items of a group
      that begin with the same prompt. With (0, ()) it reads what the policy reads.
  """

  tokens: np.ndarray
  loss_mask: np.ndarray
  advantages: np.ndarray
  sampler_logprobs: np.ndarray
  group_id: int = 0
  name: str = ""
  turns: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int32))
  rewards: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.float32))
  gains: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.float32))
  episode: tuple[int, int] | None = None
  routes: np.ndarray | None = None
  teaching: np.ndarray | None = None
  teacher_logprobs: np.ndarray | None = None
  trained: bool = True
  teacher_prompt: tuple[int, Sequence[int]] = (0, ())


class Span(NamedTuple):
  """The place of an item in the arrays [R, L] of a block: entries start:stop of a row."""

  block: int
  row: int
  start: int
  stop: int

  def of(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The item's part of one array [R, L] per block. It is a view, so it can be written to."""
    return arrays[self.block][self.row, self.start : self.stop]


@dataclasses.dataclass(frozen=True)
class Packed:
  """Items in rows.

  Attributes:
    blocks: Batches, the longest rows first.
    spans: one per item, in the order of the items.
    entries: for each item, the numbers of the tokens that its span speaks of: all, or if beginnings are shared, the
      trained ones and the one behind each turn.
    teacher_rows: for each block what a teacher reads, if it reads other prompts; else empty.
  """

  blocks: list[Batch]
  spans: list[Span]
  entries: list[np.ndarray]
  teacher_rows: list[TeacherRows] = dataclasses.field(default_factory=list)

  def column(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """One array [R, L] per block, from one value per token of each item; zeros elsewhere."""
    columns = [np.zeros(block.loss_mask.shape, np.float32) for block in self.blocks]
    for span, values_of_item, entries in zip(self.spans, values, self.entries, strict=True):
      span.of(columns)[:] = values_of_item[entries]
    return columns

  def of_items(self, arrays: Sequence[np.ndarray], items: Sequence[Item]) -> list[np.ndarray]:
    """One array per item, from one array [R, L] per block; zeros for tokens without an entry."""
    result = [np.zeros(len(item.tokens), np.float32) for item in items]
    for span, item_values, entries in zip(self.spans, result, self.entries, strict=True):
      item_values[entries] = span.of(arrays)
    return result


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
  model_segments = [s for s in episode.segments if s.owner == structs.MODEL]
  for s in model_segments:
    if len(s.logprobs) != len(s.ids):
      raise ValueError(f"{name}: a model segment has {len(s.ids)} ids and {len(s.logprobs)} log-probabilities.")
  if len(rewards) != len(model_segments):
    raise ValueError(f"{name}: {len(rewards)} rewards for {len(model_segments)} model segments; one each is needed.")
  turn_rewards, pending = [], 0.0
  for s, reward in zip(model_segments, rewards):
    if s.ids:
      turn_rewards.append(pending + reward)
      pending = 0.0
    elif turn_rewards:
      turn_rewards[-1] += reward
    else:
      pending += reward
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
          rewards=np.asarray(turn_rewards, np.float32),
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


def of_demonstration(ids: Sequence[int] | np.ndarray, weights: Sequence[float] | np.ndarray, number: int = 0) -> Item:
  """A sequence for SFT: tokens with a weight above 0 are trained; the weights are in `advantages`.

  Demonstrations begin with the same instructions, which a row needs once, so each 32 of them are a group. Of larger
  groups, rows would be laid out slowly.

  Raises:
    ValueError: the numbers of weights and ids differ. The message names the demonstration by `number`.
  """
  tokens, weighed, name = np.asarray(ids, np.int32), np.asarray(weights, np.float32), f"demonstration {number}"
  if tokens.shape != weighed.shape:
    raise ValueError(f"{name}: {len(tokens)} ids with {len(weighed)} weights, one each is needed.")
  return Item(tokens, weighed > 0, weighed, np.zeros(tokens.shape, np.float32), group_id=number // 32, name=name)


def pack_items(
  items: Sequence[Item],
  *,
  rows: int,
  lengths: Sequence[int],
  sharing: row_layout.Sharing | None = None,
  routes: int = 0,
  teacher_prompts: bool = False,
) -> Packed:
  """Best-fit decreasing into blocks of `rows` rows, see `row_layout.best`.

  Args:
    items: in a fixed order, on which the blocks depend.
    rows: rows per block.
    lengths: the allowed row lengths T, at most three, because each is compiled separately.
    sharing: how a group's items share their beginnings; None: they do not.
    routes: experts of a token, n in `structs.Batch`; 0: the blocks have no routes.
    teacher_prompts: whether a teacher reads other prompts.

  Returns:
    The blocks and a span per item. Rows may be empty. Without items there is one block of empty rows, because another
    host may have items.

  Raises:
    ValueError: an item longer than the longest row, or impossible rows or lengths.
  """
  blocks, spans, entries, of_teacher = [], {}, {}, []
  # Rows are chosen by sizes alone. Tokens are copied once, after the place of each piece is known.
  for length, pieces in row_layout.best(items, rows=rows, lengths=lengths, sharing=sharing):
    block, places = _block(items, pieces, length, sharing, routes)
    for number, (row, start, own) in places.items():
      spans[number], entries[number] = Span(len(blocks), row, start, start + len(own)), own
    blocks.append(block)
    of_teacher += [_teacher_rows(items, pieces, length)] * teacher_prompts
  numbers = range(len(items))
  return Packed(blocks, [spans[number] for number in numbers], [entries[number] for number in numbers], of_teacher)


def join(parts: Sequence[Packed]) -> Packed:
  """The blocks of all parts, one after the other, with the spans of all items."""
  blocks, spans, entries, teacher_rows = [], [], [], []
  for part in parts:
    # After 2 blocks, block 0 becomes block 2; rows and tokens stay the same.
    spans += [span._replace(block=span.block + len(blocks)) for span in part.spans]
    blocks += part.blocks
    entries += part.entries
    teacher_rows += part.teacher_rows
  return Packed(blocks, spans, entries, teacher_rows)


def _block(
  items: Sequence[Item], pieces: Sequence[row_layout.Row], length: int, sharing: row_layout.Sharing | None, routes: int
) -> tuple[Batch, dict[int, tuple[int, int, np.ndarray]]]:
  """One block, from the pieces in each of its rows, and (row, first entry, tokens with an entry) of each item."""
  read, scored = (len(pieces), length), (len(pieces), length * (sharing.entries if sharing else 1))
  ints, floats = lambda shape: np.zeros(shape, np.int32), lambda: np.zeros(scored, np.float32)
  # Zeros are padding: segment 0 is not a sequence, and its mask is 0.
  tokens, positions, until, segment_ids, places = ints(read), ints(read), ints(read), ints(scored), ints(scored)
  loss_mask, advantages, sampler_logprobs, teaching = np.zeros(scored, bool), floats(), floats(), floats()
  states, chosen = np.full(read, -1, np.int32), np.full((*read, routes), UNROUTED, np.int16)
  where = {}
  for row, members in enumerate(pieces):
    path, stop, entry = np.zeros(0, np.int64), 0, 0  # the places of the last item's tokens; tokens; entries
    for segment, piece in enumerate(members, start=1):
      item = items[piece.item]
      until[row, path[piece.start :]] = stop  # what the next items do not share ends here
      start, stop = stop, stop + piece.stop - piece.start
      path = np.concatenate([path[: piece.start], np.arange(start, stop)])
      tokens[row, start:stop] = item.tokens[piece.start :]
      positions[row, start:stop] = np.arange(piece.start, piece.stop)
      mask = item.loss_mask.copy()
      mask[:1] = False  # no state predicts the first token
      trained = np.flatnonzero(mask)
      entry_tokens = row_layout.entries(item) if sharing else np.arange(len(path))
      span = row, slice(entry, entry + len(entry_tokens))
      segment_ids[span], places[span], loss_mask[span] = segment, path[entry_tokens], mask[entry_tokens]
      # Untrained tokens get zeros, whatever the item contains.
      advantages[span] = np.where(mask, item.advantages, 0.0)[entry_tokens]
      sampler_logprobs[span] = np.where(mask, item.sampler_logprobs, 0.0)[entry_tokens]
      if item.teaching is not None:
        teaching[span] = np.where(mask, item.teaching, 0.0)[entry_tokens]
      states[row, path[trained]] = path[trained - 1]
      if routes and item.routes is not None:
        chosen[row, path[trained - 1] + 1] = item.routes[trained]
      where[piece.item] = row, entry, entry_tokens
      entry += len(entry_tokens)
    until[row, path] = stop
  batch = Batch(
    tokens=tokens,
    segment_ids=segment_ids,
    positions=positions,
    loss_mask=loss_mask,
    advantages=advantages,
    sampler_logprobs=sampler_logprobs,
    **{name: floats() for name in ("old_logprobs", "ref_logprobs", "values", "returns")},
    teaching=teaching,
    routes=chosen if routes else None,
    **(dict(until=until, states=states, places=places) if sharing else {}),
  )
  return batch, where


def _teacher_rows(items: Sequence[Item], pieces: Sequence[row_layout.Row], length: int) -> TeacherRows:
  """The rows of a block of this length as a teacher reads them. The pieces of a row are where they are in the block.

  The rows are as long as the fullest one needs, rounded up to halves of `length`, because each length is compiled.
  """
  step = length // 2 if length % (2 * row_layout.STEP) == 0 else length
  rows, twins = [], np.zeros((len(pieces), length), np.int32)
  for row, members in enumerate(pieces):
    texts = [_read(items[piece.item]) for piece in members]
    tokens, positions, until = read = np.zeros((3, sum(map(len, texts))), np.int32)
    places = twin_at = np.zeros(0, np.int64)  # the places of the last item's tokens in the block's row, and in this one
    stop = end = 0
    for piece, text in zip(members, texts):
      cut = items[piece.item].teacher_prompt[0]
      more = len(text) - piece.stop
      shared = piece.start + more if piece.start >= cut else 0
      until[twin_at[shared:]] = end  # what the next items do not share ends here
      places = np.concatenate([places[: piece.start], np.arange(stop, stop := stop + piece.stop - piece.start)])
      new = np.arange(end, end := end + len(text) - shared)
      twin_at = np.concatenate([twin_at[:shared], new])
      tokens[new], positions[new] = text[shared:], np.arange(shared, len(text))
      twins[row, places[max(cut - 1, 0) :]] = twin_at[max(cut - 1, 0) + more :]
    until[twin_at] = end
    rows.append(read[:, :end])
  width = max(-(-max(row_arrays.shape[1] for row_arrays in rows) // step), 1) * step
  padded = [np.pad(row_arrays, ((0, 0), (0, width - row_arrays.shape[1]))) for row_arrays in rows]
  tokens, positions, until = np.stack(padded, axis=1)
  return TeacherRows(tokens, positions, until, twins)


def _read(item: Item) -> np.ndarray:
  """The item's tokens, as its teacher reads them."""
  cut, instead = item.teacher_prompt
  return np.concatenate([np.asarray(instead, np.int32), item.tokens[cut:]])
