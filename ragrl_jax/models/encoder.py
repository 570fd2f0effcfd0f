"""Text encoder for dense retrieval: a BERT-type model (one or two towers) or a decoder, with pooling and prefixes.

A decoder may be bidirectional, and Dense modules of sentence-transformers may follow the pooling, as in EmbeddingGemma.
"""

import dataclasses
import functools
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ragrl_jax.core.text import beginnings
from ragrl_jax.core.text.forms import well_formed
from ragrl_jax.models import attention, bert, encoder_settings, families, hf, matmul, modernbert, tensors, weights
from ragrl_jax.models.config import EVERYTHING
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.models.encoder_settings import EncoderSettings
from ragrl_jax.parallel import rules
from ragrl_jax.prompting import declared
from ragrl_jax.store import disk_cache
from ragrl_jax.structs import Passage

# Texts are padded to one of these lengths: 16, 32, 48, 64, 80, …, 128, 160, …, 256, 320, …, 8192.
LENGTHS = (16, 32, 48, *(n for by in (16, 32, 64, 128, 256, 512, 1024) for n in range(4 * by, 8 * by, by)), 8192)
TOWERS = ("query", "passage")
PROBE = "In 1906,  Łódź's “ﬁrst” tram ran 12.5 km\n(naïve, 東京)."  # its ids show how a tokenizer splits and joins


def padded_length(size: int) -> int:
  """The smallest of LENGTHS that is at least `size`, in tokens; `size` is at most the last of them."""
  return next(length for length in LENGTHS if size <= length)


def batches(
  rows: Sequence[Sequence[Sequence[int]]], batch: int, padded: Callable[[int], int]
) -> Iterator[tuple[list[int], np.ndarray]]:
  """Stacks rows of similar length, so that few shapes are compiled.

  Args:
    rows: each has one or more lists of the same length: token ids, then other values of each token.
    batch: number of rows in each array, B; missing ones are 0.
    padded: number of tokens → length T of their array.

  Yields:
    (positions of the rows, their values int32 [lists, B, T]).
  """
  buckets: dict[int, list[int]] = {}
  for i, row in enumerate(rows):
    buckets.setdefault(padded(len(row[0])), []).append(i)
  for length, members in sorted(buckets.items()):
    for start in range(0, len(members), batch):
      members_of_batch = members[start : start + batch]
      stacked = np.zeros((len(rows[0]), batch, length), np.int32)
      for at, i in enumerate(members_of_batch):
        stacked[:, at, : len(rows[i][0])] = rows[i]
      yield members_of_batch, stacked


def text_of(passage: Passage, join: str) -> str:
  """Title, `join` and text; the text alone without a title."""
  return f"{passage.title}{join}{passage.text}" if passage.title else passage.text


def usual_batch() -> int:
  """Default number of texts per batch: 8 on a CPU, where larger batches are not faster, and else 64."""
  return 8 if jax.default_backend() == "cpu" else 64


def pool(states: jax.Array, mask: jax.Array, pooling: str) -> jax.Array:
  """Pools states [B, T, D] to float32 [B, D]. A row without tokens gives zeros (mean) or its first state.

  Args:
    mask: [B, T], 1 on the text.
    pooling: one of `encoder_settings.POOLINGS`; "pooler" gives the state for BERT's pooler, which is that of "cls".
  """
  states, mask = states.astype(jnp.float32), mask.astype(jnp.float32)
  if pooling == "mean":
    total = jnp.einsum("btd,bt->bd", states, mask, precision=jax.lax.Precision.HIGHEST)
    return total / jnp.maximum(mask.sum(axis=1, keepdims=True), 1.0)
  if pooling == "last":  # the last token with mask 1, on whichever side the padding is
    place = jnp.max(jnp.where(mask > 0, jnp.arange(mask.shape[1])[None], 0), axis=1)
    return jnp.take_along_axis(states, place[:, None, None], axis=1)[:, 0]
  return states[:, 0]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dense:
  """A module that follows the pooling: W x + bias of vectors x, and its tanh or not; W is [out, in]."""

  weight: jax.Array
  bias: jax.Array | None
  tanh: bool = dataclasses.field(metadata=dict(static=True))

  def __call__(self, vectors: jax.Array) -> jax.Array:
    out = matmul.linear(vectors, self.weight.T, self.bias)
    return jnp.tanh(out) if self.tanh else out


class Encoder:
  """A text encoder as retrieval needs it: `queries`, `passages`, `dim` and `settings`."""

  def __init__(
    self,
    models: Mapping[str, tuple[nnx.Module, Sequence[Dense]]],
    tokenizers: Mapping[str, Any],
    settings: EncoderSettings,
    *,
    dim: int,
    mark: Mapping[str, Any],
    batch: int = 32,
    mesh: jax.sharding.Mesh | None = None,
  ):
    """Use `load_encoder`.

    Args:
      models: the models for "query" and "passage", and what follows their pooling: the same twice, or two towers.
      tokenizers: a `tokenizers.Tokenizer` for each of the two.
      mark: hashes of weights and tokenizers, and whether EOS is put behind a text; by these an index recognises its
        encoder.
      batch: number of texts encoded together. Smaller batches are padded, so that few shapes are compiled.
      mesh: shards the texts over its data axes.
    """
    self.dim, self.batch, self._settings, self._mark, self._mesh = dim, batch, settings, mark, mesh
    self._tokenizers = tokenizers
    self._split = {kind: (*nnx.split(model), tuple(dense)) for kind, (model, dense) in models.items()}
    self._run = jax.jit(functools.partial(vectors_of, settings, mesh=mesh), static_argnums=0)

  @property
  def settings(self) -> Mapping[str, Any]:
    """The settings, a hash of the weights, `encoder_settings.TOKENS`, and `EOS` if it is put behind a text; as JSON."""
    return {**dataclasses.asdict(self._settings), **self._mark}

  def encode(self, tokens: jax.Array, mask: jax.Array, kind: str = "query") -> jax.Array:
    """Vectors, float32 [B, D], of token ids int [B, T] with a mask [B, T] that is 1 on the text."""
    graphdef, params, dense = self._split[kind]
    return self._run(graphdef, params, tokens, mask, dense)

  def embed_texts(self, texts: Sequence[str], kind: str) -> np.ndarray:
    """Vectors, float32 [n, D], in the order of the texts. The prefix of the kind is put before each text.

    A text is padded to one of a few lengths and computed in a batch of fixed size. So its vector depends on the text
    alone, and few shapes are compiled.

    Args:
      kind: "query" or "passage"; a batch has at most 8 queries.

    Raises:
      ValueError: another kind.
    """
    if kind not in TOWERS:
      raise ValueError(f"kind={kind!r}: it must be one of {', '.join(TOWERS)}.")
    batch = min(8, self.batch) if kind == "query" else self.batch
    if self._mesh is not None:
      batch += -batch % rules.ways(self._mesh, rules.MESH_AXES["batch"])
    rows = [(ids, [1] * len(ids)) for ids in self._ids(texts, kind)]
    out = np.zeros((len(rows), self.dim), np.float32)
    for indices, arrays in batches(rows, batch, lambda size: min(padded_length(size), self._settings.max_tokens)):
      if self._mesh is not None:
        spread = jax.sharding.NamedSharding(self._mesh, jax.sharding.PartitionSpec(rules.MESH_AXES["batch"]))
        arrays = jax.device_put(tuple(arrays), spread)
      out[indices] = np.asarray(self.encode(*arrays, kind))[: len(indices)]
    return out

  def queries(self, texts: Sequence[str]) -> np.ndarray:
    """Vectors of queries, float32 [n, dim]."""
    return self.embed_texts(texts, "query")

  def passages(self, passages: Sequence[Passage]) -> np.ndarray:
    """Vectors of passages, float32 [n, dim]; a passage's title is put before its text."""
    return self.embed_texts([text_of(passage, self._settings.title_separator) for passage in passages], "passage")

  def num_tokens(self, texts: Sequence[str], kind: str) -> list[int]:
    """Number of ids of each text, with its prefix and special tokens, after truncation."""
    return [len(ids) for ids in self._ids(texts, kind)]

  def _ids(self, texts: Sequence[str], kind: str) -> list[list[int]]:
    prefix = self._settings.query_prefix if kind == "query" else self._settings.passage_prefix
    tokenizer, most = self._tokenizers[kind], self._settings.max_tokens
    # Stripped, as in sentence-transformers.
    prepared = [well_formed(beginnings.for_rows((prefix + text).strip(), most, tokenizer)) for text in texts]
    prepared = [text.lower() for text in prepared] if self._settings.lower_case else prepared
    return [encoding.ids for encoding in tokenizer.encode_batch(prepared)]


def vectors_of(
  settings: EncoderSettings,
  graphdef,
  params,
  tokens: jax.Array,
  mask: jax.Array,
  dense: Sequence[Dense] = (),
  mesh: jax.sharding.Mesh | None = None,
) -> jax.Array:
  """Vectors, float32 [B, D], of token ids int [B, T] with a mask [B, T]; `mesh` as for `Bert.hidden`."""
  model = nnx.merge(graphdef, params)
  if isinstance(model, Decoder) and model.config.bidirectional:
    states = _both_ways(model, tokens, mask)
  elif isinstance(model, Decoder):
    states = model.hidden(tokens, segment_ids=mask)
  else:
    states = model.hidden(tokens, mask, mesh)
  vectors = pool(states, mask, settings.pooling)
  if settings.pooling == "pooler":
    vectors = model.pooled(vectors)
  for module in dense:
    vectors = module(vectors)
  if settings.normalize:
    vectors = vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
  return vectors


def _both_ways(model: Decoder, tokens: jax.Array, mask: jax.Array) -> jax.Array:
  """Hidden states [B, T, D] of a bidirectional decoder; a sliding layer looks window - 1 tokens to each side."""
  c, T, segment_ids = model.config, tokens.shape[1], mask.astype(jnp.int32)
  every = lambda q, k, v: attention.attend(q, k, v, segment_ids, causal=False, mesh=model.mesh)
  of_layer = lambda layer, q, k, v, carry: (every(q, k, v), carry)
  if min(c.windows) < T:  # else no text is longer than a window
    of_heads = lambda x: jnp.repeat(x, c.num_heads // c.num_kv_heads, axis=2)
    near = lambda q, k, v: attention.near(q, of_heads(k), of_heads(v), mask != 0, c.window - 1)
    slides = jnp.array([window < EVERYTHING for window in c.windows])
    of_layer = lambda layer, q, k, v, carry: (jax.lax.cond(slides[layer], near, every, q, k, v), carry)
  return model.run(model.embed(tokens), attention.segment_positions(segment_ids), of_layer, ())[0]


def load_encoder(
  path: str | os.PathLike,
  *,
  settings: str | Mapping[str, Any] | EncoderSettings | None = None,
  query_prefix: str | None = None,
  passage_path: str | os.PathLike | None = None,
  dtype: Any = "float32",
  batch: int | None = None,
  mesh: jax.sharding.Mesh | None = None,
) -> Encoder:
  """A text encoder from a Hugging Face folder: config.json, safetensors and tokenizer.

  Args:
    path: folder of a BERT-type encoder or of an embedding decoder; with two towers, that of the queries.
    settings: see `encoder_settings.settings_for`.
    query_prefix: text put before every query; None: that of the settings.
    passage_path: folder of the tower for passages, if that is a separate model (DPR).
    dtype: dtype of weights and matmuls; vectors are float32.
    batch: number of passages encoded together; by default `usual_batch`.
    mesh: shards the texts over its devices.

  Raises:
    ValueError: an unknown architecture, weights that do not fit it, no tokenizer, or unknown settings.
  """
  resolved = encoder_settings.settings_for(path, settings, query_prefix)
  towers = {
    kind: _tower(folder, resolved, jnp.dtype(dtype), mesh)
    for kind, folder in zip(TOWERS, (path, passage_path))
    if folder is not None
  }
  towers.setdefault("passage", towers["query"])
  models, tokenizers, marks, sizes, limits = zip(*towers.values())
  texts, ends = zip(*tokenizers)
  if len(set(sizes)) > 1:
    raise ValueError(f"{path} gives vectors of {sizes[0]}, {passage_path} of {sizes[1]}: they must agree.")
  resolved = dataclasses.replace(resolved, max_tokens=min(resolved.max_tokens, *limits))
  for text in texts:
    text.no_padding()
    text.enable_truncation(resolved.max_tokens)
  seen = [[sorted(text.get_vocab(with_added_tokens=False).items()), text.encode(PROBE).ids] for text in texts]
  mark = {"weights": "+".join(dict.fromkeys(marks)), encoder_settings.TOKENS: disk_cache.key(*seen)[:16]}
  return Encoder(
    dict(zip(TOWERS, models)),
    dict(zip(TOWERS, texts)),
    resolved,
    dim=sizes[0],
    batch=batch or usual_batch(),
    mesh=mesh,
    mark=mark | ({encoder_settings.EOS: True} if any(ends) else {}),
  )


def _tower(path, settings: EncoderSettings, dtype, mesh) -> tuple[tuple[nnx.Module, list[Dense]], Any, str, int, int]:
  """((model, what follows the pooling), result of `_tokenizer`, hash of the weights, vector length, longest text)."""
  folder = pathlib.Path(path)
  values = hf.read_json(folder / "config.json")
  marks = [tensors.TensorFolder(folder).fingerprint()]
  decodes = values.get("model_type") in families.FAMILIES
  if settings.pooling == "pooler" and (decodes or values.get("model_type") == modernbert.KIND):
    kind, other = ("decoder", "last") if decodes else ("ModernBERT", "cls")
    raise ValueError(f"{folder}: a {kind} has no pooler: use pooling={other!r} (encoder settings).")
  if decodes:
    model, shape = weights.load_pretrained(folder, dtype=dtype, mesh=mesh, head=False)
  else:
    model, shape = bert.load_bert(folder, pooler=settings.pooling == "pooler", dtype=dtype, mesh=mesh)
  dim, dense = shape.d_model, []
  for kind, place in encoder_settings.modules(folder) if (folder / encoder_settings.MODULES).is_file() else ():
    if kind == "Dense":
      module, mark = _dense(place, dim, dtype, mesh)
      dim = module.weight.shape[0]
      dense.append(module)
      marks.append(mark)
  return (model, dense), _tokenizer(folder, shape.vocab_size), "-".join(marks), dim, shape.max_position


def _dense(folder: pathlib.Path, dim: int, dtype, mesh) -> tuple[Dense, str]:
  """(a Dense module for vectors of size `dim`, hash of its weights)."""
  where, sentence = folder / "config.json", ("sentence_embedding",)
  values = hf.read_json(where)
  hf.refuse(values, str(where), in_features=(dim,), module_input_name=sentence, module_output_name=sentence)
  known = "in_features out_features bias activation_function module_input_name module_output_name".split()
  hf.refuse_unknown(values, str(where), known)
  activation = values.get("activation_function", "Tanh")
  if not re.fullmatch(r"(torch\.nn\.(modules\.\w+\.)?)?(Identity|Tanh)", str(activation)):
    raise ValueError(f"{where}: activation_function is {activation!r}: only torch's Identity and Tanh are supported.")
  files, out = tensors.TensorFolder(folder), hf.whole(values, "out_features", str(where))
  shapes = {"linear.weight": (out, dim)} | ({"linear.bias": (out,)} if values.get("bias", True) else {})
  if surplus := sorted(files.names() - shapes.keys()):
    raise ValueError(f"{files.file(surplus[0])}: tensor {surplus[0]} has no place in a Dense module as {where} says.")
  place = None if mesh is None else jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  read = [jax.device_put(jnp.asarray(files.open(name, shape), dtype), place) for name, shape in shapes.items()]
  return Dense(read[0], read[1] if len(read) > 1 else None, str(activation).endswith("Tanh")), files.fingerprint()


def tokenizer_of(folder: pathlib.Path, rows: int):
  """The folder's fast tokenizer; its post-processor adds the model's special tokens around a text.

  It makes text lower case, or puts EOS behind it, if tokenizer_config.json says do_lower_case or add_eos_token.

  Args:
    rows: of the model's embedding.

  Raises:
    ValueError: the folder has no tokenizer, or one whose added tokens have other ids than its files declare, or ids
      for which there is no row.
  """
  return _tokenizer(folder, rows)[0]


def check_rows(folder: os.PathLike, ids: int, rows: int) -> None:
  """Raises a ValueError if a tokenizer has more ids than its model rows: JAX would take the last row for them."""
  if ids > rows:
    raise ValueError(
      f"{folder}: its tokenizer has {ids} ids, and its model {rows} rows (vocab_size of config.json): they do not "
      "belong together. Copy the model's own tokenizer there."
    )


def _tokenizer(folder: pathlib.Path, rows: int) -> tuple[Any, bool]:
  """(`tokenizer_of`, whether it puts EOS behind a text)."""
  import tokenizers  # slow to import, and only needed here
  import transformers

  if not any((folder / name).exists() for name in ("tokenizer.json", "vocab.txt", "tokenizer.model")):
    raise ValueError(f"{folder} has no tokenizer (tokenizer.json or vocab.txt): copy the model's own there.")
  whole = declared.loaded(folder, lambda: transformers.AutoTokenizer.from_pretrained(folder, use_fast=True))
  backend = whole.backend_tokenizer
  check_rows(folder, 1 + max(i for text, i in backend.get_vocab().items() if text != declared.IMAGE), rows)
  if whole.init_kwargs.get("do_lower_case") and backend.encode("A").ids != backend.encode("a").ids:
    # A flag that transformers only reads for tokenizers of its class BertTokenizer.
    parts = [] if backend.normalizer is None else [backend.normalizer]
    backend.normalizer = tokenizers.normalizers.Sequence([*parts, tokenizers.normalizers.Lowercase()])
  put = backend.encode("a")
  asked = declared.read(folder / declared.CONFIG).get("add_eos_token") and whole.eos_token
  ends = bool(asked) and put.special_tokens_mask[-1:] == [0]
  if ends:
    # transformers 5 reads this flag only without tokenizer.json. The vector of e5-mistral is the state of its EOS.
    first = [token for token, special in zip(zip(put.tokens, put.ids), put.special_tokens_mask) if special]
    backend.post_processor = tokenizers.processors.TemplateProcessing(
      [*(name for name, _ in first), "$A", whole.eos_token],
      special_tokens=[*first, (whole.eos_token, whole.eos_token_id)],
    )
  return backend, ends
