import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from refusals import refused

from ragrl_jax import structs
from ragrl_jax.learner import advantages, packing, row_layout
from ragrl_jax.models import kernels
from ragrl_jax.run import rewards


def episode(prompt_index=4, sample=1):
  """A prompt of 2 tokens, a model turn of 3, a result of 1, a model turn of 2."""
  segments = (
    structs.Segment(structs.ENVIRONMENT, (10, 11), "q"),
    structs.Segment(structs.MODEL, (20, 21, 22), "m", logprobs=(-1.0, -2.0, -3.0), stop="</search>"),
    structs.Segment(structs.ENVIRONMENT, (30,), "r", query="m", found=()),
    structs.Segment(structs.MODEL, (40, 41), "a", logprobs=(-4.0, -5.0), stop="</answer>"),
  )
  return structs.Episode(segments, prompt_index=prompt_index, sample=sample, example_id="e7")


def of_size(size, number=0):
  ids = np.arange(size, dtype=np.int32) + 100 * number
  on = np.ones(size, bool)
  return packing.Item(ids, on, np.full(size, number + 1, np.float32), -ids.astype(np.float32), number, f"item {number}")


def pack(episodes, rewards, **how):
  """The blocks of these episodes."""
  items = [item for one, earned in zip(episodes, rewards, strict=True) for item in packing.of_episode(one, earned)]
  return packing.pack_items(items, **how).blocks


def test_an_episode_by_hand():
  (batch,) = pack([episode()], [(0.25, 0.5)], rows=1, lengths=(10,))
  want = dict(
    tokens=[10, 11, 20, 21, 22, 30, 40, 41, 0, 0],
    segment_ids=[1] * 8 + [0, 0],
    positions=[*range(8), 0, 0],
    loss_mask=[0, 0, 1, 1, 1, 0, 1, 1, 0, 0],
    sampler_logprobs=[0, 0, -1, -2, -3, 0, -4, -5, 0, 0],
  )
  for name, values in want.items():
    np.testing.assert_array_equal(getattr(batch, name), [values], err_msg=name)
  assert (batch.loss_mask.dtype, batch.tokens.dtype, batch.advantages.dtype) == (np.bool_, np.int32, np.float32)
  for name in ("advantages", "old_logprobs", "ref_logprobs", "values", "returns"):
    np.testing.assert_array_equal(getattr(batch, name), np.zeros((1, 10), np.float32))
  (item,) = packing.of_episode(episode(), (0.25, 0.5))
  assert item.turns.tolist() == [-1, -1, 0, 0, 0, -1, 1, 1] and item.rewards.tolist() == [0.25, 0.5]


def test_every_conversation_of_an_episode_is_an_item():
  one = episode()
  said = structs.Segment(structs.MODEL, (50,), "b", logprobs=(-6.0,))
  prompt, nothing = (structs.Segment(structs.ENVIRONMENT, ids, "p") for ids in ((12, 13), (14,)))
  # Three conversations; in the second one the model said nothing.
  joined = dataclasses.replace(one, segments=(*one.segments, nothing, prompt, said), starts=(4, 5))
  first, second = packing.of_episode(joined, (0.25, 0.5, 1.0))
  (alone,) = packing.of_episode(one, (0.25, 0.5))
  for name in ("tokens", "loss_mask", "turns", "sampler_logprobs"):
    np.testing.assert_array_equal(getattr(first, name), getattr(alone, name))
  assert second.tokens.tolist() == [12, 13, 50] and second.turns.tolist() == [-1, -1, 2]
  assert first.rewards.tolist() == second.rewards.tolist() == [0.25, 0.5, 1.0]
  assert first.episode == second.episode == (4, 1) and alone.episode is None
  # A conversation without a sampled token passes its reward on: to the one before, or else to the next.
  silent = dataclasses.replace(said, ids=(), logprobs=())
  for order in ((said, silent), (silent, said)):
    pair = dataclasses.replace(one, segments=(prompt, order[0], prompt, order[1]), starts=(2,))
    (kept,) = packing.of_episode(pair, (1.0, 3.0))
    assert kept.turns.tolist() == [-1, -1, 0] and kept.rewards.tolist() == [4.0]
  assert advantages.by_episode([alone, first, second]) == [[0], [1, 2]]


def test_the_reward_of_a_turn_without_tokens_goes_to_a_neighbouring_turn():
  said = lambda n: structs.Segment(structs.MODEL, tuple(range(n)), "", logprobs=(0.0,) * n)
  result = structs.Segment(structs.ENVIRONMENT, (9,), "")
  earned = lambda *sizes: [
    (item.turns.tolist(), item.rewards.tolist())
    for segments in [tuple(part for size in sizes for part in (result, said(size)))]
    for item in packing.of_episode(structs.Episode(segments), (1.0, 4.0, 2.0)[: len(sizes)])
  ]
  assert earned(2, 0) == [([-1, 0, 0, -1], [5.0])]
  assert earned(0, 2) == [([-1, -1, 0, 0], [5.0])]
  assert earned(0, 1, 2) == [([-1, -1, 0, -1, 1, 1], [5.0, 2.0])]
  assert earned(0) == []


def test_a_span_points_to_its_item():
  items = [of_size(n, i) for i, n in enumerate((3, 5, 2, 4, 7, 8))]
  packed = packing.pack_items(items, rows=2, lengths=(8, 4))
  tokens = [b.tokens for b in packed.blocks]
  assert [span.of(tokens).tolist() for span in packed.spans] == [item.tokens.tolist() for item in items]
  # Two packings joined: the spans of the second one are shifted behind the first one's blocks.
  both = packing.join([packed, packing.pack_items(items[:1], rows=2, lengths=(4,))])
  assert both.blocks[: len(tokens)] == packed.blocks and both.spans[:-1] == packed.spans
  assert both.spans[-1] == (len(tokens), 0, 0, 3)
  # Samples that share a prompt: a span covers the trained tokens.
  items = [reply([1, 2, 3], np.arange(n - 3) + 10 * n, 0, n) for n in (6, 7, 8, 9)]
  packed = packing.pack_items(items, rows=2, lengths=(16,), sharing=row_layout.Sharing())
  tokens = [np.take_along_axis(b.tokens, b.places, axis=1) for b in packed.blocks]
  masks = [b.loss_mask for b in packed.blocks]
  for item, span, entries in zip(items, packed.spans, packed.entries, strict=True):
    np.testing.assert_array_equal(span.of(tokens), item.tokens[3:])
    assert span.of(masks).all() and entries.tolist() == list(range(3, len(item.tokens)))
  # What is written through the spans is read back.
  values = [item.tokens * item.loss_mask for item in items]
  jax.tree.map(np.testing.assert_array_equal, values, list(packed.of_items(packed.column(values), items)))


def test_items_of_the_same_name_are_distinguished():
  items = [dataclasses.replace(of_size(n, n), name="same") for n in (3, 3, 5)]
  packed = packing.pack_items(items, rows=1, lengths=(8,))
  assert packed.spans == [(0, 0, 5, 8), (1, 0, 0, 3), (0, 0, 0, 5)]


def test_unscored_episodes_are_left_out():
  example = structs.Example("q", "?", ("!",))
  make = lambda index, earned: rewards.Scored(example, episode(index), {}, {}, earned and 0.0, None, earned or ())
  scored = [make(1, None), make(2, (0.0, 0.0))]
  items = rewards.items(scored)
  (batch,) = packing.pack_items(items, rows=1, lengths=(16,)).blocks
  assert [item.group_id for item in items] == [2] and batch.loss_mask.sum() == 5
  (empty,) = packing.pack_items(rewards.items(scored[:1]), rows=2, lengths=(16, 8)).blocks
  assert empty.tokens.shape == (2, 8) and not empty.loss_mask.any() and (empty.segment_ids == 0).all()


def test_advantages_are_read_back_by_episode():
  example = structs.Example("q", "?", ("!",))
  make = lambda index, reward: rewards.Scored(example, episode(index), {}, {}, reward, None, (0.0, reward or 0.0))
  scored = [make(1, 1.0), make(1, None), make(2, 0.0), make(3, 1.0)]
  parts = rewards.by_prompts(scored, 2)
  assert [[one.episode.prompt_index for one in part] for part in parts] == [[1, 1, 2], [3]]  # groups stay whole
  # Advantages 1, 2, 3 … from each episode's first token. Of its 8 tokens 2 3 4 6 7 are trained: a mean of 5.4.
  counted = lambda number, item: dataclasses.replace(item, advantages=8.0 * number + np.arange(1.0, 9.0))
  found = rewards.with_advantages(scored, [counted(*pair) for pair in enumerate(rewards.items(scored))])
  assert [one.advantage for one in found] == [pytest.approx(5.4), None, pytest.approx(13.4), pytest.approx(21.4)]


def test_the_first_token_is_never_trained():
  (batch,) = packing.pack_items([of_size(3), of_size(3, 1)], rows=1, lengths=(6,)).blocks
  np.testing.assert_array_equal(batch.loss_mask, [[False, True, True] * 2])
  np.testing.assert_array_equal(batch.advantages, [[0, 1, 1, 0, 2, 2]])


def packed_numbers(sizes, **how):
  """The number of the item at each place, -1 for none: one array per block."""
  items = [dataclasses.replace(of_size(n, i), tokens=np.full(n, i, np.int32)) for i, n in enumerate(sizes)]
  return [np.where(b.segment_ids > 0, b.tokens, -1) for b in packing.pack_items(items, **how).blocks]


def test_best_fit_decreasing_by_hand():
  # Rows of 9, one per block: 6 → row 0, 5 → row 1; 3 → row 0, which it fills, though row 1 has more room; 2 → row 1.
  first, second = packed_numbers((3, 6, 2, 5), rows=1, lengths=(9,))
  np.testing.assert_array_equal(first, [[1] * 6 + [0] * 3])
  np.testing.assert_array_equal(second, [[3] * 5 + [2] * 2 + [-1] * 2])


def test_the_blocks_with_the_fewest_places_are_found():
  shapes = lambda sizes, rows, *lengths: [b.shape for b in packed_numbers(sizes, rows=rows, lengths=lengths)]
  # One row of 12 would hold all. Over two rows, 5 + 2 and 4 + 1, they fit into a block of T 7: 14 places, not 24.
  assert shapes((5, 4, 2, 1), 2, 7, 12) == [(2, 7)]
  # Three items of 4 fill a row of 12; in rows of 6 each is alone: 12 places against 18. Four of 3 are equal: 12 and 12.
  assert shapes((4, 4, 4), 1, 6, 12) == [(1, 12)] and shapes((5, 5, 5), 1, 5, 12) == [(1, 5)] * 3
  assert shapes((3, 3, 3, 3), 1, 6, 12) == [(1, 12)]
  assert shapes((9, 8, 8, 4, 3), 1, 12, 11, 9) == [(1, 12), (1, 11), (1, 9)]
  assert shapes((7,) * 9, 2, 12) == [(2, 12)] * 5  # 63 tokens, one a row: three blocks would hold so many


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 20), max_size=30), st.integers(1, 4))
def test_every_token_is_packed_once_and_in_order(sizes, rows):
  items = [of_size(n, i) for i, n in enumerate(sizes)]
  batches = packing.pack_items(items, rows=rows, lengths=(20, 7)).blocks
  found = {}
  for batch in batches:
    assert batch.tokens.shape[0] == rows and batch.tokens.shape[1] in (20, 7)
    for row in range(rows):
      for segment in range(1, batch.segment_ids[row].max() + 1):
        here = np.flatnonzero(batch.segment_ids[row] == segment)
        assert (np.diff(here) == 1).all()  # one stretch
        np.testing.assert_array_equal(batch.positions[row, here], np.arange(len(here)))
        found[int(batch.tokens[row, here[0]]) // 100] = batch.tokens[row, here]
      assert (batch.segment_ids[row][:-1] > 0)[batch.segment_ids[row][1:] > 0].all()  # padding only at the end
  assert {i: tokens.tolist() for i, tokens in found.items()} == {i: x.tokens.tolist() for i, x in enumerate(items)}


def test_weighted_sequences_for_sft():
  item = packing.of_demonstration([7, 8, 9, 10], [1.0, 0.3, 0.0, 1.0])
  (batch,) = packing.pack_items([item], rows=1, lengths=(5,)).blocks
  np.testing.assert_array_equal(batch.loss_mask, [[False, True, False, True, False]])
  np.testing.assert_allclose(batch.advantages, [[0, 0.3, 0, 1.0, 0]])
  refused("demonstration 1: 2 ids with 1 weights", packing.of_demonstration, [1, 2], [1], number=1)


@pytest.mark.parametrize("rows, lengths, word", [
  (0, (8,), "micro_rows"), (1, (), "row_lengths"), (1, (8, 9, 10, 11), "one to three"), (1, (8, 8), "different"),
  (1, (1,), "at least 2"), (1, (7,), r"episode 4\.1 \(example 'e7'\) has 8 tokens, the longest row 7.*row_lengths"),
])  # fmt: skip
def test_impossible_shapes_are_refused(rows, lengths, word):
  refused(word, pack, [episode()], [(0.0, 1.0)], rows=rows, lengths=lengths)


def test_log_probabilities_must_match_the_tokens():
  broken = dataclasses.replace(episode(), segments=(structs.Segment(structs.MODEL, (1, 2), "", logprobs=(-1.0,)),))
  refused("2 ids and 1 log-probabilities", pack, [broken], [(1.0,)], rows=1, lengths=(8,))
  refused("3 rewards for 2 model segments", pack, [episode()], [(0.0, 0.0, 1.0)], rows=1, lengths=(8,))


def reply(prompt, said, group, number=0):
  """An item of the prompt's ids and of those said, which are trained."""
  ids = np.concatenate([prompt, said]).astype(np.int32)
  advantages, logprobs = np.full(len(ids), number, np.float32), -ids.astype(np.float32)
  return packing.Item(ids, np.arange(len(ids)) >= len(prompt), advantages, logprobs, group, f"item {number}")


def shared(sizes, prompt=3, group=7):
  """Items of one group: the same prompt, then the given numbers of tokens."""
  said = lambda number, size: reply(np.arange(prompt), 100 * number + np.arange(size), group, number)
  return [said(number, size) for number, size in enumerate(sizes, 1)]


def test_a_tree_by_hand():
  # The last two samples of the first group write the same turn. The other group has one sample.
  items = [*shared((1, 2, 3)), *shared((2,), prompt=2, group=8)]
  items[2] = dataclasses.replace(items[2], tokens=np.array([0, 1, 2, 200, 300, 301], np.int32))
  packed = packing.pack_items(items, rows=1, lengths=(12,), sharing=row_layout.Sharing())
  (batch,) = packed.blocks
  want = dict(
    tokens=[0, 1, 2, 100, 200, 201, 300, 301, 0, 1, 100, 101],
    positions=[0, 1, 2, 3, 3, 4, 4, 5, 0, 1, 2, 3],
    until=[8, 8, 8, 4, 8, 6, 8, 8, 12, 12, 12, 12],
    states=[-1, -1, -1, 2, 2, 4, 4, 6, -1, -1, 9, 10],
  )
  for name, values in want.items():
    np.testing.assert_array_equal(getattr(batch, name), [values], err_msg=name)
  want = dict(
    places=[3, 4, 5, 4, 6, 7, 10, 11],
    segment_ids=[1, 2, 2, 3, 3, 3, 4, 4],
    loss_mask=[1] * 8,
    advantages=[1, 2, 2, 3, 3, 3, 1, 1],
    sampler_logprobs=[-100, -200, -201, -300, -301, -302, -100, -101],
  )
  for name, values in want.items():
    np.testing.assert_array_equal(getattr(batch, name), [values + [0] * 40], err_msg=name)
  assert packed.spans == [(0, 0, 0, 1), (0, 0, 1, 3), (0, 0, 3, 6), (0, 0, 6, 8)]
  (apart,) = packing.pack_items(items, rows=1, lengths=(19,)).blocks
  assert apart.until is apart.states is apart.places is None


def test_one_level_of_branches():
  item = lambda *tokens: dataclasses.replace(of_size(len(tokens)), tokens=np.array(tokens, np.int32), group_id=1)
  made = [item(1, 2, 3, 4), item(1, 2, 3, 5), item(1, 6), item(1, 2, 3, 5)]
  flat = row_layout.Sharing(deep=False)
  # 1 2 3 4|5 and the repeated sample, then 1 6: 7 tokens. In one family, they would be 1|2 3 4|2 3 5|6 or 8.
  pieces = [[row_layout.Piece(*piece) for piece in unit] for unit in ([(0, 0, 4), (1, 3, 4), (3, 4, 4)], [(2, 0, 2)])]
  assert row_layout.families(made, flat) == pieces
  deep = [(0, 0, 4), (1, 3, 4), (3, 4, 4), (2, 1, 2)]
  assert row_layout.families(made, row_layout.Sharing()) == [[row_layout.Piece(*piece) for piece in deep]]


def tokens_of(items, *lengths, rows=1, **how):
  """The tokens of the pieces in each row of each block."""
  blocks = row_layout.best(items, rows=rows, lengths=lengths, sharing=row_layout.Sharing(**how))
  return [[piece.stop - piece.start for piece in row] for _, block in blocks for row in block]


def test_a_group_too_long_for_a_row_is_split():
  # In rows of 9 the 3 shared tokens leave 6 for 3 + 1, then 4 + 2.
  items = shared((3, 1, 4, 2))
  assert tokens_of(items, 9) == [[6, 1], [7, 2]] and tokens_of(items, 13) == [[6, 1, 4, 2]]
  assert tokens_of(items, 7) == [[6, 1], [7], [5]]
  # Repeated samples have no tokens of their own, but entries: 6 of 3 each, of which rows of 6 hold 2 · 6.
  equal = [*shared((3,)) * 6]
  assert tokens_of(equal, 6) == [[6, 0, 0, 0, 0, 0]] and tokens_of(equal, 6, entries=2) == [[6, 0, 0, 0], [6, 0]]
  packed = packing.pack_items(equal, rows=1, lengths=(6,), sharing=row_layout.Sharing(entries=2))
  assert [b.places.shape for b in packed.blocks] == [(1, 12)] * 2
  assert sum(int(b.loss_mask.sum()) for b in packed.blocks) == 18


@pytest.mark.parametrize("deep", (True, False))
def test_a_group_is_split_where_the_gap_is_larger_than_its_beginning(deep):
  # 15 tokens a group. Two rows of 26 hold three groups and a copy of 3 tokens.
  items = [item for group in range(3) for item in shared((4, 4, 4), group=group)]
  assert tokens_of(items, 26, rows=2, deep=deep) == [[7, 4, 4, 7, 4], [7, 4, 4, 7]]
  # A row of 18 has no room for a beginning of 3 and one item of 4.
  assert tokens_of(items, 18, deep=deep) == [[7, 4, 4]] * 3


texts = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), min_size=1, max_size=9)


@settings(max_examples=60, deadline=None)
@given(texts, st.integers(1, 9), st.booleans(), st.integers(9, 30))
def test_every_path_is_its_items_text(texts, many, deep, length):
  draw = np.random.default_rng(len(texts))
  items = []
  for number, text in enumerate(texts):
    on, ones = draw.random(len(text)) < 0.5, np.ones(len(text), np.float32)
    items.append(packing.Item(np.array(text, np.int32), on, ones * number, ones, number % 2, str(number)))
  packed = packing.pack_items(items, rows=2, lengths=(length,), sharing=row_layout.Sharing(deep, many))
  prefixes = {(item.group_id, *item.tokens[: n + 1]) for item in items for n in range(len(item.tokens))}
  stored = sum(int((b.until > 0).sum()) for b in packed.blocks)
  assert stored >= len(prefixes) and (stored == len(prefixes) or not deep or many < 5 or length < 30)
  for item, span, entries in zip(items, packed.spans, packed.entries, strict=True):
    batch, on = packed.blocks[span.block], item.loss_mask & (np.arange(len(item.tokens)) > 0)
    # The trained tokens, and the token behind each turn: neighbours in a text are neighbours here.
    assert entries.tolist() == [n for n in range(len(on)) if on[n] or (n and on[n - 1])]
    np.testing.assert_array_equal(span.of([b.loss_mask for b in packed.blocks]), on[entries])
    for place, number in zip(span.of([b.places for b in packed.blocks]), entries, strict=True):
      seen = np.flatnonzero((np.arange(length) <= place) & (place < batch.until[span.row]))
      np.testing.assert_array_equal(batch.tokens[span.row, seen], item.tokens[: number + 1])
      np.testing.assert_array_equal(batch.positions[span.row, seen], np.arange(number + 1))
      assert not on[number] or batch.states[span.row, place] == seen[-2]
  for batch in packed.blocks:
    trained = {(row, place) for row, place in zip(*np.nonzero(batch.states >= 0))}
    assert trained == {(row, batch.places[row, entry]) for row, entry in zip(*np.nonzero(batch.loss_mask))}
    if not deep:  # the kernels' ids say the same
      ids, prefix = (np.asarray(x) for x in kernels.segments(batch.until))
      index = np.arange(length)
      mask = (batch.until[:, None, :] > index[None, :, None]) & (index[:, None] >= index)[None]
      same = (ids[:, :, None] == ids[:, None]) | (prefix[:, :, None] == ids[:, None])
      np.testing.assert_array_equal(mask, same & (ids != 0)[:, :, None] & (index[:, None] >= index)[None])


def groups_like_real_ones(draw, groups):
  """Groups of 8 replies to one prompt, with the lengths of ARENA's on four sentences at 135M."""
  size = lambda mean, spread, low, high: int(np.clip(draw.normal(mean, spread), low, high))
  made = []
  for group in range(groups):
    prompt = draw.integers(0, 9999, size(224, 30, 150, 330))
    made += [reply(prompt, draw.integers(0, 9999, size(63, 13, 36, 96)), group) for _ in range(8)]
  return made


def computed(steps, **how):
  """(tokens, places) of the steps' blocks."""
  blocks = [block for items in steps for block in packing.pack_items(items, **how).blocks]
  full = lambda b: b.segment_ids > 0 if b.until is None else b.until > 0
  return sum(int(full(b).sum()) for b in blocks), sum(b.tokens.size for b in blocks)


@pytest.mark.parametrize("rows", (1, 2, 4))
def test_rows_of_chosen_lengths_are_full(rows):
  draw = np.random.default_rng(rows)
  # The lengths come from the first step alone; the next ones have other prompts and replies.
  steps = [groups_like_real_ones(draw, 16) for _ in range(6)]
  how = dict(rows=rows, sharing=row_layout.Sharing())
  chosen = row_layout.choose(steps[:1], context=448, **how)
  assert max(chosen) >= 448 and all(t % 128 == 0 for t in chosen) and len(chosen) <= 2
  tokens, places = computed(steps, lengths=chosen, **how)
  assert tokens >= 0.9 * places
  # Rows of 512 are full, but a group's prompt is in three of them.
  assert computed(steps, lengths=(512,), **how)[1] > 1.25 * places
  # Transcripts, one sequence each: 287 ± 33 tokens, 32 a step.
  steps = [[of_size(int(n), i) for i, n in enumerate(draw.normal(287, 33, 32).clip(192, 380))] for _ in range(12)]
  tokens, places = computed(steps, rows=rows, lengths=row_layout.choose(steps[:8], rows=rows))
  assert tokens >= 0.9 * places


# Tokens of 64 prompts, and of 8 replies to each, in steps of a run on a GPU whose replies shrank by half. Its rows of
# 1,024 were .55 to .73 full.
SHRINKING = ((22758, 31456), (21567, 29440), (23102, 31180), (23005, 17483), (21867, 15925), (22939, 14315))


def shrinking(draw):
  """The items of such steps."""
  steps = []
  for prompts, replies in SHRINKING:
    more = draw.normal(0, 80, 64).clip(-160, 200)
    share = np.exp(draw.normal(0, 0.33, (64, 1)) + draw.normal(0, 0.25, (64, 8)))
    steps.append([])
    for group, size in enumerate((prompts / 64 + more - more.mean()).astype(int)):
      prompt = draw.integers(0, 9999, size)
      owns = (share[group] * replies / share.sum()).clip(8, 128).astype(int)
      steps[-1] += [reply(prompt, draw.integers(0, 9999, own + 1), group) for own in owns]
  return steps


@pytest.mark.parametrize("rows", (4, 16))
def test_rows_stay_full_while_replies_shrink(rows):
  steps, how = shrinking(np.random.default_rng(rows)), dict(rows=rows, sharing=row_layout.Sharing())
  lengths = row_layout.choose(steps[:1], context=768, **how)
  tokens = places = 0
  for items in steps:
    lengths = row_layout.extend([items], lengths=lengths, context=768, **how)
    tokens += sum(row_layout.Units.of(items, how["sharing"]).sizes)
    places += computed([items], lengths=lengths, **how)[1]
  assert len(lengths) <= 3 and tokens >= 0.9 * places and computed(steps, lengths=(1024,), **how)[1] > 1.2 * places


def test_given_lengths_are_kept_with_a_word_about_their_waste(caplog):
  # Rows of 128 hold one of 70 each: 1,280 places. Chosen ones have up to 4 · 70 tokens, so at most 384: five each.
  items = [of_size(70, n) for n in range(10)]
  assert row_layout.choose([items], rows=1, lengths=(128,)) == (128,)
  (said,) = caplog.messages
  assert "row_lengths=(128,): the rows of 10 sequences of 70 to 70 tokens have 1280 places, with (384,) they" in said
  caplog.clear()
  assert row_layout.choose([items], rows=1, lengths=(150,)) == (150,)  # two in a row: 750 places
  assert not caplog.messages
  assert row_layout.choose([items], rows=1, multiple=48) == (384,)
  assert "(384,) are chosen from 10 sequences of 70 to 70 tokens; rows are 91 % full" in caplog.text


def test_a_chosen_row_holds_the_context_and_no_more_than_four():
  assert [row_layout.longest(n) for n in (100, 448, 4096, 5000)] == [512, 1792, 4096, 5120]
  assert row_layout.longest(448, multiple=48) == 1920  # of 384
  assert row_layout.choose([[of_size(10)]], rows=1, context=300) == (128, 384)


@pytest.mark.parametrize("sharing", [None, row_layout.Sharing()])
def test_a_teacher_reads_the_same_tokens_behind_another_prompt(sharing):
  """Two samples of the prompt 1 2, which the teacher reads as 7 8 9; a third begins another conversation."""
  item = lambda tokens, prompt: packing.Item(
    np.asarray(tokens, np.int32), np.asarray(tokens) > 2, *np.zeros((2, len(tokens)), np.float32), teacher_prompt=prompt
  )
  items = [item([1, 2, 3, 4], (2, (7, 8, 9))), item([1, 2, 3, 5], (2, (7, 8, 9))), item([6, 6], (0, ()))]
  packed = packing.pack_items(items, rows=1, lengths=(12,), sharing=sharing, teacher_prompts=True)
  (block,), (rows,) = packed.blocks, packed.teacher_rows
  assert rows.tokens.shape == (1, 12) and rows.twins.shape == (1, 12)
  if sharing:  # the tree of the first two is 7 8 9 3, then 4 and 5
    assert sorted(rows.tokens[0].tolist()) == [0] * 4 + [3, 4, 5, 6, 6, 7, 8, 9]
  texts = set()
  for place in range(12):  # each token with those that it may attend to: its text so far
    before = [p for p in range(place + 1) if place < rows.until[0, p]]
    assert rows.positions[0, place] == max(len(before) - 1, 0)
    texts.add(tuple(rows.tokens[0, before].tolist()))
  assert texts >= {(7, 8, 9, 3, 4), (7, 8, 9, 3, 5), (6, 6)} and (7, 8, 9, 3, 4, 5) not in texts
  own = [place for place in range(12) if block.tokens[0, place] > 2]
  assert (rows.tokens[0, rows.twins[0, own]] == block.tokens[0, own]).all()
