"""The engine against the model's own forward pass, and against itself under other conditions."""

import itertools

import jax
import numpy as np
import pytest
import small_engine as kit
from flax import nnx
from patience import reached
from refusals import refused
from small_engine import engine, requests, rollout

from ragrl_jax import structs
from ragrl_jax.core import sampling
from ragrl_jax.engine import lanes, loader
from ragrl_jax.engine.engine import Engine
from ragrl_jax.engine.messages import Open, Turn
from ragrl_jax.engine.sizes import Sizes
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.rollout import conversation


@pytest.mark.parametrize("how", [dict(), dict(temperature=0.6), dict(top_k=5, top_p=0.9)], ids=str)
def test_recorded_logprobs_equal_a_forward_pass_over_the_whole_conversation(how):
  # Three turns with observations in between. Each turn continues from the cache; nothing is computed twice. Filters
  # record the unfiltered distribution.
  episodes = rollout(engine(), **how).run(requests(3, 4), step=0)
  for episode in episodes:
    np.testing.assert_allclose(*kit.scored(episode, how.get("temperature", 1.0)), atol=1e-5)
  assert sum(len(e.segments) > 3 for e in episodes) > 6


def test_greedy_takes_the_likeliest_token_as_filters_do_that_leave_one_and_records_temperature_one():
  (episode,) = rollout(engine(), temperature=0.6).run(requests(1, 1), step=0, greedy=True)
  for how in (dict(top_k=1), dict(top_p=1e-6)):
    assert kit.drawn(rollout(engine(), **how).run(requests(1, 1), step=0)[0])[0] == kit.drawn(episode)[0]
  np.testing.assert_allclose(*kit.scored(episode), atol=1e-5)
  ids, first = kit.padded(episode), len(episode.segments[0].ids)
  assert ids[0, first] == np.argmax(kit._forward(0)(ids)[0, first - 1])


def test_segments_alternate_and_their_ids_are_the_record():
  for episode in rollout(engine()).run(requests(2, 2), step=1):
    owners = [s.owner for s in episode.segments]
    assert owners[0] == structs.ENVIRONMENT and set(owners[1::2]) == {structs.MODEL}
    for segment in episode.segments:
      if segment.owner == structs.MODEL:
        assert len(segment.ids) == len(segment.logprobs) <= 12 and segment.text == kit.TOKENIZER.decode(segment.ids)
        if segment.stop == "eos":
          assert segment.ids[-1] in kit.TOKENIZER.eos_ids  # EOS is kept if it was sampled
        elif segment.stop == "length":
          assert len(segment.ids) == 12
        else:
          assert segment.text.endswith(segment.stop) and segment.stop in kit.STOPS


def test_no_two_samples_of_a_group_share_random_numbers():
  numbers = itertools.product(range(4), range(8), range(8), range(3))  # steps, prompts, samples, conversations
  keys = {conversation.key_of(3, *each) for each in numbers}
  assert len(keys) == 4 * 8 * 8 * 3
  episodes = rollout(engine()).run(requests(2, 8), step=0)
  assert len({kit.drawn(e)[0][0] for e in episodes[:8]}) == 8
  # A refill continues with the sample numbers, and another step draws other numbers.
  again = rollout(engine()).run(requests(2, 8), step=1)
  assert all(kit.drawn(a) != kit.drawn(b) for a, b in zip(episodes, again))


def test_a_shared_prompt_changes_nothing_and_is_computed_once():
  # Six conversations at a time, groups of eight: the prompt's pages live longer than the first samples.
  asked = requests(3, 8)
  shared = rollout(engine())
  episodes = shared.run(asked, step=0)
  alone, computed = rollout(engine()), 0
  for sample in range(8):  # one sample of each prompt per run, so there is no group to share with
    mine = [r for r in asked if r.sample == sample]
    for request, episode in zip(mine, alone.run(mine, step=0), strict=True):
      assert kit.drawn(episode) == kit.drawn(episodes[asked.index(request)])
    assert alone.report.engine.shared_tokens == 0
    computed += alone.report.engine.prefilled_tokens
  prompts = sum(len(r.example.question) - 1 for r in asked)
  assert shared.report.engine.shared_tokens == prompts
  assert computed - shared.report.engine.prefilled_tokens == prompts - prompts // 8
  assert kit.held(shared.engine) == 0  # all holders have released them
  assert shared.engine._turns._of_group == {}  # a server's groups never end otherwise


@pytest.mark.parametrize("speculate", [0, pytest.param(3, marks=pytest.mark.long)])  # compiles another engine
def test_turns_that_samples_have_in_common_are_computed_once(speculate):
  asked = requests(1, 4)  # greedy, so all samples say and find the same
  together, alone = rollout(engine(speculate=speculate)), rollout(engine(speculate=speculate))
  episodes = together.run(asked, step=0, greedy=True)
  for request, episode in zip(asked, episodes, strict=True):
    (single,) = alone.run([request], step=0, greedy=True)
    assert kit.drawn(single) == kit.drawn(episode) and len(single.segments) > 3
  assert together.report.engine.prefilled_tokens == alone.report.engine.prefilled_tokens  # of one sample
  assert kit.held(together.engine) == 0
  assert not any(replica.prefilled for replica in together.engine._replicas)


def test_several_prompts_are_shared_at_the_same_time():
  asked = requests(3, 2)
  played = rollout(engine())
  episodes = played.run(asked, step=0)
  assert played.report.engine.shared_tokens == sum(len(r.example.question) - 1 for r in asked)
  assert kit.held(played.engine) == 0
  for request, episode in zip(asked, episodes):
    assert kit.drawn(episode) == kit.drawn(played.run([request], step=0)[0])


def test_random_delays_and_permuted_rows_change_no_bit():
  asked = requests(4, 4)
  straight = rollout(engine()).run(asked, step=2)
  rng = np.random.default_rng(0)
  for trial in range(2):
    delays = kit.Tools(lambda query: float(rng.exponential(0.01)))
    order = np.random.default_rng(trial).permutation(len(asked))
    episodes = rollout(engine(), tools=delays).run([asked[i] for i in order], step=2)
    for i, episode in zip(order, episodes):
      assert episode.prompt_index == asked[i].prompt_index and episode.sample == asked[i].sample
      assert kit.drawn(episode) == kit.drawn(straight[i])


@pytest.mark.long  # compiles another engine
def test_with_other_lanes_tokens_differ_only_near_the_boundaries_of_a_draw():
  asked = requests(6, 8)
  few, many = rollout(engine()).run(asked, step=4), rollout(engine(lanes=32, rows=32)).run(asked, step=4)
  before = total = 0
  for a, b in zip(few, many):
    total += sum(len(s.ids) for s in a.segments if s.owner == structs.MODEL)
    for segment, other in zip(a.segments, b.segments):
      common = [x == y for x, y in zip(segment.ids, other.ids)]
      at = common.index(False) if False in common else len(common)
      if segment.owner == structs.MODEL:
        before += at
      if at < max(len(segment.ids), len(other.ids)):
        assert segment.owner == structs.MODEL
        assert _distance_to_an_edge(a, segment, at) < 1e-5
        break
  assert total > 500 and before >= 0.999 * total


def _distance_to_an_edge(episode, segment, at):
  """Distance of the number that drew token `at` of the segment from a boundary of the model's distribution."""
  segments = episode.segments
  place = at + sum(len(s.ids) for s in segments[: next(i for i, s in enumerate(segments) if s is segment)])
  key = np.array([conversation.key_of(3, 4, episode.prompt_index, episode.sample, 0)], np.int32).view(np.uint32)
  number = float(sampling.uniforms(key, np.array([place], np.int32))[0])
  logits = np.asarray(kit._forward(0)(kit.padded(episode))[0][place - 1], np.float64)
  weights = np.exp(logits - logits.max())
  return np.abs(np.cumsum(weights) / weights.sum() - number).min()


def test_nothing_compiles_after_warm_up():
  async def mixed(example, policy, tools):
    talk = policy.start(kit.TOKENIZER.encode(example.question * (1 + int(example.id[1:]) % 4)))
    await talk.generate(stop=kit.STOPS, max_new_tokens=5)
    probe = talk.fork(at=len(talk.tokens) - 2)
    await probe.generate(greedy=True, max_new_tokens=3)
    for n in (1, 20, 9):
      if not talk.observe("y" * n):
        break
      await talk.generate(stop=kit.STOPS[:2])
    return talk.end()

  fresh = kit.loaded(kit.model())
  played = rollout(fresh, mixed)
  with kit.compilations() as heard:
    played.run(requests(5, 3), step=0)
    rollout(fresh, top_k=3, top_p=0.5).run(requests(3, 2), step=1)
    fresh.load(jax.tree.map(lambda x: x, nnx.state(kit.model())), version=2)
    played.run(requests(2, 2), step=2, greedy=True)
  assert played.report.engine.sampled_tokens > 50 and not heard


def test_decoding_copies_no_cache():
  e = engine()
  ints, cache, weights = lambda *shape: np.zeros(shape, np.int32), e._kv.cache, e._kv.weights
  kit.check_in_place(e._kv.programs.decode, cache, weights, cache, e._packed, e._table, ints(1, 2))
  extension = ints(2, 32), ints(2, 2), ints(2, e.sizes.table)
  kit.check_in_place(e._kv.programs.extend, cache, weights, cache, *extension)
  kit.check_in_place(e._kv.programs.copy, cache, cache, ints(4, 2))


def test_a_waiting_conversation_gives_up_its_lane():
  # Six conversations over four lanes. No search ends before all six search, so a waiting one must not hold its lane.
  searching = []

  def slow(query):
    searching.append(query)
    return reached(lambda: len(searching) >= 6)

  played = rollout(engine(), tools=kit.Tools(before=slow))
  played.run(requests(3, 2), step=0)
  assert kit.SIZES["lanes"] < 6 <= len(searching) and played.report.wait_s > 0


def submitted(e, ids, budget=4):
  """The engine's record of a conversation whose first turn has started."""
  e.open(Open(0, tuple(ids), (1, 2)))
  e.submit(Turn(0, budget=budget))
  return e._conversations[0]


def test_the_engine_alone_needs_no_event_loop():
  e = engine()
  record = submitted(e, kit.TOKENIZER.encode("Hello"))
  (ended,) = kit.finished(e)
  assert ended.conversation == 0 and ended.stop == lanes.FULL and len(ended.ids) == 4
  assert tuple(record.ids[5:]) == ended.ids and record.missing == 0
  e.close(0)
  assert not kit.held(e) and not e._conversations


def test_only_equal_prefills_are_shared():
  # 0 and 2 sample their tokens after the fifth; 1 gets two of these as text, whose keys round in another way.
  e, text, new = engine(), tuple(kit.TOKENIZER.encode("Hello")), tuple(kit.TOKENIZER.encode(" found"))
  said = ()
  for number in range(3):
    ids, budget = text + said[: 2 * (number == 1)], 2 if number == 1 else 4
    e.open(Open(number, ids, (1, 2)))
    e.submit(Turn(number, budget=budget))
    (ended,) = kit.finished(e)
    said = said or ended.ids
    assert e._conversations[number].ids == [*text, *said]
  before = e.counters.shared_tokens
  for number, shared in ((0, 0), (1, 0), (2, len(new))):  # all but the newest token, and the last that was sampled
    e.submit(Turn(number, new, budget=1))
    kit.finished(e)
    assert e.counters.shared_tokens - before == shared
  for number in range(3):
    e.close(number)
  assert not kit.held(e)


def test_pages_are_not_freed_during_a_turn_that_nothing_awaits():
  e = engine()
  record = submitted(e, kit.TOKENIZER.encode("Hello"), budget=20)
  assert e.step() == []  # 8 of 20 tokens
  e.close(0)
  assert kit.held(e) == 1
  kit.finished(e)
  assert kit.held(e) == 0 and len(record.ids) == 25


def test_weights_do_not_change_under_an_open_conversation():
  e = engine()
  submitted(e, [1, 2, 3])
  refused("open", e.load, e.weights, version=8)
  kit.finished(e)
  refused("open", e.load, e.weights, version=8)
  e.close(0)
  e.load(e.weights, version=7)


def test_messages_that_do_not_match_the_conversation_are_refused():
  e = engine()
  refused("not open", e.submit, Turn(0))
  refused("at least one token", e.open, Open(0, (), (1, 2)))
  submitted(e, [1, 2, 3])
  refused("turn under way", e.submit, Turn(0))
  refused("no open conversation has", e.open, Open(0, (1,), (1, 2)))
  refused("not open", e.open, Open(1, (1,), (1, 2), parent=5))
  e.reset()
  e.close(0)  # a late message: after an error the conversation is closed already
  assert not e._conversations and not e.busy


def test_a_cache_that_holds_no_conversation_is_refused():
  refused("pages=2", Sizes, **kit.SIZES | dict(pages=2))


def test_the_narrowest_extension_that_holds_the_missing_tokens_is_taken():
  sizes = {prefill: Sizes(lanes=1, rows=1, context=512, prefill=prefill) for prefill in (128, 64, 16)}
  assert [one.widths for one in sizes.values()] == [{128: 4, 64: 8, 32: 16}, {64: 4, 16: 16}, {16: 4}]
  assert [sizes[128].width(missing) for missing in (140, 65, 64, 33, 32, 1)] == [128, 128, 64, 64, 32, 32]


def test_an_engine_without_weights_says_so():
  e = Engine(None, kit.TOKENIZER, kit.stops(), Sizes(**kit.SIZES))
  refused("load", rollout(e).run, requests(1, 1), step=0)


def test_weights_that_were_donated_are_not_used():
  e, params = engine(), nnx.split(kit.model())[1]
  given = jax.tree.map(jax.numpy.copy, params)
  e.load(given, version=3)
  jax.jit(lambda tree: jax.tree.map(lambda x: x * 1, tree), donate_argnums=0)(given)
  refused("version 3 were donated", rollout(e).run, requests(1, 1), step=0)
  e.load(params, version=7)  # the other tests' weights


def test_an_engine_with_its_own_weights_keeps_sampling_when_the_learners_are_overwritten():
  # Casting copies nothing in float32, nor norms in bfloat16. Without a copy these arrays would be the learner's.
  for dtype in (jax.numpy.float32, jax.numpy.bfloat16):
    _, params = nnx.split(Decoder(kit.CONFIG, rngs=nnx.Rngs(0), dtype=dtype))
    cast = loader.Caster(dtype, kit.CONFIG, own=True)
    own, before, stacked = cast(params), cast(params), np.array(params["layers"]["q"][...])
    jax.jit(lambda tree: jax.tree.map(lambda x: x * 2, tree), donate_argnums=0)(params)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(params))
    for mine, old in zip(jax.tree.leaves(own), jax.tree.leaves(before), strict=True):
      np.testing.assert_array_equal(np.asarray(mine, np.float32), np.asarray(old, np.float32))
    np.testing.assert_array_equal(own.layers[1]["q"][...], stacked[1].astype(dtype))
