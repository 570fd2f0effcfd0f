"""The router's choices travel from the engine with the episode, and training takes them instead of its own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_engine as kit
from flax import nnx
from small_engine import requests, rollout

from ragrl_jax import structs
from ragrl_jax.engine.lanes import NOTHING, Chunk
from ragrl_jax.learner import forward, packing
from ragrl_jax.models import attention, experts
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.rollout import multihost
from ragrl_jax.store import episodes as episodes_lib

L, K = 2, 3  # layers, experts of a token
CONFIG = DecoderConfig.from_shape(
  264, family="qwen3_moe", d_model=32, num_layers=L, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=24, rope_theta=1e4,
  num_experts=7, experts_per_token=K,
)  # fmt: skip


@functools.cache
def model():
  return Decoder(CONFIG, rngs=nnx.Rngs(0))


@functools.cache
def engine(speculate):
  return kit.loaded(model(), speculate=speculate)


@functools.cache
def played(speculate):
  return rollout(engine(speculate)).run(requests(2, 3), step=0)


@pytest.mark.slow  # compiles engines of its own
def test_greedy_takes_the_likeliest_tokens():
  kit.check_greedy(engine(0), jax.jit(model()))


@jax.jit
def chosen(model, tokens):
  """The experts that the router chooses for tokens [1, T], [L, T, k]."""
  attend = lambda layer, q, k, v, carry: (attention.attend(q, k, v, jnp.ones_like(tokens)), carry)
  positions = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
  return model.run(model.embed(tokens), positions, attend, ())[2][:, 0]


def recorded(segment):
  return np.frombuffer(segment.routes, np.int16).reshape(len(segment.ids), L, K)


@pytest.mark.slow  # as above
@pytest.mark.parametrize("speculate", [0, 3])
def test_each_token_has_the_experts_of_the_state_that_drew_it(speculate):
  checked = 0
  for episode in played(speculate):
    want, at = np.asarray(chosen(model(), kit.padded(episode))), 0
    for segment in episode.segments:
      if segment.owner == structs.MODEL:
        states = np.arange(at, at + len(segment.ids)) - 1
        np.testing.assert_array_equal(recorded(segment), want[:, states].swapaxes(0, 1))
        checked += len(segment.ids)
      else:
        assert segment.routes == b""
      at += len(segment.ids)
  assert checked > 50


def batch_of(episodes):
  rewards = lambda episode: [0.0] * sum(s.owner == structs.MODEL for s in episode.segments)
  items = [item for episode in episodes for item in packing.of_episode(episode, rewards(episode))]
  (block,) = packing.pack_items(items, rows=4, lengths=(256,), routes=L * K).blocks
  return items, block


@pytest.mark.slow  # as above
def test_training_takes_the_samplers_experts():
  items, block = batch_of(played(0))
  mask = block.loss_mask
  assert block.routes.dtype == np.int16
  assert (block.routes[~mask] == experts.OWN).all() and (block.routes[mask] >= 0).all()
  scored = jax.jit(lambda model, batch: forward.scores(model, batch, temperature=1.0, chunk=64)[0])
  np.testing.assert_allclose(np.asarray(scored(model(), block))[mask], block.sampler_logprobs[mask], atol=2e-5)

  # Another router would choose other experts. The replayed ones are taken all the same, and only for these states.
  other = nnx.merge(*nnx.split(model()))
  draw = np.random.default_rng(0)
  other.layers.router[...] = jnp.asarray(draw.normal(0, 0.3, other.layers.router.shape), jnp.float32)
  forced, free = taken(other, block), taken(other, block, replay=False)
  states = np.roll(mask, -1, axis=1)  # entry t of the mask speaks of the state at t - 1
  want = np.roll(block.routes, -1, axis=1).reshape(*mask.shape, L, K).transpose(2, 0, 1, 3)
  np.testing.assert_array_equal(forced[:, states], want[:, states])
  assert (np.sort(free[:, states]) != np.sort(want[:, states])).any(axis=-1).mean() > 0.5


def taken(model, batch, replay=True):
  """The experts in every layer and state of a batch, [L, R, T, k]."""
  found = []
  route = experts.route

  def recording(*given, **more):
    ids, weights = route(*given, **more)
    jax.debug.callback(lambda x: found.append(np.asarray(x)), ids, ordered=True)
    return ids, weights

  experts.route = recording
  try:
    routes = jnp.asarray(batch.routes) if replay else None
    arrays = (jnp.asarray(x) for x in (batch.tokens, batch.positions, batch.segment_ids))
    jax.block_until_ready(jax.jit(lambda *x: model.hidden(*x, routes=routes))(*arrays))
    jax.effects_barrier()
  finally:
    experts.route = route
  return np.stack(found)


def test_replayed_experts_are_differentiable():
  # With the experts fixed the loss is smooth in the router: its derivative is the slope of a secant.
  draw = np.random.default_rng(1)
  logits, given = jnp.asarray(draw.normal(size=(1, 4, 7)), jnp.float32), jnp.asarray([[[0, 1, 2]] * 2 + [[-1] * 3] * 2])
  way, weight = (jnp.asarray(draw.normal(size=shape), jnp.float32) for shape in ((1, 4, 7), (1, 4, 3)))
  for normalize in (True, False):
    route = lambda x, n=normalize: experts.route(x, 3, normalize=n, chosen=given)
    ids, _ = route(logits)
    assert ids[0, :2].tolist() == [[0, 1, 2]] * 2
    np.testing.assert_array_equal(ids[0, 2:], jax.lax.top_k(logits, 3)[1][0, 2:])
    loss = jax.jit(jax.value_and_grad(lambda t, r=route: (r(logits + t * way)[1] * weight).sum()))
    step = np.float32(1e-2)
    slope = (loss(step)[0] - loss(-step)[0]) / (2 * step)
    assert abs(float(slope)) > 1e-2
    np.testing.assert_allclose(loss(np.float32(0.0))[1], slope, rtol=1e-2)


def test_routes_in_rows_by_hand():
  # The prompt has no experts; the turn's two tokens have them. A token that no state of its row draws has none.
  said = np.array([[1, 2], [3, 4]], np.int16)
  turn = structs.Segment(structs.MODEL, (8, 9), "", logprobs=(-1.0, -2.0), routes=said.tobytes())
  episode = structs.Episode((structs.Segment(structs.ENVIRONMENT, (5, 6), ""), turn))
  (item,) = packing.of_episode(episode, [1.0])
  assert item.routes.tolist() == [[-1, -1], [-1, -1], [1, 2], [3, 4]]
  (block,) = packing.pack_items([item], rows=1, lengths=(6,), routes=2).blocks
  assert block.routes[0].tolist() == [[-1, -1], [-1, -1], [1, 2], [3, 4], [-1, -1], [-1, -1]]
  alone = packing.of_episode(structs.Episode((turn,)), [1.0])
  (alone,) = packing.pack_items(alone, rows=1, lengths=(3,), routes=2).blocks
  assert alone.routes[0].tolist() == [[-1, -1], [3, 4], [-1, -1]]
  (none,) = packing.pack_items([item], rows=1, lengths=(6,)).blocks
  assert none.routes is None

  # The way from host to host, and a checkpoint's, keep them; a run's log leaves them out.
  decode = lambda ids: ""
  assert multihost.unpack(multihost.pack([episode], decode), decode)[0].segments == episode.segments
  assert episodes_lib.of_record(episodes_lib.record(episode)).segments == episode.segments


@pytest.mark.parametrize("n", [3, 4])
def test_routes_of_a_chunk_are_packed(n):
  # Two steps of two places for two lanes; lane 1 kept one token in the first step, and two in the second.
  tokens = jnp.array([[1, 2], [3, NOTHING], [4, 5], [NOTHING, 6]], jnp.int32)
  routes = jnp.arange(4 * 2 * n, dtype=jnp.int16).reshape(4, 2, n) - 1
  ones = [jnp.full((2,), i, jnp.int32) for i in range(6)]
  chunk = Chunk(tokens, tokens.astype(jnp.float32), *ones, routes)
  back = Chunk.unpack(np.asarray(jax.jit(Chunk.pack)(chunk)), n)
  assert back.tokens.T.tolist() == [[1, 3, 4, NOTHING], [2, 5, 6, NOTHING]]
  np.testing.assert_array_equal(back.routes[:3, 0], routes[:3, 0])
  np.testing.assert_array_equal(back.routes[:3, 1], np.asarray(routes)[[0, 2, 3], 1])
  assert back.stop.tolist() == [5, 5]
