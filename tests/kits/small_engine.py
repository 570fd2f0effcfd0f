"""A small model and engine: compiled once per process, and shared by the tests that use the same sizes."""

import asyncio
import contextlib
import dataclasses
import functools
import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from ragrl_jax import structs
from ragrl_jax.engine.engine import Engine
from ragrl_jax.engine.sizes import Sizes
from ragrl_jax.engine.stops import Stops
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.prompting.tokenizer import ByteTokenizer
from ragrl_jax.rollout import collect
from ragrl_jax.settings import Rollout

TOKENIZER = ByteTokenizer()
CONFIG = DecoderConfig(
  vocab_size=264, d_model=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=48, rope_theta=1e4
)
# An untrained model samples arbitrary bytes. With these stop strings a turn ends after some 15 tokens.
STOPS = (*"aeiot", "</search>", *"ABCDEFGHIJ")
CONTEXT = 96
SIZES = dict(lanes=4, rows=6, context=CONTEXT, chunk=8, prefill=32, page=32, prefill_rows=2)


@functools.cache
def model(seed=0):
  """A decoder of two layers with random weights."""
  return Decoder(CONFIG, rngs=nnx.Rngs(seed))


@functools.cache
def stops(texts=STOPS, tokenizer=TOKENIZER):
  """The automaton of these stop strings over a tokenizer's vocabulary."""
  return Stops(tokenizer, texts, rows=CONFIG.vocab_size)


def engine(seed=0, texts=STOPS, **sizes):
  """An engine with weights. Equal arguments share one engine.

  Args:
    seed: seed of the weights.
    texts: every stop string that the play uses, such as `recipe.stops`.
    sizes: sizes that differ from SIZES; a recipe's prompt needs a longer `context`.
  """
  return _engine(seed, tuple(dict.fromkeys(texts)), tuple(sorted((SIZES | sizes).items())))


@functools.cache
def _engine(seed, texts, sizes):
  return loaded(model(seed), 7, texts=texts, **dict(sizes))


def loaded(
  model, version=1, params=None, *, texts=STOPS, tokenizer=TOKENIZER, mesh=None, engines=None, team=None, **sizes
):
  """A new engine with the weights of a model, or others of their structure; `sizes` differ from SIZES."""
  graphdef, own = nnx.split(model)
  at = dict(mesh=mesh, engines=engines, team=team)
  made = Engine(graphdef, tokenizer, stops(texts, tokenizer), Sizes(**SIZES | sizes), **at)
  made.load(own if params is None else params, version=version)
  return made


def finished(engine):
  """The turns that end until the engine has nothing left to do."""
  ended = []
  while engine.busy:
    ended += engine.step()
  return ended


def held(engine):
  """Pages of an engine's cache that are in use."""
  return sum(engine.sizes.cache_pages - replica.pages.free for replica in engine._replicas)


def check_in_place(program, cache, *arguments):
  """Checks that a jitted program, which is lowered with these arguments, copies no layer's pages (in float32)."""
  compiled = program.lower(*arguments).compile()
  shape = "f32[" + ",".join(map(str, cache[0].shape)) + "]"
  found = set(re.findall(rf"= {re.escape(shape)}\S* ([\w-]+)\(", compiled.as_text()))
  assert "parameter" in found and not {"copy", "transpose", "select", "concatenate"} & found
  assert compiled.memory_analysis().alias_size_in_bytes >= sum(x.nbytes for x in cache)  # updated in place


@contextlib.contextmanager
def compilations():
  """Gives the list of what is traced or compiled meanwhile, and checks first that it would be noticed."""
  heard = []

  def listener(name, *_, **__):
    if name in ("/jax/core/compile/jaxpr_trace_duration", "/jax/core/compile/backend_compile_duration"):
      heard.append(name)

  jax.monitoring.register_event_duration_secs_listener(listener)
  try:
    jax.jit(lambda x: x * 3 + 1)(np.arange(17))
    assert len(set(heard)) == 2
    heard.clear()
    yield heard
  finally:
    jax.monitoring.unregister_event_duration_listener(listener)


class Retriever:
  """Finds k passages that contain the length of the query, and records the queries in `batches`."""

  def __init__(self):
    self.batches = []

  def search(self, queries, k):
    self.batches.append(list(queries))
    return [[structs.Passage(str(i), "T", f"found {len(q)}", 1.0) for i in range(k)] for q in queries]


class Tools:
  """Tools on the event loop: a search takes `delay(query)` seconds after `before(query)`, and every verdict is 1."""

  def __init__(self, delay=lambda query: 0.0, *, before=None):
    self.delay, self.before = delay, before

  async def search(self, query, k=None):
    if self.before is not None:
      await self.before(query)
    await asyncio.sleep(self.delay(query))
    return (structs.Passage("0", "T", f"found {len(query)}", 1.0),)

  async def judge(self, pairs, term=""):
    return (1.0,) * len(pairs)


async def play(example, policy, tools, turns=3):
  """An episode of `turns` generations, with a search after each except the last."""
  talk = policy.start(TOKENIZER.encode(example.question))
  for turn in range(turns):
    said = await talk.generate(stop=STOPS)
    if turn == turns - 1:
      break
    found = await tools.search(said.text)
    if not talk.observe(f"[{found[0].text}, {'x' * (len(said.ids) % 5)}]", query=said.text, found=found):
      break
  return talk.end()


def requests(prompts, samples, first=0):
  """Requests for `samples` episodes of each of `prompts` questions."""
  return [
    collect.Request(structs.Example(f"e{i}", f"Question {i}{'?' * (i % 7)}", ("x",)), i, g)
    for i in range(first, first + prompts)
    for g in range(samples)
  ]


def rollout(engine, play=play, tools=None, max_new_tokens=12, reserve=None, **settings):
  """A rollout of `play` on an engine of this module."""
  sampling = dataclasses.replace(Rollout().sampling, max_new_tokens=max_new_tokens, **settings)
  return collect.Rollout(engine, play, tools or Tools(), seed=3, sampling=sampling, reserve=reserve)


def ends_at_a_bug(play):
  """A rollout ends at an error of its first episode: it does not wait for the others, which play `play`."""

  async def first_fails(example, policy, tools):
    if example.id == "e0":
      await asyncio.sleep(0.3)
      raise RuntimeError("a bug")
    return await play(example, policy, tools)

  made, began = rollout(engine(), play=first_fails), time.monotonic()
  with pytest.raises(RuntimeError, match="a bug"):
    made.run(requests(3, 1), step=0)
  made.close()
  assert time.monotonic() - began < 50


def drawn(episode):
  """(ids, bytes of the log-probabilities) of all model tokens, to compare them bit for bit."""
  said = [s for s in episode.segments if s.owner == structs.MODEL]
  return [s.ids for s in said], np.float32([x for s in said for x in s.logprobs]).tobytes()


def check_close(one, other):
  """Checks that two episodes have the same tokens and facts, and equal log-probabilities up to rounding."""
  (ids, logprobs), (other_ids, other_logprobs) = drawn(one), drawn(other)
  assert ids == other_ids and one.facts == other.facts
  np.testing.assert_allclose(*(np.frombuffer(x, np.float32) for x in (logprobs, other_logprobs)), atol=1e-5)


def padded(episode):
  """The ids of an episode, with zeros up to the context, [1, CONTEXT]."""
  ids = [i for s in episode.segments for i in s.ids]
  return jnp.asarray([ids + [0] * (CONTEXT - len(ids))])


def scored(episode, temperature=1.0, seed=0, forward=None):
  """The sampler's and the model's log-probabilities of the model tokens; the model's are from a single pass.

  `forward` is tokens [1, CONTEXT] → logits; None for that of `model(seed)`.
  """
  logits = (forward or _forward(seed))(padded(episode))[0] / temperature
  table = np.asarray(jax.nn.log_softmax(logits))
  ours, theirs, at = [], [], 0
  for segment in episode.segments:
    if segment.owner == structs.MODEL:
      ours += segment.logprobs
      theirs += [table[at + j - 1, token] for j, token in enumerate(segment.ids)]
    at += len(segment.ids)
  return np.array(ours), np.array(theirs)


def check_greedy(engine, forward):
  """Checks that greedy turns take the likeliest tokens of a forward pass."""
  (episode,) = rollout(engine).run(requests(1, 1), step=0, greedy=True)
  best, at = np.argmax(forward(padded(episode))[0], axis=-1), 0
  for segment in episode.segments:
    if segment.owner == structs.MODEL:
      assert list(segment.ids) == best[at - 1 : at + len(segment.ids) - 1].tolist()
    at += len(segment.ids)


@functools.cache
def _forward(seed):
  return jax.jit(model(seed))
