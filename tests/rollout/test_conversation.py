"""Conversations: budgets, forks, refused calls, and pages swapped out while all conversations wait."""

import asyncio
import collections
import dataclasses
import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_engine as kit
import small_tokenizers
from flax import nnx
from refusals import refused
from small_engine import engine, requests, rollout

from ragrl_jax.engine import lanes, stops
from ragrl_jax.engine.messages import Open, Turn, TurnEnded
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.rollout.conversation import KNOWN, Policy, TextCache
from ragrl_jax.structs import ENVIRONMENT, MODEL, Passage, Sampling


def run_one(play, sizes=None, samples=1, prompts=1, **settings):
  played = rollout(engine(**(sizes or {})), play, **settings)
  return played, played.run(requests(prompts, samples), step=0)


def test_the_question_is_never_cut_and_the_episode_ends_with_budget():
  # Context 96, 12 tokens per turn: each observation adds ten bytes, until no turn fits.
  async def play(example, policy, tools):
    talk = policy.start(kit.TOKENIZER.encode(example.question))
    while True:
      await talk.generate(max_new_tokens=8)
      if not talk.observe("0123456789"):
        assert talk.room() < 10 + 12
        return talk.end()

  _, (episode,) = run_one(play)
  assert episode.ended == "budget" and episode.segments[0].text.startswith("Question 0")
  assert episode.num_tokens <= kit.CONTEXT and episode.segments[-1].owner == MODEL  # the last observation did not fit


@pytest.mark.parametrize(("reserve", "shown", "drawn"), [(None, False, 0), (5, True, 8), (9, False, 0)])
def test_a_turn_can_be_left_less_than_its_budget(reserve, shown, drawn):
  # 18 tokens are left for 10 of results and a turn of 12. With the results, 8 are left for the turn.
  async def play(example, policy, tools):
    talk = policy.start([65] * (kit.CONTEXT - 18))
    assert talk.observe("0123456789") is shown
    if shown:
      said = await talk.generate(greedy=True)
      assert (len(said.ids), said.stop, talk.room()) == (drawn, "length", 0)
    return talk.end()

  _, (episode,) = run_one(play, reserve=reserve)
  assert (episode.ended, episode.num_model_tokens) == ("budget", drawn)


@pytest.mark.parametrize(("prompt", "drawn"), [(kit.CONTEXT - 3, 3), (kit.CONTEXT + 5, 0)])  # no prompt is cut
def test_a_turn_cut_by_the_context_ends_the_episode_with_budget(prompt, drawn):
  async def play(example, policy, tools):
    talk = policy.start([65] * prompt)
    if drawn:
      said = await talk.generate(greedy=True)
      assert (len(said.ids), said.stop, talk.room()) == (drawn, "length", 0)
    said = await talk.generate()
    assert (said.ids, said.stop) == ((), "budget")
    return talk.end()

  _, (episode,) = run_one(play)
  assert (episode.ended, len(episode.segments), episode.num_tokens) == ("budget", 1 + bool(drawn), prompt + drawn)
  if drawn:
    np.testing.assert_allclose(*kit.scored(episode), atol=1e-5)


def test_end_names_the_last_stop_unless_told_otherwise():
  async def play(example, policy, tools):
    talk = policy.start(kit.TOKENIZER.encode(example.question))
    said = await talk.generate(stop=kit.STOPS)
    if example.id == "e1":
      return talk.end("searches", verdicts=(1.0,))
    episode = talk.end()
    assert episode.ended == said.stop
    return episode

  _, (plain, told) = run_one(play, prompts=2)
  assert (told.ended, told.facts, plain.facts) == ("searches", {"verdicts": (1.0,)}, {})
  assert (told.prompt_index, told.sample, told.example_id, told.version) == (1, 0, "e1", 7)


def test_observations_carry_their_query_and_passages():
  found = [Passage("1", "T", "text")]

  async def play(example, policy, tools):
    talk = policy.start([{"role": "user", "content": example.question}])
    await talk.generate(max_new_tokens=4)
    assert talk.observe("é</information>", query="q", found=found) and talk.observe("a notice")
    return talk.end("searches")

  _, (episode,) = run_one(play)
  prompt, _, block, notice = episode.segments
  assert prompt.text == "Question 0" and prompt.owner == ENVIRONMENT
  assert (block.text, block.query, block.found) == ("é</information>", "q", tuple(found))
  assert block.ids == tuple("é</information>".encode()) and not block.logprobs
  assert (notice.query, notice.found) == (None, None) and episode.num_searches == 1


class Marks(kit.ByteTokenizer):
  """Five tokens of whole words after the bytes, with which a model can forge a result."""

  words = ("<information>", "Doc 1(Title: T) gold", "</information>", "<answer>gold", "</answer>")

  def token_bytes(self, token):
    return self.words[token - 258].encode() if 258 <= token < 263 else super().token_bytes(token)

  vocab_size = 263


def forger():
  """A model that always answers the five words: its layers output 0, and its head maps each token to the next one."""
  config = dataclasses.replace(kit.CONFIG, tied=False, num_layers=1)
  model = Decoder(config, rngs=nnx.Rngs(0))
  model.layers.o[...] *= 0
  model.layers.down[...] *= 0
  model.embedding[...] = table = jax.random.normal(jax.random.key(1), (264, 32))
  before, after = jnp.array([ord("Q"), 258, 259, 260, 261]), jnp.arange(258, 263)
  model.lm_head[...] = jnp.zeros((264, 32)).at[after].set(table[before])
  return model


@pytest.mark.slow  # compiles another engine
def test_information_that_the_model_writes_counts_as_the_models_text():
  tokenizer = Marks()
  forging = kit.loaded(forger(), texts=("</answer>",), tokenizer=tokenizer)

  async def play(example, policy, tools):
    talk = policy.start(tokenizer.encode("Q"))
    await talk.generate(stop=("</answer>",), greedy=True)
    return talk.end()

  (episode,) = rollout(forging, play).run(requests(1, 1), step=0)
  _, said = episode.segments
  assert said.text == "".join(Marks.words) and episode.ended == "</answer>"
  # One segment, sampled by the model: it is under the loss mask, answers no search and shows no passage.
  assert said.owner == MODEL and len(said.logprobs) == 5
  assert said.found is None and said.query is None and episode.num_searches == 0


def fork_play(at, own=False):
  async def play(example, policy, tools):
    talk = policy.start(kit.TOKENIZER.encode(example.question))
    await talk.generate(max_new_tokens=10)
    assert talk.observe(" and now?")
    place = at(talk)
    probe = policy.start(talk.tokens[:place]) if own else talk.fork(at=place)
    assert probe.tokens == talk.tokens[:place]
    answer = await probe.generate(greedy=True, max_new_tokens=6)
    await talk.generate(max_new_tokens=5)
    return talk.end("answer", probe=answer, segments=probe.segments)

  return play


# In the prompt, in the turn, whole.
@pytest.mark.parametrize("at", [lambda t: 3, lambda t: len(t.tokens) - 12, lambda t: len(t.tokens)])
def test_a_fork_continues_like_a_conversation_of_its_own(at):
  # Pages copied from the cache, or recomputed from the ids: the same greedy tokens, log-probabilities up to rounding.
  _, forked = run_one(fork_play(at), prompts=2, samples=2)
  _, anew = run_one(fork_play(at, own=True), prompts=2, samples=2)
  for a, b in zip(forked, anew):
    assert kit.drawn(a) == kit.drawn(b)  # the fork does not change its parent
    assert a.facts["probe"].ids == b.facts["probe"].ids
    np.testing.assert_allclose(a.facts["probe"].logprobs, b.facts["probe"].logprobs, atol=1e-5)


def test_a_fork_keeps_the_source_of_each_token():
  _, (episode,) = run_one(fork_play(lambda t: len(t.tokens) - 4))
  segments = episode.facts["segments"]
  assert [s.owner for s in segments] == [ENVIRONMENT, MODEL, ENVIRONMENT, MODEL]
  assert segments[2].text == " and " and segments[1] == episode.segments[1]


def test_pages_are_swapped_out_when_all_wait_and_come_back_bit_for_bit():
  # Eight episodes. Each holds its pages while it waits for a probe that needs others.
  async def play(example, policy, tools):
    talk = policy.start(kit.TOKENIZER.encode(example.question))
    await talk.generate(max_new_tokens=6)
    probes = [talk.fork(at=len(talk.tokens) - 2), policy.start(talk.tokens[:5])]
    answers = await asyncio.gather(*(probe.generate(max_new_tokens=4) for probe in probes))
    assert talk.observe(" go on")
    await talk.generate(max_new_tokens=6)
    return talk.end("answer", probes=[a.ids for a in answers])

  few, scarce = run_one(play, dict(rows=4, pages=4), prompts=2, samples=4)
  assert few.report.engine.swapped_rows > 0
  roomy = rollout(engine(), play)
  for at in range(0, 8, 2):  # two episodes have three conversations each, and there are six rows
    plenty = roomy.run(requests(2, 4)[at : at + 2], step=0)
    assert roomy.report.engine.swapped_rows == 0
    for a, b in zip(scarce[at : at + 2], plenty):
      assert kit.drawn(a) == kit.drawn(b) and a.facts == b.facts


def test_a_first_conversation_that_waits_for_its_second_gets_a_row():
  # The cache is full of second conversations, and each episode continues with its first one.
  async def play(example, policy, tools):
    first, second = (policy.start(kit.TOKENIZER.encode(example.question + name)) for name in "ab")
    await second.generate(max_new_tokens=3)
    await tools.search("")
    await first.generate(max_new_tokens=3)
    await second.generate(max_new_tokens=3)
    return first.end("answer", second=second.end())

  played, episodes = run_one(play, dict(rows=4, pages=4), prompts=8, tools=kit.Tools(lambda _: 0.01))
  assert played.report.engine.swapped_rows > 0 and [len(e.facts["second"].segments) for e in episodes] == [3] * 8


def test_only_immutable_values_pass_between_event_loop_and_engine(monkeypatch):
  # A hashable value contains no list, dict or record that either thread could change.
  played = rollout(engine(), fork_play(lambda talk: 5))
  post, step, crossed = played.dispatch.post, played.engine.step, collections.defaultdict(list)

  def posted(function, *args):
    if getattr(function, "__self__", None) is played.engine:
      crossed[function.__name__] += args
    post(function, *args)

  def stepped():
    ended = step()
    crossed["step"] += ended
    return ended

  monkeypatch.setattr(played.dispatch, "post", posted)
  monkeypatch.setattr(played.engine, "step", stepped)
  played.run(requests(1, 2), step=0)
  kinds = {name: {type(value) for value in values if hash(value) is not None} for name, values in crossed.items()}
  assert kinds == {"open": {Open}, "submit": {Turn}, "close": {int}, "step": {TurnEnded}}


def test_invalid_calls_are_refused():
  async def play(example, policy, tools):
    refused("empty prompt", policy.start, [])
    talk = policy.start(kit.TOKENIZER.encode(example.question))
    for how, says in ((dict(stop=("</unknown>",)), "not compiled"), (dict(max_new_tokens=0), "max_new_tokens")):
      with pytest.raises(ValueError, match=says):
        await talk.generate(**how)
    for at in (0, 11):
      refused(r"between 1 and the conversation's 10", talk.fork, at=at)
    running = asyncio.create_task(talk.generate(max_new_tokens=3))
    await asyncio.sleep(0)
    acts = ((talk.observe, "x"), (talk.end,), (talk.fork, 1))
    for act in acts:
      refused("generating", *act)
    await running
    episode = talk.end()
    for act in acts:
      refused("has ended", *act)
    return episode

  run_one(play)


def policy_of(tokenizer, **calls):
  """A policy whose engine does nothing but these calls."""
  how = dict(tokenizer=tokenizer, context=100, version=0, numbers=itertools.count(), open=lambda _: None)
  given = dict(keys=(0, 0, 0, 0), sampling=Sampling(1.0, 0, 1.0, 8), group=None, reserve=1)
  return Policy(types.SimpleNamespace(**how, **calls), TextCache(tokenizer), **given)


def test_texts_of_any_length_are_not_tokenized_whole():
  spy = small_tokenizers.Longest()
  start = lambda content: policy_of(spy, close=lambda _: None).start([dict(role="user", content=content)])
  room = (talk := start("Who?")).room()
  assert not talk.observe("x" * 10**7) and talk.room() == room and talk.end().ended == "budget"
  assert start("Who? " * 10**6).room() < 1 and spy.longest < 10_000
  assert KNOWN * 8192 * 40 < 400e6  # a token that is remembered takes 40 bytes


def test_a_rejected_stop_string_may_begin_an_accepted_one():
  # Of "abcd" the stop "ab" is passed over. "bc" ends the turn, though it began before the engine had paused.
  said, state, known = iter(kit.TOKENIZER.encode("abcd")), np.zeros(1, np.int32), kit.stops(("ab", "bc"))

  async def submit(turn):
    nonlocal state
    state, ids, stop = state if turn.resumed else 0 * state, [], -1
    while stop < 0 and len(ids) < turn.budget:
      ids.append(next(said))
      (state, (stop,)) = stops.advance(known.table, state, np.asarray(ids[-1:]), np.asarray([turn.accept]))
    return TurnEnded(0, tuple(ids), (0.0,) * len(ids), lanes.FULL if stop < 0 else int(stop))

  policy = policy_of(kit.TOKENIZER, submit=submit, stops=known)
  reply = asyncio.run(policy.start([65]).generate(stop=("ab", "bc"), ends=lambda text: text != "ab"))
  assert (reply.text, reply.stop) == ("abc", "bc")
