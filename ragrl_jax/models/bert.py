"""The bidirectional encoder of BERT, RoBERTa and MPNet, behind E5, BGE, MiniLM, Arctic Embed and both towers of DPR."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from ragrl_jax.models import attention, hf, layers, mapping, matmul, modernbert, t5, tensors

ROBERTAS, MPNET = ("roberta", "xlm-roberta"), "mpnet"
_MODULES = {
  "norm": "embeddings.LayerNorm",
  "pooler": "pooler.dense",
  "layers/q": "encoder.layer.{}.attention.self.query",
  "layers/k": "encoder.layer.{}.attention.self.key",
  "layers/v": "encoder.layer.{}.attention.self.value",
  "layers/o": "encoder.layer.{}.attention.output.dense",
  "layers/attention_norm": "encoder.layer.{}.attention.output.LayerNorm",
  "layers/up": "encoder.layer.{}.intermediate.dense",
  "layers/down": "encoder.layer.{}.output.dense",
  "layers/mlp_norm": "encoder.layer.{}.output.LayerNorm",
}
_MPNETS = {f"layers/{name}": f"encoder.layer.{{}}.attention.attn.{name}" for name in "qkvo"}
_MPNETS["layers/attention_norm"] = "encoder.layer.{}.attention.LayerNorm"

# Settings that are read or refused below; those of the pooler are notes of the first BERTs.
KNOWN = hf.HARMLESS | set(
  "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size max_position_embeddings hidden_act "
  "type_vocab_size layer_norm_eps position_embedding_type projection_dim is_decoder directionality tie_word_embeddings "
  "pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type".split()
)
BUCKETS = dict(num_buckets=32, max_distance=128)  # MPNet's in transformers, whatever config.json says


@dataclasses.dataclass(frozen=True)
class BertConfig:
  """The shape of an encoder.

  Attributes:
    max_position: the longest text, in tokens.
    num_types: number of token types; 0: there are none.
    first_position: the first token's; RoBERTa's and MPNet's is behind the padding token's id.
    relative: whether scores have a bias by distance, the same in all layers, as MPNet's.
  """

  vocab_size: int
  d_model: int
  num_layers: int
  num_heads: int
  d_ff: int
  max_position: int
  num_types: int
  norm_eps: float
  first_position: int = 0
  relative: bool = False

  classifier_pooling = "cls"  # what a classifier reads

  @property
  def table(self) -> mapping.Table:
    """Our parameter → the name of its tensor, also of parameters that this model has not."""
    table = {
      "words": "embeddings.word_embeddings.weight",
      "places": "embeddings.position_embeddings.weight",
      "types": "embeddings.token_type_embeddings.weight",
      "distances": "encoder.relative_attention_bias.weight",
    }
    return table | mapping.weights_and_biases(_MODULES | (_MPNETS if self.relative else {}))

  @classmethod
  def from_hf(cls, values: Mapping[str, Any], where: str) -> "BertConfig":
    """The config from the contents of a config.json; `where` is its path, for messages.

    Raises:
      ValueError: another model, or an option that this encoder does not support.
    """
    size = functools.partial(hf.whole, values, where=where)
    if (kind := hf.required(values, "model_type", where)) not in ("bert", "dpr", MPNET, *ROBERTAS):
      raise ValueError(
        f"{where}: model_type {kind!r} is not a BERT: it must be bert, dpr, mpnet, {' or '.join(ROBERTAS)}."
      )
    hf.refuse(values, where, hidden_act=("gelu",), position_embedding_type=("absolute",), projection_dim=(0,))
    hf.refuse(values, where, is_decoder=(False,), directionality=("bidi",))
    relative = kind == MPNET
    hf.refuse(values, where, relative_attention_num_buckets=(BUCKETS["num_buckets"],))
    hf.refuse_unknown(values, where, KNOWN | {"relative_attention_num_buckets"} if relative else KNOWN)
    first = size("pad_token_id", default=1) + 1 if kind in ROBERTAS else 2 if relative else 0
    return cls(
      vocab_size=size("vocab_size"),
      d_model=size("hidden_size"),
      num_layers=size("num_hidden_layers"),
      num_heads=size("num_attention_heads"),
      d_ff=size("intermediate_size"),
      max_position=size("max_position_embeddings") - first,
      num_types=0 if relative else size("type_vocab_size", default=2),
      norm_eps=hf.number(values, "layer_norm_eps", where, default=1e-12),
      first_position=first,
      relative=relative,
    )


class BertLayer(nnx.Module):
  """Attention and MLP, each followed by a LayerNorm of the residual sum. Matrices are [in, out]."""

  def __init__(self, c: BertConfig, param_dtype):
    zeros = lambda *shape: nnx.Param(jnp.zeros(shape, param_dtype))
    self.q, self.k, self.v, self.o = (zeros(c.d_model, c.d_model) for _ in range(4))
    self.q_bias, self.k_bias, self.v_bias, self.o_bias = (zeros(c.d_model) for _ in range(4))
    self.attention_norm, self.attention_norm_bias = zeros(c.d_model), zeros(c.d_model)
    self.up, self.up_bias = zeros(c.d_model, c.d_ff), zeros(c.d_ff)
    self.down, self.down_bias = zeros(c.d_ff, c.d_model), zeros(c.d_model)
    self.mlp_norm, self.mlp_norm_bias = zeros(c.d_model), zeros(c.d_model)

  def __call__(self, x, segment_ids: jax.Array, c: BertConfig, mesh=None, plain=False, bias=None) -> jax.Array:
    heads = (*x.shape[:2], c.num_heads, c.d_model // c.num_heads)
    q, k, v = (
      matmul.linear(x, w[...], b[...]).reshape(heads)
      for w, b in ((self.q, self.q_bias), (self.k, self.k_bias), (self.v, self.v_bias))
    )
    if plain or bias is not None:
      out = attention.plain(q, k, v, (segment_ids != 0)[:, None], bias)
    else:
      out = attention.attend(q, k, v, segment_ids, causal=False, mesh=mesh)
    x = x + matmul.linear(out.reshape(x.shape), self.o[...], self.o_bias[...])
    x = layers.layer_norm(x, self.attention_norm[...], self.attention_norm_bias[...], c.norm_eps)
    up = jax.nn.gelu(matmul.linear(x, self.up[...], self.up_bias[...]), approximate=False)
    x = x + matmul.linear(up, self.down[...], self.down_bias[...])
    return layers.layer_norm(x, self.mlp_norm[...], self.mlp_norm_bias[...], c.norm_eps)


class Bert(nnx.Module):
  """The encoder: each token attends to all tokens of its text. A new one is all zeros; `load_bert` reads weights."""

  def __init__(self, config: BertConfig, *, pooler: bool, param_dtype=jnp.float32, dtype=jnp.float32):
    self.config, self.dtype = config, jnp.dtype(dtype)
    zeros = lambda *shape: nnx.Param(jnp.zeros(shape, param_dtype))
    self.words = zeros(config.vocab_size, config.d_model)
    self.places = zeros(config.first_position + config.max_position, config.d_model)
    if config.num_types:
      self.types = zeros(config.num_types, config.d_model)
    if config.relative:
      self.distances = zeros(BUCKETS["num_buckets"], config.num_heads)
    self.norm, self.norm_bias = zeros(config.d_model), zeros(config.d_model)
    if pooler:
      self.pooler, self.pooler_bias = zeros(config.d_model, config.d_model), zeros(config.d_model)
    self.layers = nnx.vmap(lambda _: BertLayer(config, param_dtype))(jnp.arange(config.num_layers))

  def hidden(
    self,
    tokens: jax.Array,
    mask: jax.Array,
    mesh: jax.sharding.Mesh | None = None,
    *,
    types: jax.Array | None = None,
    plain: bool = False,
  ) -> jax.Array:
    """Hidden states [B, T, D] of texts.

    Args:
      tokens: int [B, T]; T <= `max_position`.
      mask: [B, T], 1 on the text.
      mesh: shards the texts; None means one device of the default platform.
      types: token types, int [B, T]: 1 on the second text of a pair. None: all are 0. Not read if there are none.
      plain: as in transformers, padding tokens also attend to the text. Otherwise attention gives them zeros.
    """
    c, bias = self.config, None
    if c.relative:
      buckets = t5.buckets(tokens.shape[1], tokens.shape[1], bidirectional=True, **BUCKETS)
      bias = self.distances[...].astype(jnp.float32)[buckets].transpose(2, 0, 1)
    if c.first_position:  # the padding token is not counted, also where a text names it
      counted = (tokens != c.first_position - 1).astype(jnp.int32)
      places = self.places[...][jnp.cumsum(counted, axis=1) * counted + c.first_position - 1]
    else:
      places = self.places[: tokens.shape[1]][None]
    x = self.words[...][tokens] + places
    if c.num_types:
      x = x + (self.types[:1][None] if types is None else self.types[...][types])
    x = layers.layer_norm(x.astype(self.dtype), self.norm[...], self.norm_bias[...], c.norm_eps)
    segment_ids = mask.astype(jnp.int32)
    graphdef, stacked = nnx.split(self.layers)
    block = lambda x, params: (nnx.merge(graphdef, params)(x, segment_ids, c, mesh, plain, bias), None)
    return jax.lax.scan(block, x, stacked)[0]

  def pooled(self, first: jax.Array) -> jax.Array:
    """BERT's pooler, tanh(W first + b), on the first tokens' states [B, D]. Its matrix is [out, in]."""
    return jnp.tanh(matmul.linear(first, self.pooler[...].T, self.pooler_bias[...]))


def load_bert(
  path: str | os.PathLike, *, pooler: bool, dtype=jnp.float32, mesh: jax.sharding.Mesh | None = None, head: str = ""
) -> tuple[Bert | modernbert.ModernBert, BertConfig | modernbert.ModernBertConfig]:
  """An encoder from a Hugging Face folder (BertModel, a model with a head on it, or a tower of DPR; or a ModernBERT).

  Args:
    pooler: whether to load the pooler; if not, its weights may be missing. ModernBERT's is part of its classifier.
    mesh: each of its devices holds the whole encoder. None means one device of the default platform.
    head: prefix, without its dot, of the names of tensors that the caller reads itself, such as "classifier"; "" for
      none.

  Raises:
    ValueError: not a BERT; a missing or surplus tensor, or one of another shape; a damaged file.
  """
  folder = pathlib.Path(path)
  where = folder / "config.json"
  values = hf.read_json(where)
  modern = values.get("model_type") == modernbert.KIND
  kind, model = (modernbert.ModernBertConfig, modernbert.ModernBert) if modern else (BertConfig, Bert)
  config = kind.from_hf(values, str(where))
  files = tensors.TensorFolder(folder)
  mapping.refuse_layers(files, str(where), num_hidden_layers=config.num_layers)
  words = config.table["words"]
  root = next((name for name in sorted(files.names()) if name.endswith(words)), words)
  root = root.removesuffix(words)  # "", "bert.", "model." or "question_encoder.bert_model."
  table = mapping.renamed(config.table, lambda name: root + name)
  if root + "embeddings.LayerNorm.gamma" in files.names():  # the first BERTs, as bert-base-uncased
    older = lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    table = mapping.renamed(table, older)
  if modern:
    table |= modernbert.HEAD
  elif pooler and f"{head}.dense.weight" in files.names():  # RoBERTa's pooler is part of its head
    table |= dict(pooler=f"{head}.dense.weight", pooler_bias=f"{head}.dense.bias")
  graphdef, abstract = nnx.split(nnx.eval_shape(lambda: model(config, pooler=pooler, param_dtype=dtype, dtype=dtype)))
  # Old files contain position ids. Heads, and a pooler that is not requested, do not affect an embedding.
  heads = ("head.", "decoder.") if modern else ("cls.", "lm_head.", f"{root}pooler.")
  heads += (f"{head}.",) if head else ()
  ignore = lambda name: name.endswith("position_ids") or name.startswith(heads)
  mapping.refuse_surplus(files, table, abstract, ignore, "ModernBERT" if modern else "BERT")
  replicated = None if mesh is None else jax.tree.map(lambda _: NamedSharding(mesh, PartitionSpec()), abstract)
  return nnx.merge(graphdef, mapping.load(files, table, abstract, replicated)), config
