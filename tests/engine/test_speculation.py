"""Speculation changes no token: an engine that drafts against one that does not, with a model that repeats itself."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import small_engine as kit
from flax import nnx
from refusals import refused
from small_engine import requests, rollout

from ragrl_jax import structs
from ragrl_jax.engine import lanes, programs, sizes as sizes_lib
from ragrl_jax.engine.messages import Open, Turn
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.settings import Rollout

STOPS = ("ef", "`a", "</search>", "mno", "tuv")
K = 4
# Few pages, so that conversations are swapped out in the midst of their turns.
SIZES = dict(chunk=4, page=8, pages=26)


@functools.cache
def model():
  """A decoder that mostly counts in rounds of eight bytes, abcdefg`abc…, and now and then jumps."""
  made = Decoder(dataclasses.replace(kit.CONFIG, tied=False), rngs=nnx.Rngs(0))
  follows = lambda i: i - i % 8 + (i + 1) % 8
  before = np.argsort([follows(i) for i in range(kit.CONFIG.vocab_size)])
  made.lm_head[...] = 4.0 * made.embedding[...][before]
  made.embedding[...] *= 8.0  # the layers' outputs matter less, and matter
  return made


@functools.cache
def engine(speculate):
  return kit.loaded(model(), 7, texts=STOPS, speculate=speculate, **SIZES)


async def play(example, policy, tools):
  """Turns of many lengths, some of which end at a stop, with observations and greedy forks between."""
  number = int(example.id[1:])
  talk = policy.start(kit.TOKENIZER.encode(example.question + "abcdefg`"[: number % 8]))
  facts = []
  for budget in (14, 1 + number % 7, 2, 20):
    said = await talk.generate(stop=STOPS[: number % 6], max_new_tokens=budget)
    if number % 2 and said.ids:
      probe = talk.fork(at=len(talk.tokens) - len(said.ids) // 2)
      facts.append(list((await probe.generate(greedy=True, max_new_tokens=6)).ids))
    found = await tools.search(said.text)
    if not talk.observe(f"[{found[0].text}]", query=said.text, found=found):
      break
  return talk.end(probes=facts)


said = lambda episode: ([(s.owner, s.ids, s.stop) for s in episode.segments], episode.facts, episode.ended)
LONG = [pytest.param(x, marks=pytest.mark.long) for x in (dict(), dict(top_k=3), dict(top_p=0.7))]


@pytest.mark.parametrize("sampling", [*LONG, dict(temperature=0.6), dict(top_k=5, top_p=0.9), "greedy"])
def test_tokens_stops_and_logprobs_are_those_without_drafts(sampling):
  greedy, settings = sampling == "greedy", {} if sampling == "greedy" else sampling
  plain, drafting = (rollout(engine(k), play, **settings) for k in (0, K))
  asked = requests(7, 3)
  one, other = (played.run(asked, step=1, greedy=greedy) for played in (plain, drafting))
  for a, b in zip(one, other, strict=True):
    assert said(a) == said(b)
    kit.check_close(a, b)
  assert {"ef", "length"} <= {s.stop for e in one for s in e.segments}
  before, after = plain.report.engine, drafting.report.engine
  assert after.sampled_tokens == before.sampled_tokens == before.drawing_steps > 400
  assert after.swapped_rows > 0 and before.swapped_rows > 0
  # Drafts were kept, others were not, and they are what made the steps fewer.
  assert after.tokens_per_step > 1.25 and 0.1 < after.kept_share < 1
  assert before.tokens_per_step == 1 and before.drafted_tokens == 0 and before.kept_share == 0
  # A kept draft saves a step. Only one that ends its turn does not: that step draws no token after it.
  turns = sum(s.owner == structs.MODEL for e in other for s in e.segments) + sum(len(e.facts["probes"]) for e in other)
  saved = after.sampled_tokens - after.drawing_steps
  assert saved <= after.kept_tokens <= saved + turns


def test_recorded_logprobs_are_the_forward_passes_over_the_whole_conversation():
  forward = jax.jit(model())
  for episode in rollout(engine(K), play, temperature=0.7).run(requests(4, 2), step=2):
    np.testing.assert_allclose(*kit.scored(episode, 0.7, forward=forward), rtol=0, atol=1e-5)


def test_delays_and_company_change_no_bit_of_an_episode():
  asked = requests(4, 4)
  together = rollout(engine(K), play).run(asked, step=3)
  rng = np.random.default_rng(0)
  tools = kit.Tools(lambda query: float(rng.exponential(0.01)))
  order = np.random.default_rng(1).permutation(len(asked))
  for i, episode in zip(order, rollout(engine(K), play, tools=tools).run([asked[i] for i in order], step=3)):
    assert kit.drawn(episode) == kit.drawn(together[i]) and said(episode) == said(together[i])
  for i in (0, 5, 11):
    (alone,) = rollout(engine(K), play).run([asked[i]], step=3)
    assert kit.drawn(alone) == kit.drawn(together[i])


def turn(e, text, **asked):
  """(ids, stop) of a greedy turn of a fresh conversation, and the tokens that the cache then holds."""
  e.open(Open(0, tuple(kit.TOKENIZER.encode(text)), (1, 2)))
  e.submit(Turn(0, temperature=0.0, **asked))
  (ended,) = kit.finished(e)
  cached = e._conversations[0].cached
  e.close(0)
  assert not kit.held(e)
  return ended.ids, ended.stop, cached


def test_a_turn_ends_within_a_draft_where_it_would_end_without():
  e, text = engine(K), "abcdefg`" * 3
  rounds = tuple(b"abcdefg`" * 4)
  for budget in range(1, 26):  # a chunk draws up to 20
    assert turn(e, text, budget=budget) == (rounds[:budget], lanes.FULL, len(text) + budget - 1)
  for string, ends in (("ef", 6), ("`a", 9)):
    accept = e.stops.mask([string])
    assert turn(e, text, budget=20, accept=accept) == (rounds[:ends], STOPS.index(string), len(text) + ends - 1)
    # A stop that the budget's last token completes is a stop; a token less is none.
    assert turn(e, text, budget=ends, accept=accept)[1] == STOPS.index(string)
    assert turn(e, text, budget=ends - 1, accept=accept)[:2] == (rounds[: ends - 1], lanes.FULL)


def test_a_step_draws_the_whole_draft_and_one_more():
  e = engine(K)
  counters = e.restart_counters()
  turn(e, "abcdefg`" * 2, budget=20)
  assert (counters.sampled_tokens, counters.drawing_steps, counters.chunks) == (20, 4, 1)
  assert counters.drafted_tokens == counters.kept_tokens == 16
  assert counters.tokens_per_step == K + 1 and counters.kept_share == 1
  # Its 4 steps are those of the only lane that drew, of 4 lanes.
  assert counters.lane_steps == 16 and counters.occupancy == 0.25


def test_a_draft_is_what_followed_the_longest_and_latest_equal_end():
  def expected(ids, size):
    newest, best = len(ids) - 1, (0, 0)
    for place in range(newest):
      run = 0
      while run < programs.LONGEST and run <= place and ids[place - run] == ids[newest - run]:
        run += 1
      best = max(best, (run, place))
    run, place = best
    if run < programs.SHORTEST:
      return None
    grown = list(ids)
    for j in range(size):  # what is drafted may be drafted again
      grown.append(grown[place + 1 + j])
    return grown[len(ids) :]

  rng = np.random.default_rng(0)
  found_some = 0
  for alphabet in (2, 3, 6, 40):
    lengths = rng.integers(1, 33, 64)
    ids = rng.integers(0, alphabet, (64, 32))  # the ids after a lane's tokens are arbitrary
    draft, found = jax.jit(programs.look_up, static_argnums=2)(ids.astype(np.int32), (lengths - 1).astype(np.int32), 5)
    for row, length in enumerate(lengths):
      want = expected(ids[row, :length].tolist(), 5)
      assert bool(found[row]) == (want is not None)
      assert want is None or draft[row].tolist() == want
      found_some += want is not None
  assert 100 < found_some < 256


def test_drafting_compiles_nothing_after_warm_up_and_copies_no_cache():
  e = engine(K)
  sizes = lambda: [getattr(e._kv.programs, name)._cache_size() for name in ("decode", "extend", "copy", "put", "take")]
  before = sizes()
  rollout(e, play).run(requests(3, 3), step=5)
  rollout(e, play, top_k=3, top_p=0.5).run(requests(2, 2), step=6)
  e.load(nnx.split(model())[1], version=8)
  rollout(e, play, temperature=0.3).run(requests(2, 2), step=7, greedy=True)
  assert sizes() == before
  cache, limits = e._kv.cache, np.zeros((1, 2), np.int32)
  kit.check_in_place(e._kv.programs.decode, cache, e._kv.weights, cache, e._packed, e._table, limits)


def test_the_setting_reaches_the_engine_and_is_checked():
  assert sizes_lib.from_settings(Rollout(speculate=6, chunk=10), None).ahead == 70
  assert sizes_lib.from_settings(Rollout(), None).ahead == Rollout.chunk  # off unless it is asked for
  refused(r"config\.rollout\.speculate=512.*context=512", Rollout, speculate=512)
  refused("speculate", Rollout, speculate=-1)
