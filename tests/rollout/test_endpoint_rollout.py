"""Every recipe's own turns over a server's protocols, without HTTP: the server is a function."""

import asyncio
import dataclasses
import threading
import types

import pytest
from refusals import refused

from ragrl_jax import recipes, structs
from ragrl_jax.chat.client import Completion, NoCompletion, daemon
from ragrl_jax.prompting.marked import MarkedTokenizer
from ragrl_jax.prompting.tokenizer import ByteTokenizer
from ragrl_jax.rollout import dispatch, endpoint_rollout
from ragrl_jax.rollout.collect import Request
from ragrl_jax.rollout.endpoint_client import CHAT, COMPLETIONS, CONTINUE, Server
from ragrl_jax.rollout.tools import RetrievalTools
from ragrl_jax.structs import Example, Passage

FOUND = Passage("a", "Norsk", "Its seat is Oslo. Ann Lee leads it.")
MARKED = dict(supporting=(0,), evidence=((0, "Ann Lee leads it."),))
EXAMPLE = Example("1", "Who leads Norsk?", ("Ann Lee",), (FOUND,), **MARKED)
PRESETS = [(name, preset) for name, room in recipes.RECIPES.items() for preset in room.PRESETS]
# A reply that every recipe makes something of; it has logprobs for those that look at them.
SAID = (
  "<think> x <retrieval>Ann Lee leads it.</retrieval></think><relevance> [1] </relevance><analysis> y </analysis>"
  "<reason>r 1</reason><extract>Ann Lee leads it.</extract><need> A </need><summary> Ann. </summary>"
  "<answer> Ann Lee </answer> Answer: Ann Lee \\boxed{Ann Lee}"
)


class Asked:
  """A server that gives the same reply to every request, and keeps the requests."""

  def __init__(self, says=SAID):
    self.says, self.asked = says, []

  async def ask(self, question, **sampling):
    await asyncio.sleep(0)
    self.asked.append((question, sampling))
    said = self.says(question, len(self.asked)) if callable(self.says) else self.says
    if isinstance(said, Exception):
      raise said
    return Completion(said, tokens_in=7, tokens_out=3, logprobs=((said.encode(), -1.0),) if said else ())


class Tools:
  async def search(self, query, k=None):
    return (FOUND,)

  async def judge(self, pairs, term=""):
    return (1.0,) * len(pairs)

  async def embed(self, texts):
    return ((1.0,),) * len(texts)


def rollout(recipe, asked, protocol=CHAT, *, play=None, tools=None, context=20_000, **server):
  tokenizer = ByteTokenizer() if protocol == COMPLETIONS else MarkedTokenizer(ByteTokenizer())
  given = Server(asked, protocol, context, **server), tokenizer, recipe.stops, play or recipe.play, tools or Tools()
  how = dict(seed=0, sampling=structs.Sampling(1.0, 0, 1.0, 500), reserve=None, dispatch=dispatch.Dispatch())
  return endpoint_rollout.EndpointRollout(*given, **how)


def played(recipe, asked, protocol=CHAT, *, requests=None, greedy=True, **more):
  """The episodes in the order of their numbers."""
  groups = [[one] for one in requests or [Request(EXAMPLE, 0)]]
  found = rollout(recipe, asked, protocol, **more).stream(groups, step=0, at_once=8, greedy=greedy)
  return sorted(found, key=lambda episode: (episode.prompt_index, episode.sample))


@pytest.mark.parametrize("protocol", [CHAT, CONTINUE, COMPLETIONS])
@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_every_recipe_is_played_over_every_protocol(name, preset, protocol):
  recipe = recipes.get(name, preset)
  # These continue a text that they have begun themselves; a chat's server cannot.
  begins = (name, preset) == ("untrained", "flare") or (name == "lear" and set(recipe.switches["answers"]) & set("re"))
  if protocol == CHAT and begins:
    refused("config.endpoint.protocol='continue'", played, recipe, Asked(), protocol, logprobs=True)
    return
  (episode,) = played(recipe, Asked(), protocol, logprobs=True)
  assert episode.ended and episode.ended != "failed", episode.failure
  assert set(recipe.score(EXAMPLE, episode)) == set(recipe.weights(0))
  used = episode.facts["usage"]
  assert used["calls"] >= 1 and used["tokens_in"] == 7 * used["calls"] and used["tokens_out"] == 3 * used["calls"]
  sent = ByteTokenizer()
  for segment in episode.segments:
    if segment.owner == structs.MODEL:
      assert sent.decode(segment.ids) == segment.text and len(segment.logprobs) == len(segment.ids)


def test_a_tool_that_fails_ends_its_own_episode_and_a_bug_all():
  fails = lambda question, n: NoCompletion("gone") if n == 1 else "<answer> a </answer>"
  recipe = recipes.get("untrained", "closed_book")
  found = played(recipe, Asked(fails), requests=[Request(EXAMPLE, i) for i in range(3)], concurrency=1)
  assert [e.ended for e in found] == ["failed", "answer", "answer"] and found[0].failure == "gone"
  with pytest.raises(RuntimeError, match="bug"):
    played(recipe, Asked(lambda question, n: RuntimeError("bug")), requests=[Request(EXAMPLE, i) for i in range(3)])


def test_episodes_that_ended_before_a_bug_are_yielded_first():
  recipe, held, ended = recipes.get("untrained", "closed_book"), threading.Event(), []

  async def play(example, policy, tools):
    if example.id == "ok":
      episode = await recipe.play(example, policy, tools)
      server.dispatch.post(held.wait, 60)  # the caller's thread hears of both ends at once
      ended.append("ok")
      return episode
    while not ended:
      await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.1, held.set)
    raise RuntimeError("bug")

  server = rollout(recipe, Asked(), play=play)
  requests = [Request(dataclasses.replace(EXAMPLE, id=name), i) for i, name in enumerate(["ok", "bad"])]
  stream = server.stream([requests], step=0, at_once=2)
  assert next(stream).example_id == "ok"
  refused("bug", next, stream, error=RuntimeError)


def test_a_stream_that_is_left_early_cancels_what_is_played():
  recipe, begun, cancelled = recipes.get("untrained", "closed_book"), [], []

  async def play(example, policy, tools):
    begun.append(example.id)
    while len(begun) < 3:  # what has not begun is not told that it is cancelled
      await asyncio.sleep(0)
    if example.id != "0":
      try:
        await asyncio.sleep(3600)
      except asyncio.CancelledError:
        cancelled.append(example.id)
        raise
    return await recipe.play(example, policy, tools)

  asked = [[Request(dataclasses.replace(EXAMPLE, id=str(i)), i)] for i in range(5)]
  server = rollout(recipe, Asked(), play=play)
  before = set(threading.enumerate())
  stream = server.stream(asked, step=0, at_once=3)
  assert next(stream).example_id == "0"
  stream.close()
  left = {thread.name for thread in set(threading.enumerate()) - before}
  assert sorted(cancelled) == ["1", "2"] and "episodes" not in left
  assert [e.example_id for e in server.stream(asked[:1], step=0, at_once=3)] == ["0"]


def test_tools_serve_the_next_stream_after_one_that_was_left_during_a_search():
  recipe, searching, go_on, searched = recipes.get("untrained", "closed_book"), threading.Event(), threading.Event(), []

  def search(queries, k):
    searched.extend(queries)
    searching.set()
    assert go_on.wait(60)
    return [[FOUND]] * len(queries)

  async def play(example, policy, tools):
    if example.id == "0":
      await asyncio.to_thread(searching.wait, 60)
    else:
      await tools.search(example.id)
    return await recipe.play(example, policy, tools)

  # The search for 1 is in flight, and that for 2 waits for it.
  tools = RetrievalTools(types.SimpleNamespace(search=search), workers=1, max_batch=1)
  server = rollout(recipe, Asked(), play=play, tools=tools)
  asked = [[Request(dataclasses.replace(EXAMPLE, id=str(i)), i)] for i in range(3)]
  stream = server.stream(asked, step=0, at_once=3)
  assert next(stream).example_id == "0"
  stream.close()
  go_on.set()
  again = daemon(list, server.stream(asked[1:2], step=0, at_once=1)).result(60)  # it would wait for ever
  assert [episode.example_id for episode in again] == ["1"] and searched == ["1", "1"]


def test_what_needs_the_accelerator_runs_on_the_callers_thread():
  recipe, seen = recipes.get("untrained", "closed_book"), []

  async def play(example, policy, tools):
    seen.append(await asyncio.to_thread(server.dispatch.call, threading.get_ident))
    return await recipe.play(example, policy, tools)

  server = rollout(recipe, Asked(), play=play)
  assert len(list(server.stream([[Request(EXAMPLE, 0)]], step=0, at_once=1))) == 1 and seen == [threading.get_ident()]


def test_the_context_is_kept():
  recipe = recipes.get("search_r1", instructions="none")
  (episode,) = played(recipe, Asked("<search> " + "x" * 80), context=900)
  assert episode.ended == "budget" and episode.num_tokens <= 900


def test_draws_are_told_apart_and_greedy_answers_are_not():
  recipe, requests = recipes.get("untrained", "closed_book"), [Request(EXAMPLE, 0, sample) for sample in range(3)]
  drawn, greedy = Asked(), Asked()
  played(recipe, drawn, requests=requests, greedy=False)
  played(recipe, greedy, requests=requests)
  assert len({sampling["draw"] for _, sampling in drawn.asked}) == 3
  assert all("draw" not in sampling and sampling["temperature"] == 0.0 for _, sampling in greedy.asked)
