"""Gated delta layers: chunks equal one token at a time, texts do not see each other, a memory continues a row."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from ragrl_jax.models import delta
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder

SHAPE = dict(
  d_model=16, num_layers=2, num_heads=2, num_kv_heads=2, head_dim=8, d_ff=24, rope_theta=100.0, attend_every=2,
  delta_key_heads=2, delta_value_heads=4, delta_key_dim=8, delta_value_dim=6, delta_conv=4,
)  # fmt: skip
CONFIG = DecoderConfig.from_shape(29, family="qwen3_5_text", **SHAPE)


def drawn(T, seed=0):
  """q, k, v, fade, beta and the state before: two rows of T tokens, three heads."""
  draw = np.random.default_rng(seed)
  some = lambda *shape: jnp.asarray(draw.normal(size=shape), jnp.float32)
  q, k = (delta._unit(some(2, T, 3, 8)) for _ in range(2))
  fade = -jnp.exp(some(2, T, 3) * 2)  # from nearly nothing to a state that is forgotten at once
  return q, k, some(2, T, 3, 5), fade, jax.nn.sigmoid(some(2, T, 3)), some(2, 8, 3, 5)


def test_a_token_fades_corrects_and_answers():
  # One head, dk = dv = 1, state 4, g = ln ½: the state fades to 2. With k = 1, v = 8, β = ½ it becomes
  # 2 + ½ (8 - 2) = 5, and q = 3 reads 15. Where a text begins, the state was 0: ½ · 8 = 4, and 12.
  number = lambda x: jnp.full((1, 1, 1, 1), x, jnp.float32)
  one = lambda start: delta.one(
    number(3), number(1), number(8), number(np.log(0.5))[0], number(0.5)[0], jnp.array([[start]]), number(4)
  )
  for start, state in ((False, 5.0), (True, 4.0)):
    out, after = one(start)
    assert float(after[0, 0, 0, 0]) == pytest.approx(state) and float(out[0, 0, 0, 0]) == pytest.approx(3 * state)


def test_chunks_equal_one_token_at_a_time():
  *given, state = drawn(150)
  given += [jnp.asarray(np.random.default_rng(1).random((2, 150)) < 0.03).at[1, jnp.array([1, 32, 75])].set(True)]
  one = jax.jit(delta.one)
  states, want = [state], []
  for t in range(150):
    out, state = one(*(x[:, t : t + 1] for x in given), states[-1])
    states.append(state)
    want.append(out)
  for T in (2, 64, 150):
    out, after = jax.jit(delta.chunked)(*(x[:, :T] for x in given), states[0])
    np.testing.assert_allclose(out, np.concatenate(want[:T], axis=1), atol=2e-6)
    np.testing.assert_allclose(after, states[T], atol=2e-6)


def test_gradients_are_finite_where_states_are_forgotten():
  *given, state = drawn(40)
  given[3] = given[3] * 200  # exp(g) underflows
  loss = lambda given: delta.chunked(*given, jnp.zeros((2, 40), bool), state)[0].sum()
  assert all(np.isfinite(x).all() for x in jax.jit(jax.grad(loss))(tuple(given)))


@functools.cache
def layer():
  graphdef, stacked = nnx.split(Decoder(CONFIG, rngs=nnx.Rngs(3)).delta)
  return nnx.merge(graphdef, jax.tree.map(lambda x: x[0], stacked))


def near(a, b):
  jax.tree.map(functools.partial(np.testing.assert_allclose, atol=5e-6), a, b)


def test_a_row_in_parts_is_the_whole_row_and_its_padding_is_not_remembered():
  mix = jax.jit(functools.partial(delta.mix, layer()))
  x = jnp.asarray(np.random.default_rng(2).normal(size=(2, 20, 16)), jnp.float32)
  positions = jnp.broadcast_to(jnp.arange(20)[None], (2, 20))
  whole, end = mix(x[:, :12], positions[:, :12])
  memory, parts = None, []
  for first, last in ((0, 1), (1, 3), (3, 10), (10, 11), (11, 12)):  # eight tokens each, of which the rest do not count
    counts = jnp.full(2, last - first, jnp.int32)
    out, memory = mix(x[:, first : first + 8], positions[:, first : first + 8], memory, counts)
    parts.append(out[:, : last - first])
  near((whole, end), (jnp.concatenate(parts, axis=1), memory))
  near(memory, mix(x[:, 12:13], positions[:, 12:13], memory, jnp.zeros(2, jnp.int32))[1])


@pytest.mark.long  # compiles for many lengths
def test_rests_go_on_from_the_end_of_their_shared_beginning():
  """Beginnings end inside of chunks and between them, and rests are shorter and longer than the convolution."""
  draw, graphdef = np.random.default_rng(0), nnx.split(Decoder(CONFIG, rngs=nnx.Rngs(0)))[0]
  params = nnx.split(Decoder(CONFIG, rngs=nnx.Rngs(0)))[1]
  texts, row = [], ([], [], [])  # tokens, positions and until of the row
  for beginning, rests in ((70, (20, 100, 1, 65)), (3, (2, 3)), (58, (64, 2)), (1, (1, 130, 1))):
    shared, end = draw.integers(0, 29, beginning), len(row[0]) + beginning + sum(rests)
    for number, size in enumerate(rests):
      rest, first = draw.integers(0, 29, size), 0 if number == 0 else beginning
      new = np.concatenate((shared, rest))[first:]
      last = len(row[0]) + len(new)
      texts.append((np.concatenate((shared, rest)), np.r_[len(row[0]) : last][-size:], draw.normal(size=(size, 16))))
      row[0].extend(new)
      row[1].extend(range(first, beginning + size))
      row[2].extend([end] * (beginning - first) + [last] * size)
  row = [jnp.asarray(x, jnp.int32)[None] for x in row]

  def in_a_row(params):
    hidden = nnx.merge(graphdef, params).hidden(row[0], row[1], None, row[2])[0]
    return sum((hidden[places] * weight).sum() for _, places, weight in texts), hidden

  def alone(params):
    longest = max(len(text) for text, *_ in texts)
    rows = jnp.asarray([np.pad(text, (0, longest - len(text))) for text, *_ in texts])
    hidden = nnx.merge(graphdef, params).hidden(rows)
    each = [hidden[i, len(text) - len(w) : len(text)] for i, (text, _, w) in enumerate(texts)]
    return sum((one * weight).sum() for one, (*_, weight) in zip(each, texts)), each

  ours, found = jax.jit(jax.grad(in_a_row, has_aux=True))(params)
  theirs, want = jax.jit(jax.grad(alone, has_aux=True))(params)
  for (_, places, _), one in zip(texts, want):
    np.testing.assert_allclose(found[places], one, atol=1e-5)
  for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
    np.testing.assert_allclose(x, y, atol=1e-5 * max(1.0, float(jnp.abs(y).max())))


def test_sizes_that_do_not_fit_are_refused():
  for changes, says in (
    (dict(num_layers=3), "attend_every must be at least 2 and divide num_layers"),
    (dict(attend_every=1), "attend_every must be at least 2"), (dict(delta_conv=0), "the others be at least 1"),
    (dict(delta_value_heads=3), "3 value heads cannot share 2 key heads"),
    (dict(rotary_dim=3), "of which 3 are rotated"), (dict(family="qwen3"), "qwen3 has neither delta layers"),
  ):  # fmt: skip
    with pytest.raises(ValueError, match=says):
      DecoderConfig.from_shape(29, **dict(family="qwen3_5_text") | SHAPE | changes)
