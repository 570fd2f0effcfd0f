"""T5's encoder-decoder (v1.0 and v1.1), for entailment judges, which use the logits of the answer's first token."""

import dataclasses
import functools
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ragrl_jax.models import hf, layers, mapping, matmul, tensors
from ragrl_jax.parallel import rules

# config.json's feed_forward_proj → (activation of the MLP, whether a second matrix gates it).
ACTIVATIONS = {
  "relu": (jax.nn.relu, False),
  "gated-gelu": (lambda x: jax.nn.gelu(x, approximate=True), True),
  "gated-silu": (jax.nn.silu, True),
}
MASKED = -1e30
_HEADS = ("shared.weight", "lm_head.weight")
KNOWN = hf.HARMLESS | set(
  "vocab_size d_model d_kv d_ff num_layers num_decoder_layers num_heads relative_attention_num_buckets n_positions "
  "relative_attention_max_distance layer_norm_epsilon feed_forward_proj dense_act_fn is_gated_act is_encoder_decoder "
  "scale_decoder_outputs tie_word_embeddings".split()
)


@dataclasses.dataclass(frozen=True)
class T5Config:
  """The shape of a T5.

  Attributes:
    num_layers, num_decoder_layers: layers of the encoder and of the decoder.
    head_dim: width of one head; it may differ from d_model / num_heads.
    mlp: a name of ACTIVATIONS: "relu" in v1.0, "gated-gelu" in v1.1.
    num_buckets: number of buckets of relative positions.
    max_distance: distance in tokens from which all positions share the last bucket.
    scaled: whether hidden states are divided by √d_model before the unembedding (true in v1.0).
    tied: whether the embedding is also the unembedding (true in v1.0, unless the folder has another one).
    start_id: token id with which the decoder starts.
  """

  vocab_size: int
  d_model: int
  num_layers: int
  num_decoder_layers: int
  num_heads: int
  head_dim: int
  d_ff: int
  mlp: str
  num_buckets: int
  max_distance: int
  norm_eps: float
  scaled: bool
  tied: bool
  start_id: int

  @classmethod
  def from_hf(cls, values: Mapping[str, Any], where: str, *, own_head: bool) -> "T5Config":
    """The config from the contents of a config.json.

    Args:
      own_head: whether the folder contains an unembedding that differs from the embedding.

    Raises:
      ValueError: another model, or an MLP that is not supported.
    """
    size = functools.partial(hf.whole, values, where=where)
    if hf.required(values, "model_type", where) != "t5":
      raise ValueError(f"{where}: model_type {values['model_type']!r} is not a T5: it must be t5.")
    hf.refuse(values, where, feed_forward_proj=tuple(ACTIVATIONS))
    hf.refuse_unknown(values, where, KNOWN)
    # transformers 5 has a setting for the scale. In earlier versions a tied embedding implied the scale.
    scaled = values.get("scale_decoder_outputs", values.get("tie_word_embeddings", True))
    start = values.get("decoder_start_token_id", values.get("pad_token_id"))
    return cls(
      vocab_size=size("vocab_size"),
      d_model=size("d_model"),
      num_layers=size("num_layers"),
      num_decoder_layers=size("num_decoder_layers", default=size("num_layers")),
      num_heads=size("num_heads"),
      head_dim=size("d_kv"),
      d_ff=size("d_ff"),
      mlp=values.get("feed_forward_proj", "relu"),
      num_buckets=size("relative_attention_num_buckets"),
      max_distance=size("relative_attention_max_distance", default=128),
      norm_eps=hf.number(values, "layer_norm_epsilon", where, default=1e-6),
      scaled=scaled,
      tied=not own_head,
      start_id=0 if start is None else start,
    )


def buckets(queries: int, keys: int, *, bidirectional: bool, num_buckets: int, max_distance: int) -> np.ndarray:
  """Bucket of the learned relative-position bias for each (query, key) pair of positions, int [queries, keys].

  Small distances have a bucket each. Larger ones up to max_distance share buckets on a logarithmic scale. All distances
  beyond it share the last bucket. If bidirectional, the second half of the buckets is for keys after the query; if not,
  these keys have bucket 0. Source: T5 (arXiv 1910.10683) sec. 2.1, and its public code.
  """
  offset = np.arange(keys)[None, :] - np.arange(queries)[:, None]
  first = np.zeros_like(offset)
  if bidirectional:
    num_buckets //= 2
    first, distance = np.where(offset > 0, num_buckets, 0), np.abs(offset)
  else:
    distance = np.maximum(-offset, 0)
  near = num_buckets // 2
  ratio = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(near))
  far = near + (ratio / np.float32(math.log(max_distance / near)) * np.float32(num_buckets - near)).astype(np.int64)
  return first + np.where(distance < near, distance, np.minimum(far, num_buckets - 1))


def attend(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array) -> jax.Array:
  """softmax(q kᵀ + bias) v; T5 does not scale scores. q [B, T, H, h], k and v [B, S, H, h], bias [B|1, H|1, T, S].

  Softmax and sums are float32. Returns [B, T, H · h].
  """
  scores = jnp.einsum("bthd,bshd->bhts", q, k, preferred_element_type=jnp.float32)
  shape = (scores.shape[0], scores.shape[1], *bias.shape[2:])
  weights = jax.nn.softmax(scores + jnp.broadcast_to(bias, shape), axis=-1).astype(q.dtype)
  out = jnp.einsum("bhts,bshd->bthd", weights, v, preferred_element_type=jnp.float32)
  return out.astype(q.dtype).reshape(*q.shape[:2], -1)


class T5Layer(nnx.Module):
  """Self-attention, cross-attention to the encoder (decoder only) and the MLP, each after an RMSNorm."""

  def __init__(self, c: T5Config, *, cross: bool, param_dtype):
    zeros = lambda *shape: nnx.Param(jnp.zeros(shape, param_dtype))
    inner = c.num_heads * c.head_dim
    self.config, self.cross = c, cross
    self.attention_norm, self.mlp_norm = zeros(c.d_model), zeros(c.d_model)
    self.q, self.k, self.v = (zeros(c.d_model, inner) for _ in range(3))
    self.o = zeros(inner, c.d_model)
    if cross:
      self.cross_norm = zeros(c.d_model)
      self.cross_q, self.cross_k, self.cross_v = (zeros(c.d_model, inner) for _ in range(3))
      self.cross_o = zeros(inner, c.d_model)
    if ACTIVATIONS[c.mlp][1]:
      self.gate = zeros(c.d_model, c.d_ff)
    self.up, self.down = zeros(c.d_model, c.d_ff), zeros(c.d_ff, c.d_model)

  def __call__(self, x, bias, states, states_bias):
    """x [B, T, D] → [B, T, D]; a decoder layer also attends to states [B, S, D]. For the biases see `attend`."""
    c = self.config
    heads = lambda x, w: matmul.linear(x, w[...]).reshape(*x.shape[:2], c.num_heads, c.head_dim)
    y = layers.rms_norm(x, self.attention_norm[...], c.norm_eps)
    x = x + matmul.linear(attend(heads(y, self.q), heads(y, self.k), heads(y, self.v), bias), self.o[...])
    if self.cross:
      y = layers.rms_norm(x, self.cross_norm[...], c.norm_eps)
      out = attend(heads(y, self.cross_q), heads(states, self.cross_k), heads(states, self.cross_v), states_bias)
      x = x + matmul.linear(out, self.cross_o[...])
    y = layers.rms_norm(x, self.mlp_norm[...], c.norm_eps)
    activation, gated = ACTIVATIONS[c.mlp]
    up = matmul.linear(y, self.up[...])
    up = activation(matmul.linear(y, self.gate[...])) * up if gated else activation(up)
    return x + matmul.linear(up, self.down[...])


class Stack(nnx.Module):
  """The encoder or the decoder. Its layers are scanned and share one table of relative-position biases."""

  def __init__(self, c: T5Config, *, decoder: bool, param_dtype):
    self.config, self.decoder = c, decoder
    number = c.num_decoder_layers if decoder else c.num_layers
    self.relative_bias = nnx.Param(jnp.zeros((c.num_buckets, c.num_heads), param_dtype))
    self.final_norm = nnx.Param(jnp.zeros((c.d_model,), param_dtype))
    self.layers = nnx.vmap(lambda _: T5Layer(c, cross=decoder, param_dtype=param_dtype))(jnp.arange(number))

  def __call__(self, x: jax.Array, mask: jax.Array, states: jax.Array | None = None) -> jax.Array:
    """x [B, T, D] → [B, T, D] after the final norm.

    Args:
      mask: bool [B, S], True on the encoder's text. The decoder gets the same mask, for its cross-attention.
      states: [B, S, D], the encoder's output; for the decoder only.
    """
    c, T = self.config, x.shape[1]
    places = buckets(T, T, bidirectional=not self.decoder, num_buckets=c.num_buckets, max_distance=c.max_distance)
    bias = self.relative_bias[...].astype(jnp.float32)[jnp.asarray(places)].transpose(2, 0, 1)[None]
    hidden = jnp.where(mask, 0.0, MASKED)[:, None, None, :]
    if self.decoder:
      own, others = jnp.where(jnp.asarray(np.tri(T, dtype=bool))[None, None], bias, MASKED), hidden
    else:
      own, others = jnp.where(mask[:, None, None, :], bias, MASKED), None
    graphdef, stacked = nnx.split(self.layers)
    block = lambda x, params: (nnx.merge(graphdef, params)(x, own, states, others), None)
    return layers.rms_norm(jax.lax.scan(block, x, stacked)[0], self.final_norm[...], c.norm_eps)


class T5(nnx.Module):
  """T5, encoder and decoder. A new one is all zeros; `load_t5` reads weights."""

  def __init__(self, config: T5Config, *, param_dtype=jnp.float32, dtype=jnp.float32):
    self.config, self.dtype = config, jnp.dtype(dtype)
    self.embedding = nnx.Param(jnp.zeros((config.vocab_size, config.d_model), param_dtype))
    self.encoder = Stack(config, decoder=False, param_dtype=param_dtype)
    self.decoder = Stack(config, decoder=True, param_dtype=param_dtype)
    if not config.tied:
      self.lm_head = nnx.Param(jnp.zeros((config.vocab_size, config.d_model), param_dtype))

  def encode(self, tokens: jax.Array, mask: jax.Array) -> jax.Array:
    """The encoder's states [B, T, D] of tokens int [B, T] with a mask [B, T] that is 1 on the text."""
    return self.encoder(self.embedding[...][tokens].astype(self.dtype), mask.astype(bool))

  def __call__(self, tokens: jax.Array, mask: jax.Array, decoder_tokens: jax.Array) -> jax.Array:
    """Logits, float32 [B, S, V], of the token that follows each decoder token, int [B, S].

    Args:
      tokens, mask: the encoder's text, see `encode`; a row needs at least one token.
      decoder_tokens: the answer so far; starts with the config's start_id.
    """
    states = self.encode(tokens, mask)
    x = self.decoder(self.embedding[...][decoder_tokens].astype(self.dtype), mask.astype(bool), states)
    if self.config.scaled:
      x = x * jnp.asarray(self.config.d_model**-0.5, x.dtype)
    head = (self.embedding if self.config.tied else self.lm_head)[...]
    return jnp.einsum("bsd,vd->bsv", x, head.astype(x.dtype), preferred_element_type=jnp.float32)

  def first_logits(self, tokens: jax.Array, mask: jax.Array) -> jax.Array:
    """Logits, float32 [B, V], of the first token of the answer."""
    start = jnp.full((tokens.shape[0], 1), self.config.start_id, jnp.int32)
    return self(tokens, mask, start)[:, 0]


def _table(c: T5Config) -> dict[str, str]:
  """Our parameter names → the folder's tensor names."""
  table = dict(zip(("embedding", "lm_head"), _HEADS))
  gated = ACTIVATIONS[c.mlp][1]
  for stack, mlp in (("encoder", 1), ("decoder", 2)):
    block = f"{stack}.block.{{}}.layer"
    table |= {
      f"{stack}/final_norm": f"{stack}.final_layer_norm.weight",
      f"{stack}/relative_bias": f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
      f"{stack}/layers/attention_norm": f"{block}.0.layer_norm.weight",
      f"{stack}/layers/mlp_norm": f"{block}.{mlp}.layer_norm.weight",
      f"{stack}/layers/up": f"{block}.{mlp}.DenseReluDense.{'wi_1' if gated else 'wi'}.weight",
      f"{stack}/layers/gate": f"{block}.{mlp}.DenseReluDense.wi_0.weight",
      f"{stack}/layers/down": f"{block}.{mlp}.DenseReluDense.wo.weight",
      f"{stack}/layers/cross_norm": f"{block}.1.layer_norm.weight",
    }
    for name in "qkvo":
      table[f"{stack}/layers/{name}"] = f"{block}.0.SelfAttention.{name}.weight"
      table[f"{stack}/layers/cross_{name}"] = f"{block}.1.EncDecAttention.{name}.weight"
  return table


def load_t5(
  path: str | os.PathLike, *, dtype=jnp.float32, mesh: jax.sharding.Mesh | None = None
) -> tuple[T5, T5Config]:
  """A T5 from a Hugging Face folder: config.json and safetensors, one file or shards with an index.

  Args:
    dtype: dtype of weights and matmuls; norms, softmax and sums are float32. float16 overflows in large T5s.
    mesh: shards the weights over it (`parallel/rules.py`).

  Raises:
    ValueError: not a T5; a missing or surplus tensor, or one of another shape; a damaged file.
  """
  folder = pathlib.Path(path)
  where = folder / "config.json"
  values, files = hf.read_json(where), tensors.TensorFolder(folder)
  own = "lm_head.weight" in files.names() and not ("shared.weight" in files.names() and files.equal(*_HEADS))
  config = T5Config.from_hf(values, str(where), own_head=own)
  mapping.refuse_layers(files, str(where), num_layers=config.num_layers, num_decoder_layers=config.num_decoder_layers)
  table = _table(config)
  graphdef, abstract = nnx.split(nnx.eval_shape(lambda: T5(config, param_dtype=dtype, dtype=dtype)))
  # Old files contain copies of the embedding, and an unused bias of the cross-attention.
  ignore = lambda name: (
    name.endswith("embed_tokens.weight")
    or name.endswith("EncDecAttention.relative_attention_bias.weight")
    or (config.tied and name == "lm_head.weight")
  )
  mapping.refuse_surplus(files, table, abstract, ignore, "T5")
  for copy in sorted(name for name in files.names() if name.endswith("embed_tokens.weight")):
    if not files.equal(copy, _HEADS[0]):
      raise ValueError(f"{files.file(copy)}: {copy} differs from {_HEADS[0]}, but a T5 has one embedding.")
  shardings = None if mesh is None else rules.shardings(mesh, abstract)
  return nnx.merge(graphdef, mapping.load(files, table, abstract, shardings)), config
