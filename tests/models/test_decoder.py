"""The decoder against recorded outputs of transformers, and properties that hold for any weights."""

import functools
import json
import pathlib

import hf_folders
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoder_shapes import MORE, SHAPE, V, drawn
from flax import nnx

from ragrl_jax.models import attention, families, mapping, weights
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.models.hf import LinearScaling, RopeScaling, YarnScaling
from ragrl_jax.models.layers import rope_frequencies

GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "models_decoders.json").read_text())


def config_of(family="qwen3", **changes):
  return DecoderConfig.from_shape(V, family=family, **SHAPE | MORE.get(family, {}) | changes)


@functools.cache  # cached by arguments, because models are not changed
def made(family="qwen3"):
  return drawn(config_of(family), 0.8)


@jax.jit
def logprobs(model, tokens, segment_ids=None):
  """Log-probability of each token given those before it, [B, T - 1]."""
  logits = model(tokens, None, segment_ids)
  return jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], axis=-1)[..., 0]


@pytest.mark.parametrize("family", hf_folders.DECODERS)
def test_transformers_logits_and_gradients(family, tmp_path):
  config, golden = hf_folders.DECODERS[family], GOLDEN[family]
  folder = hf_folders.write(tmp_path, config, hf_folders.decoder_shapes(config))
  model, _ = weights.load_pretrained(folder)
  graphdef, params = nnx.split(model)
  tokens = jnp.asarray(golden["tokens"], jnp.int32)

  @jax.jit
  @functools.partial(jax.value_and_grad, has_aux=True)
  def run(params):
    logits = nnx.merge(graphdef, params)(tokens)
    found = jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], axis=-1)
    return found.mean(), logits

  (_, logits), gradients = run(params)
  # Gemma's gains here are about 2 in four norms a layer: float32 in torch is 2.4e-5 away from float64, too.
  near = 1e-4 if family == "gemma3_text" else 1e-5
  np.testing.assert_allclose(logits, golden["logits"], atol=near)
  tensors = mapping.entries(families.tensors(model.config), gradients, families.rows(model.config))
  # The norms of Gemma's gradients are up to 90, and each layer's carry the rounding of those after it.
  largest = max(norm for norm, *_ in golden["gradients"].values())
  slack = 1e-5 * largest if family == "gemma3_text" else near
  for tensor, _, read in tensors:
    flat = np.concatenate(list(read())).reshape(-1)
    got = [np.linalg.norm(flat), flat[0], flat[flat.size // 2]]
    np.testing.assert_allclose(got, golden["gradients"][tensor], rtol=near, atol=slack, err_msg=tensor)
  assert len(tensors) == len(golden["gradients"])


def test_rope_by_hand():
  np.testing.assert_allclose(rope_frequencies(4, 1e4, LinearScaling(8.0)), [1 / 8, 0.01 / 8], rtol=1e-6)
  # Llama's, with head_dim 4, theta 10⁴: frequencies 1 and 10⁻². Wavelengths of 6.28 and 628 tokens fit 10.2 and 0.102
  # times into a context of 64. Above high_freq_factor 4 nothing changes, below low_freq_factor 1 it is 8 times slower.
  got = rope_frequencies(4, 1e4, RopeScaling(8.0, 1.0, 4.0, 64))
  np.testing.assert_allclose(got, [1.0, 0.01 / 8], rtol=1e-6)
  # In between: context 4π, so wavelength 2π fits 2 times; smooth = (2 - 1) / (4 - 1) = 1/3: 2/3 · 1/8 + 1/3 = 5/12.
  got = rope_frequencies(2, 1e4, RopeScaling(8.0, 1.0, 4.0, 4 * np.pi))
  np.testing.assert_allclose(got, [5 / 12], rtol=1e-6)
  # YaRN's, with 4 pairs and theta 10⁴: pair p turns 100 · 10^-p / 2π times in 100 tokens: 15.9, 1.59, 0.159, 0.0159.
  # The bounds are those of pairs 0 and 2, so pair 1 is half of both: 0.1 · (1 + 1/4) / 2.
  scaling = YarnScaling(4.0, 100, beta_fast=50 / np.pi, beta_slow=0.5 / np.pi, truncate=False)
  np.testing.assert_allclose(rope_frequencies(8, 1e4, scaling), [1, 0.0625, 0.0025, 0.00025], rtol=1e-6)


# Rows of one block, and of two.
@pytest.mark.parametrize("family, length", [("qwen3", 24), ("qwen3", 200), ("gemma3_text", 24), ("qwen3_moe", 24)])
def test_no_later_token_and_no_other_segment_leaks(family, length):
  model = made(family)
  draw = np.random.default_rng(1)
  third = length // 3
  segment_ids = np.repeat([1, 2, 3], third)[None]
  tokens = draw.integers(0, V, (1, 3 * third))
  before = logprobs(model, jnp.asarray(tokens), jnp.asarray(segment_ids))
  place = third + third // 2  # in the middle of the second segment
  changed = tokens.copy()
  changed[0, place] = (tokens[0, place] + 1) % V
  after = logprobs(model, jnp.asarray(changed), jnp.asarray(segment_ids))
  same = np.asarray(before == after)[0]  # entry t belongs to token t + 1
  assert same[: place - 1].all() and same[2 * third :].all()
  assert same[place - 1 : 2 * third - 1].mean() < 0.5  # saturated ones may be equal to the last bit


@pytest.mark.parametrize("family", families.FAMILIES)
def test_packed_and_padded_rows_equal_rows_of_their_own(family):
  model = made(family)
  draw = np.random.default_rng(2)
  one, two = draw.integers(0, V, 9), draw.integers(0, V, 7)
  # What follows `two` is not seen.
  alone = np.asarray(logprobs(model, jnp.asarray([one, np.concatenate([two, one[:2]])])))
  padding = draw.integers(0, V, 4)  # arbitrary ids, because segment 0 marks padding
  rows = jnp.asarray([np.concatenate([one, two, padding]), np.concatenate([padding, two, one])])
  segment_ids = jnp.array([[1] * 9 + [2] * 7 + [0] * 4, [0] * 4 + [7] * 7 + [4] * 9], jnp.int32)
  packed = np.asarray(logprobs(model, rows, segment_ids))
  for found, want in ((packed[0, :8], 0), (packed[0, 9:15], 1), (packed[1, 4:10], 1), (packed[1, 11:], 0)):
    np.testing.assert_allclose(found, alone[want, : len(found)], atol=2e-5)


@pytest.mark.slow  # a backward pass to compile
def test_gradients_are_finite_with_rows_of_padding_and_ignore_it():
  model = made()
  graphdef, params = nnx.split(model)
  tokens = jnp.asarray(np.random.default_rng(3).integers(0, V, (3, 10)))
  segment_ids = jnp.array([[1] * 10, [1] * 6 + [0] * 4, [0] * 10], jnp.int32)

  @jax.jit
  def gradient(tokens):
    def loss(params):
      logits = nnx.merge(graphdef, params)(tokens, None, segment_ids)
      return jnp.sum(jnp.where(segment_ids[..., None] != 0, jax.nn.log_softmax(logits), 0.0) ** 2)

    return jax.grad(loss)(params)

  first = gradient(tokens)
  second = gradient(jnp.where(segment_ids == 0, (tokens + 5) % V, tokens))
  for one, two in zip(jax.tree.leaves(first), jax.tree.leaves(second)):
    assert np.isfinite(one).all()
    np.testing.assert_array_equal(one, two)


def loss_of(family, **changes):
  """The loss of some tokens for a model's parameters; `changes` are attributes that differ."""
  model = nnx.merge(*nnx.split(made(family)))
  vars(model).update(changes)
  graphdef, tokens = nnx.split(model)[0], jnp.asarray(np.random.default_rng(4).integers(0, V, (2, 12)))
  return lambda params: jax.nn.log_softmax(nnx.merge(graphdef, params)(tokens))[..., 0].mean()


@functools.cache
def plain_gradient(family):
  """(loss, gradient)."""
  return jax.jit(jax.value_and_grad(loss_of(family)))(nnx.split(made(family))[1])


@pytest.mark.slow  # two backward passes to compile
def test_remat_changes_nothing_and_bfloat16_little():
  params, (value, plain) = nnx.split(made("qwen2"))[1], plain_gradient("qwen2")
  remat = jax.jit(jax.grad(loss_of("qwen2", remat=True)))(params)
  scale = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(plain))
  jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6 * scale), remat, plain)
  half = loss_of("qwen2", dtype=jnp.dtype(jnp.bfloat16))
  # 8 bits of mantissa, two layers of a few roundings each, logits of about 10.
  np.testing.assert_allclose(jax.jit(half)(params), value, atol=0.3)
  for family in families.FAMILIES:
    half = jax.grad(loss_of(family, dtype=jnp.dtype(jnp.bfloat16)))
    shapes = jax.tree.leaves(jax.eval_shape(half, nnx.split(made(family))[1]))
    assert {x.dtype for x in shapes} == {jnp.dtype(jnp.float32)}, family


@pytest.mark.slow  # backward passes to compile
@pytest.mark.parametrize(
  "family", ["qwen2", *(pytest.param(name, marks=pytest.mark.long) for name in ("qwen3_moe", "qwen3_5_text"))]
)
def test_gpus_have_their_layers_apart_and_keep_what_fits(family, monkeypatch):
  params, want = nnx.split(made(family))[1], plain_gradient(family)[1]
  monkeypatch.setattr(attention, "platform", lambda mesh: "gpu")
  monkeypatch.setattr(attention, "_kernel", lambda mesh, q: None)
  # 24 tokens, two layers, four bytes: q, k and v of 8 numbers a head, two sums a head and the stream; gate and up.
  of_attention, of_mlp, rest = (24 * 2 * 4 * n / 0.75 for n in (12 * 8 + 8 + 16, 48, 24 + 32))
  counts = []
  # One rounding of this hybrid's weights moves its gradient by up to 1.5e-3: its short keys are scaled to length 1.
  tolerance = 1e-3 if family == "qwen3_5_text" else 2e-6
  names = of_attention, of_attention + of_mlp, of_attention + of_mlp + rest
  # Nothing; attention of no layer, of the last one, of both; MLPs of none and one; of both; and all there is.
  rooms = 0, names[0] / 2 - 1, names[0] / 2 + 1, names[0] + 1, names[0] + of_mlp / 2 + 1, names[1] + 1, names[2] + 1
  for room in rooms:
    traced = jax.jit(jax.grad(loss_of(family, remat=True, room=round(room)))).trace(params)
    counts.append(products := str(traced.jaxpr).count("dot_general"))
    if products in counts[:-1]:  # the program of a smaller room
      continue
    found = traced.lower().compile()(params)
    scale = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(want))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=tolerance * scale), found, want)
  assert counts[0] == counts[1] > counts[2] > counts[3]
  assert counts[3] >= counts[4] >= counts[5] >= counts[6]
  if family == "qwen2":  # a mixture's experts and delta layers have no name
    assert counts[3] > counts[4] > counts[5] == counts[6]


def test_attention_can_be_passed_in():
  # It sums the layers' numbers and returns zeros: the carry is 0 + 1, and no token sees another.
  tokens = jnp.arange(10, dtype=jnp.int32).reshape(2, 5)
  attend = lambda layer, q, k, v, seen: (jnp.zeros_like(q), seen + layer)
  run = jax.jit(lambda model, tokens: model.run(model.embed(tokens), jnp.zeros_like(tokens), attend, jnp.int32(0)))
  hidden, seen, experts = run(made(), tokens)
  assert int(seen) == 1 and hidden.shape == (2, 5, 16) and experts is None
  again, *_ = run(made(), tokens[:, ::-1])
  np.testing.assert_allclose(again[:, ::-1], hidden, atol=1e-6)


@pytest.mark.slow  # every kind of weight has its own program
@pytest.mark.parametrize("tied", [True, False])
def test_fresh_weights_start_near_uniform(tied):
  # Cross-entropy of V equal guesses is log V; logits of deviation s add about s²/2.
  model = Decoder(config_of(tied=tied), rngs=nnx.Rngs(0))
  tokens = jnp.asarray(np.random.default_rng(5).integers(0, V, (4, 16)))
  assert abs(-float(logprobs(model, tokens).mean()) - np.log(V)) < 0.1


@pytest.mark.parametrize("change, says", [
  (dict(num_kv_heads=3), "multiple of num_kv_heads"), (dict(head_dim=7), "must be even"), (dict(d_ff=0), "d_ff is 0"),
  (dict(rope_theta=0.0), "rope_theta"), (dict(heads=3), "it may have"), (dict(qk_norm=False), "qwen3 has q/k norm"),
  (dict(family="gpt2"), "shape.family: 'gpt2'.*qwen2, qwen3, .*ragrl_jax/models/families.py"),
])  # fmt: skip
def test_impossible_shapes_are_refused(change, says):
  with pytest.raises(ValueError, match=says):
    DecoderConfig.from_shape(V, **dict(family="qwen3") | SHAPE | change)
