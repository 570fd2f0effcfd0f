"""The parts of a decoder layer: RMSNorm, rotary embedding, gated MLP."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from ragrl_jax.models import families, matmul, residual
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.hf import LinearScaling, Scaling, YarnScaling

ACTIVATIONS = {
  families.SILU: lambda x: x * jax.nn.sigmoid(x),
  families.GELU_TANH: functools.partial(jax.nn.gelu, approximate=True),
}


def rms_norm(x: jax.Array | residual.Stream, gain: jax.Array, eps: float) -> jax.Array:
  """x / sqrt(mean(x²) + eps) · gain over the last axis; computed in float32, returned in x's dtype."""
  if isinstance(x, residual.Stream):
    if x.parts is not None:
      return x.norm(gain, eps)
    x = x.x
  return _rms_norm(x, gain, eps)[0]


# For the backward pass, norm and gate save their inputs only and recompute the rest. On a CPU this makes a training
# step a ninth faster, with a third less memory (4 layers, d 128 and 256).
@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _rms_norm(x, gain, eps):
  scale = jax.lax.rsqrt(jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True) + eps)
  return (x.astype(jnp.float32) * scale * _row(gain, x.ndim)).astype(x.dtype), scale


def _rms_norm_forward(x, gain, eps):
  out, scale = _rms_norm(x, gain, eps)
  return (out, scale), (x, scale, gain)


def _rms_norm_backward(eps, saved, gradients):
  (x, scale, gain), gradient = saved, gradients[0].astype(jnp.float32)
  unit = x.astype(jnp.float32) * scale
  of_unit = gradient * _row(gain, x.ndim)
  of_x = scale * (of_unit - unit * (dots(of_unit, unit)[..., None] / x.shape[-1]))
  of_gain = (gradient * unit).reshape(-1, x.shape[-1]).sum(axis=0)
  return of_x.astype(x.dtype), of_gain.astype(gain.dtype)


_rms_norm.defvjp(_rms_norm_forward, _rms_norm_backward)


def layer_norm(x: jax.Array, gain: jax.Array, bias: jax.Array | None, eps: float) -> jax.Array:
  """(x - mean) / sqrt(variance + eps) · gain (+ bias) over the last axis; in float32, returned in x's dtype."""
  wide = x.astype(jnp.float32)
  wide = wide - wide.mean(axis=-1, keepdims=True)
  wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps) * _row(gain, x.ndim)
  return (wide if bias is None else wide + _row(bias, x.ndim)).astype(x.dtype)


def dots(a: jax.Array, b: jax.Array) -> jax.Array:
  """Sums of a · b over the last axis, in float32."""
  if alone := a.shape[0] == 1 and a.ndim > 2:
    a, b = a[0], b[0]  # with a first axis of one XLA:CPU takes up to 20 times as long
  total = jnp.sum(a.astype(jnp.float32) * b.astype(jnp.float32), axis=-1)
  return total[None] if alone else total


def _row(gain: jax.Array, ndim: int) -> jax.Array:
  return gain.astype(jnp.float32).reshape((1,) * (ndim - 1) + gain.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def gated(gate: jax.Array, up: jax.Array, activation: str) -> jax.Array:
  """activation(gate) · up, computed in float32, returned in gate's dtype; `activation` is one of ACTIVATIONS."""
  return (ACTIVATIONS[activation](gate.astype(jnp.float32)) * up.astype(jnp.float32)).astype(gate.dtype)


def _gated_backward(activation, saved, gradient):
  gate, up, gradient = (x.astype(jnp.float32) for x in (*saved, gradient))
  if activation == families.SILU:
    # By hand: with jax.vjp, programs for TPUs have 8 % more temporaries and one all-gather more.
    share = jax.nn.sigmoid(gate)
    of_gate = gradient * up * (share + gate * share * (1.0 - share))
    return of_gate.astype(saved[0].dtype), (gradient * gate * share).astype(saved[1].dtype)
  value, back = jax.vjp(ACTIVATIONS[activation], gate)
  return back(gradient * up)[0].astype(saved[0].dtype), (gradient * value).astype(saved[1].dtype)


gated.defvjp(lambda gate, up, activation: (gated(gate, up, activation), (gate, up)), _gated_backward)


def rope_frequencies(head_dim: int, theta: float, scaling: Scaling) -> np.ndarray:
  """Angle per token of each of the head_dim / 2 pairs, in radians.

  With Llama's scaling ("llama3" in transformers), frequencies whose wavelength is above n / low_freq_factor are divided
  by `factor`, with n = original_max_position_embeddings. Those with a wavelength below n / high_freq_factor are
  unchanged. Between the two, the result is interpolated. With a linear scaling all frequencies are divided by `factor`.
  YaRN interpolates between the numbers of two pairs.

  Source: RoFormer (arXiv 2104.09864) sec. 3.2; transformers, modeling_rope_utils.py.
  """
  pairs = np.arange(0, head_dim, 2, dtype=np.float32)
  frequencies = (1.0 / (np.float32(theta) ** (pairs / np.float32(head_dim)))).astype(np.float32)
  if scaling is None:
    return frequencies
  if isinstance(scaling, LinearScaling):
    return frequencies / np.float32(scaling.factor)
  if isinstance(scaling, YarnScaling):
    turning = lambda turns: scaling.original_max_position_embeddings / (turns * 2 * math.pi)
    bounds = [head_dim * math.log(turning(b)) / (2 * math.log(theta)) for b in (scaling.beta_fast, scaling.beta_slow)]
    first, last = (math.floor(bounds[0]), math.ceil(bounds[1])) if scaling.truncate else bounds
    first, last = max(first, 0), min(last, head_dim - 1)
    slow = np.clip((np.arange(head_dim // 2, dtype=np.float32) - first) / ((last - first) or 0.001), 0.0, 1.0)
    return (slow * frequencies / scaling.factor + (1 - slow) * frequencies).astype(np.float32)
  wavelengths = 2 * np.pi / frequencies
  ratio = scaling.original_max_position_embeddings / wavelengths
  smooth = (ratio - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
  smooth = np.clip(smooth, 0.0, 1.0)
  return ((1 - smooth) * frequencies / scaling.factor + smooth * frequencies).astype(np.float32)


class Angles:
  """The rotation angles of q and k at positions int [B, T], in every layer."""

  def __init__(self, positions: jax.Array, config: DecoderConfig):
    self._kinds = tuple(dict.fromkeys(config.ropes))
    self._of_layer = np.array([self._kinds.index(rope) for rope in config.ropes], np.int32)
    at = positions.astype(jnp.float32)[:, :, None, None]
    self._found = []
    for theta, scaling in self._kinds:
      angles = at * rope_frequencies(config.rotated, theta, scaling)[None, None, None, :]
      scale = scaling.attention_factor if isinstance(scaling, YarnScaling) else 1.0
      self._found.append(tuple(x if scale == 1.0 else x * scale for x in (jnp.cos(angles), jnp.sin(angles))))

    yarn = config.rope_scaling if config.traits.position_scale else None
    self._scale = None
    if isinstance(yarn, YarnScaling):
      self._scale = 1.0 + yarn.llama_4_scaling_beta * jnp.log1p(at // yarn.original_max_position_embeddings)

  def scaled(self, q: jax.Array) -> jax.Array:
    """q [B, T, H, h], times 1 + beta · ln(1 + ⌊position / original_max_position_embeddings⌋) in Ministral 3."""
    return q if self._scale is None else (q.astype(jnp.float32) * self._scale).astype(q.dtype)

  def for_layer(self, layer: int | jax.Array) -> tuple[jax.Array, jax.Array]:
    """cos and sin [B, T, 1, rotated / 2] for a layer's number, float32; YaRN's have its factor."""
    if isinstance(layer, int) or len(self._kinds) == 1:
      return self._found[self._of_layer[layer] if isinstance(layer, int) else 0]
    kind = jnp.asarray(self._of_layer)[layer]
    return tuple(jax.lax.select_n(kind, *same) for same in zip(*self._found))


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
  """Rotates pair i = (x[i], x[i + r/2]) of every head's first r features by its angle. x is [B, T, H, h]."""
  half = cos.shape[-1]
  first, second, rest = jnp.split(x.astype(jnp.float32), (half, 2 * half), axis=-1)
  turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)
  return turned.astype(x.dtype)


def stored_gain(gain: float, config: DecoderConfig) -> float:
  """The value that an RMSNorm's parameter has for this gain."""
  return gain - 1.0 if config.traits.zero_norms else gain


def true_gain(stored: jax.Array, config: DecoderConfig) -> jax.Array:
  """An RMSNorm's gain from its parameter; `rms_norm` takes it in float32 or the parameter's dtype."""
  return stored.astype(jnp.float32) + 1.0 if config.traits.zero_norms else stored


class Adapter(nnx.Param):
  """A parameter of an adapter (`models/lora.py`). A model with adapters trains these only."""


class Layer(nnx.Module):
  """Attention, then a gated MLP or a mixture of experts, each after an RMSNorm or between two. Matrices: [in, out].

  A `delta` layer has the parameters of `models/delta.py` instead of attention's.
  """

  def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs, param_dtype, delta: bool = False):
    c, traits = config, config.traits
    queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim

    def matrix(rows, columns, scale=1.0, stacked=()):
      values = jax.random.normal(rngs.params(), (*stacked, rows, columns), jnp.float32) * (scale / rows**0.5)
      return nnx.Param(values.astype(param_dtype))

    def constant(size, value):
      return nnx.Param(jnp.full((size,), value, param_dtype))

    def norm(size, gain=1.0):
      return constant(size, stored_gain(gain, config))

    # Both branches end in a matrix with small initial weights, so the residual stream is at first mostly the embedding.
    self.attention_norm = norm(c.d_model)
    if delta:
      values = c.delta_value_heads * c.delta_value_dim
      self.qkv, self.z = matrix(c.d_model, c.delta_channels), matrix(c.d_model, values)
      self.b, self.a = matrix(c.d_model, c.delta_value_heads), matrix(c.d_model, c.delta_value_heads)
      self.conv = matrix(1, c.delta_channels, c.delta_conv**-0.5, stacked=(c.delta_conv,))
      # A token keeps between exp(-0.01 · 1.3) and exp(-16 · 1.3) of a head's state, as in transformers.
      decays = jax.random.uniform(rngs.params(), (c.delta_value_heads,), jnp.float32, 0.01, 16.0)
      self.log_decay = nnx.Param(jnp.log(decays).astype(param_dtype))
      self.step_bias = constant(c.delta_value_heads, 1.0)
      self.delta_norm = constant(c.delta_value_dim, 1.0)
      self.out = matrix(values, c.d_model, 0.3)
    else:
      self.q = matrix(c.d_model, queries * (2 if traits.hybrid else 1))
      self.k = matrix(c.d_model, keys)
      self.v = matrix(c.d_model, keys)
      self.o = matrix(queries, c.d_model, 0.3)
    if c.attention_bias:
      self.q_bias, self.k_bias, self.v_bias = constant(queries, 0.0), constant(keys, 0.0), constant(keys, 0.0)
    if c.output_bias:
      self.o_bias = constant(c.d_model, 0.0)
    if c.qk_norm and not delta:
      # With gains of 2 the scores are four times those of unit vectors. The model then learns to copy sooner.
      self.q_norm, self.k_norm = norm(c.head_dim, 2.0), norm(c.head_dim, 2.0)
    self.mlp_norm = norm(c.d_model)
    if traits.post_norms:
      self.attention_post_norm, self.mlp_post_norm = norm(c.d_model), norm(c.d_model)
    if c.num_experts:
      self.router = matrix(c.d_model, c.num_experts)
      self.experts_gate = matrix(c.d_model, c.d_ff, stacked=(c.num_experts,))
      self.experts_up = matrix(c.d_model, c.d_ff, stacked=(c.num_experts,))
      self.experts_down = matrix(c.d_ff, c.d_model, 0.3, stacked=(c.num_experts,))
    else:
      self.gate = matrix(c.d_model, c.d_ff)
      self.up = matrix(c.d_model, c.d_ff)
      self.down = matrix(c.d_ff, c.d_model, 0.3)
    self.config, self.delta = config, delta
    self.in_parts = False  # `o`, `out` and `down` return parts of sums, see `models/residual.py`
    self.together = False  # training on one GPU: a matrix and its adapter are one matmul, see `models/matmul.py`

  def projects(self, x, *names):
    """[`project`(x, name) for each of the names]."""
    together = [name for name in names if self.together and hasattr(self, f"{name}_lora_a")]
    matrices, results = [], {}
    for name in together:
      weight, a, b = (getattr(self, name + part)[...] for part in ("", "_lora_a", "_lora_b"))
      bias = getattr(self, f"{name}_bias", None)
      scaled = b * (self.lora_alpha / a.shape[-1])
      matrices.append(matmul.Adapted(weight, a, scaled, None if bias is None else bias[...]))
    if together:
      results = dict(zip(together, matmul.adapted(x, matrices)))
    return [results[name] if name in results else self._project(x, name) for name in names]

  def project(self, x, name):
    """x [B, T, in] times the matrix of this name, plus its bias and its adapter (`models/lora.py`) if it has them."""
    return self.projects(x, name)[0]

  def _project(self, x, name):
    bias, a = getattr(self, f"{name}_bias", None), getattr(self, f"{name}_lora_a", None)
    if self.in_parts and name in ("o", "out", "down") and bias is a is None:
      return residual.parts(x, getattr(self, name)[...])
    if self.in_parts and name in ("gate", "up") and a is None:
      return x @ getattr(self, name)[...].astype(x.dtype)  # rounded at once: half as much is stored
    y = matmul.linear(x, getattr(self, name)[...], None if bias is None else bias[...])
    if a is None:
      return y
    narrow = matmul.linear(x, a[...]) * (self.lora_alpha / a.shape[-1])
    return y + matmul.linear(narrow, getattr(self, f"{name}_lora_b")[...])

  def norm(self, x, name, scale=1.0):
    """RMSNorm of x with the gain of this name, times `scale`."""
    gain = true_gain(getattr(self, name)[...], self.config)
    return rms_norm(x, gain if scale == 1.0 else gain.astype(jnp.float32) * scale, self.config.norm_eps)

  def attention(self, x, cos, sin, attend):
    """What attention adds to the residual stream x [B, T, D], and attend's carry.

    Args:
      attend: (q [B, T, H, h], k and v [B, T, KV, h]) → (out like q, carry); x is normed first, q and k are rotated.
    """
    c, traits = self.config, self.config.traits
    x = self.norm(x, "attention_norm")
    q, k, v = (y.reshape(*x.shape[:2], -1, c.head_dim) for y in self.projects(x, "q", "k", "v"))
    if traits.hybrid:
      q, gate = jnp.moveaxis(q.reshape(*k.shape[:2], -1, 2, c.head_dim), 3, 0)  # each head's query, and its gate
    if c.qk_norm:
      # Attention divides scores by √h. If config.json has another divisor, the gain of q corrects this.
      scale = 1.0 if c.query_scale is None else (c.head_dim / c.query_scale) ** 0.5
      q, k = self.norm(q, "q_norm", scale), self.norm(k, "k_norm")
    q, k, v = (checkpoint_name(x, "attention") for x in (rotate(q, cos, sin), rotate(k, cos, sin), v))
    out, carry = attend(q, k, v)
    if traits.hybrid:
      out = (out.astype(jnp.float32) * jax.nn.sigmoid(gate.astype(jnp.float32))).astype(out.dtype)
    out = self.project(out.reshape(*out.shape[:2], -1), "o")
    return self.norm(out, "attention_post_norm") if traits.post_norms else out, carry

  def mlp(self, x):
    """What the gated MLP adds to the residual stream: down(activation(gate y) · up y) with y = norm(x); [B, T, D].

    For a layer with experts see `experts.mlp`.
    """
    traits = self.config.traits
    x = self.norm(x, "mlp_norm")
    gate, up = (checkpoint_name(y, "mlp") for y in self.projects(x, "gate", "up"))
    if self.together:
      # XLA computes `gated` and its gradients in one pass only if it does not see that matmuls give their inputs.
      gate, up = jax.lax.optimization_barrier((gate, up))
    out = self.project(gated(gate, up, traits.activation), "down")
    return self.norm(out, "mlp_post_norm") if traits.post_norms else out
