"""ModernBERT: a bidirectional encoder with rotary positions, norms before its parts, and layers that look nearby only.

It is behind GTE's, Nomic's and Granite's newer encoders. `bert.load_bert` reads its folders. Source: arXiv 2412.13663;
transformers, modeling_modernbert.py.
"""

import dataclasses
import functools
import reprlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ragrl_jax.models import attention, families, hf, layers, mapping, matmul

KIND = "modernbert"  # its model_type
ACTIVATIONS = {"gelu": functools.partial(jax.nn.gelu, approximate=False), "silu": jax.nn.silu}
EVERY, WINDOW, THETA, LOCAL_THETA = 3, 128, 160_000.0, 10_000.0  # transformers' defaults
_MODULES = {
  "norm": "embeddings.norm",
  "layers/qkv": "layers.{}.attn.Wqkv",
  "layers/o": "layers.{}.attn.Wo",
  "layers/mlp_norm": "layers.{}.mlp_norm",
  "layers/up": "layers.{}.mlp.Wi",
  "layers/down": "layers.{}.mlp.Wo",
  "final_norm": "final_norm",
}
HEAD = mapping.weights_and_biases({"pooler": "head.dense", "pooler_norm": "head.norm"})

# Settings that are read or refused below. The others are of dropout, of training, and of the head that predicts tokens;
# position_embedding_type is one of BERT's that ModernBERT's first files have.
KNOWN = hf.HARMLESS | set(
  "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size max_position_embeddings norm_eps "
  "hidden_activation layer_norm_eps norm_bias attention_bias mlp_bias layer_types global_attn_every_n_layers "
  "local_attention rope_parameters global_rope_theta local_rope_theta classifier_pooling classifier_bias "
  "classifier_activation tie_word_embeddings position_embedding_type embedding_dropout mlp_dropout decoder_bias "
  "initializer_cutoff_factor deterministic_flash_attn reference_compile repad_logits_with_grad sparse_prediction "
  "sparse_pred_ignore_index".split()
)


@dataclasses.dataclass(frozen=True)
class ModernBertConfig:
  """The shape of a ModernBERT.

  Attributes:
    max_position: the longest text, in tokens.
    near: of each layer, whether its tokens only attend to those that are at most `reach` tokens away.
    thetas: bases of the rotary frequencies, of the layers that attend to everything and of the others.
    biases: the parts that have biases: "attention", "mlp", "norm" and "classifier".
    classifier_pooling: what the classifier reads: "cls", the first token's state, or "mean".
  """

  vocab_size: int
  d_model: int
  num_layers: int
  num_heads: int
  d_ff: int
  max_position: int
  norm_eps: float
  activation: str
  near: tuple[bool, ...]
  reach: int
  thetas: tuple[float, float]
  biases: frozenset[str]
  classifier_pooling: str

  @property
  def table(self) -> mapping.Table:
    """Our parameter → the name of its tensor. The first layer has no norm before attention."""
    norms = {
      end: tuple(f"layers.{i}.attn_norm.{kind}" for i in range(1, self.num_layers))
      for end, kind in (("", "weight"), ("_bias", "bias"))
    }
    table = {"words": "embeddings.tok_embeddings.weight"} | mapping.weights_and_biases(_MODULES)
    return table | {f"attention_norm{end}": names for end, names in norms.items()}

  @classmethod
  def from_hf(cls, values: Mapping[str, Any], where: str) -> "ModernBertConfig":
    """The config from the contents of a config.json, in the layout of transformers 4 or 5; `where` is its path.

    Raises:
      ValueError: an option that this encoder does not support, or a missing setting.
    """
    size = functools.partial(hf.whole, values, where=where)
    norm_eps = hf.number(values, "norm_eps", where, default=1e-5)
    hf.refuse(values, where, hidden_activation=tuple(ACTIVATIONS), classifier_activation=("gelu",))
    hf.refuse(values, where, classifier_pooling=("cls", "mean"), layer_norm_eps=(norm_eps,))
    hf.refuse_unknown(values, where, KNOWN)
    heads, d_model, num_layers = size("num_attention_heads"), size("hidden_size"), size("num_hidden_layers")
    if d_model % (2 * heads) or num_layers > families.MOST_LAYERS:
      raise ValueError(
        f"{where}: hidden_size is {d_model} with {heads} heads in {num_layers} layers: each head must have an even "
        f"size, and there may be {families.MOST_LAYERS} layers."
      )
    every, kinds = size("global_attn_every_n_layers", default=EVERY), values.get("layer_types")
    if kinds is None:
      kinds = [families.SLIDING if i % every else families.FULL for i in range(num_layers)]
    if not isinstance(kinds, list) or len(kinds) != num_layers or set(kinds) - {families.FULL, families.SLIDING}:
      raise ValueError(
        f"{where}: layer_types has {reprlib.repr(kinds)}: it must have {families.FULL} or {families.SLIDING} for each "
        f"of {num_layers} layers."
      )
    return cls(
      vocab_size=size("vocab_size"),
      d_model=d_model,
      num_layers=num_layers,
      num_heads=heads,
      d_ff=size("intermediate_size"),
      max_position=size("max_position_embeddings", default=8192),
      norm_eps=norm_eps,
      activation=values.get("hidden_activation") or "gelu",
      near=tuple(kind == families.SLIDING for kind in kinds),
      reach=size("local_attention", default=WINDOW) // 2,
      thetas=_thetas(values, where),
      biases=frozenset(part for part in ("attention", "mlp", "norm", "classifier") if values.get(f"{part}_bias")),
      classifier_pooling=values.get("classifier_pooling") or "cls",
    )


def _thetas(values: Mapping[str, Any], where: str) -> tuple[float, float]:
  """The two bases: of rope_parameters, or before transformers 5 of global_rope_theta and local_rope_theta."""
  names = dict(global_rope_theta="rope_theta", local_rope_theta="rope_local_base_freq")
  old = {of_ropes: values[name] for name, of_ropes in names.items() if name in values}
  theta, local, scaling = hf.two_ropes({**values, **old}, where, theta=THETA, local=LOCAL_THETA)
  if scaling is not None:
    raise ValueError(f"{where}: rope_parameters has rope_type {scaling.kind!r}: only 'default' is supported.")
  return theta, local


def _both(module: nnx.Module, name: str) -> tuple[jax.Array, jax.Array | None]:
  """The weight of this name, and its bias or None."""
  bias = getattr(module, f"{name}_bias", None)
  return getattr(module, name)[...], None if bias is None else bias[...]


class ModernBertLayer(nnx.Module):
  """Attention, then a gated MLP after a LayerNorm. The model norms attention's input. Matrices are [in, out]."""

  def __init__(self, c: ModernBertConfig, param_dtype):
    zeros = lambda *shape: nnx.Param(jnp.zeros(shape, param_dtype))
    self.qkv, self.o = zeros(c.d_model, 3 * c.d_model), zeros(c.d_model, c.d_model)
    self.mlp_norm = zeros(c.d_model)
    self.up, self.down = zeros(c.d_model, 2 * c.d_ff), zeros(c.d_ff, c.d_model)
    if "attention" in c.biases:
      self.qkv_bias, self.o_bias = zeros(3 * c.d_model), zeros(c.d_model)
    if "mlp" in c.biases:
      self.up_bias, self.down_bias = zeros(2 * c.d_ff), zeros(c.d_model)
    if "norm" in c.biases:
      self.mlp_norm_bias = zeros(c.d_model)

  def __call__(self, x, normed, attend, cos, sin, c: ModernBertConfig) -> jax.Array:
    qkv = matmul.linear(normed, *_both(self, "qkv")).reshape(*x.shape[:2], 3, c.num_heads, -1)
    q, k, v = jnp.moveaxis(qkv, 2, 0)
    out = attend(layers.rotate(q, cos, sin), layers.rotate(k, cos, sin), v)
    x = x + matmul.linear(out.reshape(x.shape), *_both(self, "o"))
    up = matmul.linear(layers.layer_norm(x, *_both(self, "mlp_norm"), c.norm_eps), *_both(self, "up"))
    value, gate = jnp.split(up, 2, axis=-1)
    return x + matmul.linear(ACTIVATIONS[c.activation](value) * gate, *_both(self, "down"))


class ModernBert(nnx.Module):
  """The encoder. A new one is all zeros; `bert.load_bert` reads weights."""

  def __init__(self, config: ModernBertConfig, *, pooler: bool, param_dtype=jnp.float32, dtype=jnp.float32):
    self.config, self.dtype, d = config, jnp.dtype(dtype), config.d_model
    zeros = lambda *shape: nnx.Param(jnp.zeros(shape, param_dtype))
    self.words, self.norm, self.final_norm = zeros(config.vocab_size, d), zeros(d), zeros(d)
    self.attention_norm = zeros(config.num_layers - 1, d)
    if "norm" in config.biases:
      self.norm_bias, self.final_norm_bias = zeros(d), zeros(d)
      self.attention_norm_bias = zeros(config.num_layers - 1, d)
    if pooler:
      self.pooler, self.pooler_norm = zeros(d, d), zeros(d)
      if "classifier" in config.biases:
        self.pooler_bias = zeros(d)
      if "norm" in config.biases:
        self.pooler_norm_bias = zeros(d)
    self.layers = nnx.vmap(lambda _: ModernBertLayer(config, param_dtype))(jnp.arange(config.num_layers))

  def hidden(
    self, tokens: jax.Array, mask: jax.Array, mesh: jax.sharding.Mesh | None = None, *, types: jax.Array | None = None
  ) -> jax.Array:
    """Hidden states [B, T, D] of texts, as `Bert.hidden`; there are no token types, so `types` is not read."""
    c, T = self.config, tokens.shape[1]
    segment_ids = mask.astype(jnp.int32)
    every = lambda q, k, v: attention.attend(q, k, v, segment_ids, causal=False, mesh=mesh)
    near = lambda q, k, v: attention.near(q, k, v, mask != 0, c.reach)
    frequencies = [layers.rope_frequencies(c.d_model // c.num_heads, theta, None) for theta in c.thetas]
    angles = jnp.arange(T, dtype=jnp.float32)[None, None, :, None, None] * np.stack(frequencies)[:, None, None, None]
    cos, sin = jnp.cos(angles), jnp.sin(angles)  # [2, 1, T, 1, h / 2]
    graphdef, stacked = nnx.split(self.layers)

    def block(x, inputs):
      params, norm, first, slides = inputs
      normed = jnp.where(first, x, layers.layer_norm(x, *norm, c.norm_eps))
      attend = every
      if any(c.near) and T > c.reach + 1:  # else no text is longer than a window
        attend = lambda q, k, v: jax.lax.cond(slides, near, every, q, k, v)
      kind = slides.astype(jnp.int32)
      return nnx.merge(graphdef, params)(x, normed, attend, cos[kind], sin[kind], c), None

    norms = jax.tree.map(lambda x: jnp.pad(x, ((1, 0), (0, 0))), _both(self, "attention_norm"))
    x = layers.layer_norm(self.words[...][tokens].astype(self.dtype), *_both(self, "norm"), c.norm_eps)
    x = jax.lax.scan(block, x, (stacked, norms, jnp.arange(c.num_layers) == 0, jnp.array(c.near)))[0]
    return layers.layer_norm(x, *_both(self, "final_norm"), c.norm_eps)

  def pooled(self, states: jax.Array) -> jax.Array:
    """The classifier's head, norm(gelu(W state + b)), on states [B, D]. Its matrix is [out, in]."""
    dense, bias = _both(self, "pooler")
    states = jax.nn.gelu(matmul.linear(states, dense.T, bias), approximate=False)
    return layers.layer_norm(states, *_both(self, "pooler_norm"), self.config.norm_eps)
