"""Texts → vectors: a BERT-type encoder (one or two towers) or a decoder, with its pooling, prefixes and lengths."""

import dataclasses
import functools
import hashlib
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ragrl_jax.models import bert, config, hf, tensors, weights
from ragrl_jax.parallel import rules
from ragrl_jax.structs import Passage

POOLINGS = ("mean", "cls", "pooler", "last")
LENGTHS = (16, 32, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192)  # tokens; texts are padded up to one
TOWERS = ("query", "passage")


@dataclasses.dataclass(frozen=True)
class EncoderSettings:
  """How a model's token states become a text's vector; an index keeps them, since its vectors depend on each.

  Attributes:
    pooling: "mean" over the text's tokens, "cls" the first token, "pooler" BERT's tanh layer over it, "last" the last.
    normalize: divide by the L2 norm, so that inner products are cosines.
    query_prefix, passage_prefix: put before every query and every passage.
    max_tokens: longer texts are cut, special tokens counted.
    title_separator: between a passage's title and its text.
  """

  pooling: str
  normalize: bool
  query_prefix: str = ""
  passage_prefix: str = ""
  max_tokens: int = 512
  title_separator: str = "\n"

  def __post_init__(self):
    if self.pooling not in POOLINGS:
      raise ValueError(f"pooling {self.pooling!r}: it must be one of {', '.join(POOLINGS)} (encoder settings).")
    if not 1 <= self.max_tokens <= LENGTHS[-1]:
      raise ValueError(f"max_tokens is {self.max_tokens}: it must be 1 to {LENGTHS[-1]} (encoder settings).")


# By the name that is in the folder's. Sources: the models' cards; E5 at 256 tokens and DPR's CLS state as the models
# trained on this retrieval used them (seeds' facts: Search-R1's retrieval server, FlashRAG).
PRESETS = {
  "e5": EncoderSettings("mean", True, "query: ", "passage: ", 256),
  "bge": EncoderSettings("cls", True, "Represent this sentence for searching relevant passages: ", "", 512),
  "minilm": EncoderSettings("mean", True, "", "", 256, " "),
  # transformers calls the first token's state DPR's pooler output: its towers have no tanh layer.
  "dpr": EncoderSettings("cls", False, "", "", 256, " [SEP] "),
  "qwen3-embedding": EncoderSettings(
    "last",
    True,
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:",
    "",
    8192,
  ),
}


def settings_for(path: str | os.PathLike, chosen: str | Mapping[str, Any] | EncoderSettings | None) -> EncoderSettings:
  """The settings of the model in a folder.

  Args:
    path: the folder.
    chosen: the settings, their fields, or a preset's name. None takes the preset whose name is in the folder's, or else
      what the folder's sentence-transformers files say.

  Raises:
    ValueError: nothing says how this model pools, or it says something that is not computed here.
  """
  if isinstance(chosen, EncoderSettings):
    return chosen
  if isinstance(chosen, Mapping):
    known = {field.name for field in dataclasses.fields(EncoderSettings)}
    if wrong := sorted(set(chosen) - known) or sorted({"pooling", "normalize"} - set(chosen)):
      raise ValueError(
        f"encoder settings: {', '.join(wrong)} is unknown or missing: pooling and normalize must be given, and only "
        f"{', '.join(sorted(known))} may be."
      )
    return EncoderSettings(**chosen)
  if chosen is not None:
    if chosen not in PRESETS:
      raise ValueError(f"encoder settings {chosen!r}: there are {', '.join(PRESETS)}.")
    return PRESETS[chosen]
  folder = pathlib.Path(path)
  for name, preset in PRESETS.items():
    if name in folder.resolve().name.lower():
      return preset
  return _sentence_transformers(folder)


def _sentence_transformers(folder: pathlib.Path) -> EncoderSettings:
  """What modules.json and the files beside it say."""
  path = folder / "modules.json"
  if not path.exists():
    raise ValueError(
      f"{folder}: nothing says how this encoder pools: there is no modules.json, and the folder's name holds none of "
      f"{', '.join(PRESETS)}. Give its settings, for example settings='e5'."
    )
  modules = {module["type"].rsplit(".", 1)[-1]: module["path"] for module in hf.read_json(path, list)}
  if surplus := set(modules) - {"Transformer", "Pooling", "Normalize"}:
    raise ValueError(f"{path}: the module {', '.join(sorted(surplus))} is not computed here.")
  where = folder / modules["Pooling"] / "config.json"
  modes = hf.read_json(where)
  names = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last"}
  on = [key for key, value in modes.items() if key.startswith("pooling_mode_") and value]
  if len(on) != 1 or on[0] not in names:
    raise ValueError(f"{where}: pooling by {', '.join(on) or 'nothing'}: it must be one of {', '.join(names)}.")
  lengths, prompts = folder / "sentence_bert_config.json", folder / "config_sentence_transformers.json"
  length = hf.read_json(lengths).get("max_seq_length") if lengths.exists() else None
  prompts = hf.read_json(prompts).get("prompts", {}) if prompts.exists() else {}
  return EncoderSettings(
    names[on[0]],
    "Normalize" in modules,
    prompts.get("query", ""),
    prompts.get("passage", prompts.get("document", "")),
    length or 512,
    " ",
  )


def pool(states: jax.Array, mask: jax.Array, pooling: str) -> jax.Array:
  """float32 [B, D] from states [B, T, D]; a row without tokens gives zeros (mean) or its first state."""
  states, mask = states.astype(jnp.float32), mask.astype(jnp.float32)
  if pooling == "mean":
    total = jnp.einsum("btd,bt->bd", states, mask, precision=jax.lax.Precision.HIGHEST)
    return total / jnp.maximum(mask.sum(axis=1, keepdims=True), 1.0)
  if pooling == "last":  # the last that the mask names, whichever side the padding is on
    place = jnp.max(jnp.where(mask > 0, jnp.arange(mask.shape[1])[None], 0), axis=1)
    return jnp.take_along_axis(states, place[:, None, None], axis=1)[:, 0]
  return states[:, 0]


class Encoder:
  """What retrieval asks for: `queries`, `passages`, `dim` and `settings`.

  Attributes:
    dim: length of a vector.
  """

  def __init__(
    self,
    models: Mapping[str, nnx.Module],
    tokenizers: Mapping[str, Any],
    settings: EncoderSettings,
    *,
    dim: int,
    mark: str,
    batch: int = 32,
    mesh: jax.sharding.Mesh | None = None,
  ):
    """Use `load_encoder`.

    Args:
      models: for "query" and "passage"; the same one twice, or two towers.
      tokenizers: `tokenizers.Tokenizer`s, for the same two.
      settings: how states become vectors.
      dim: length of a vector.
      mark: of the weights, so that an index can tell its encoder from another.
      batch: texts encoded together; shorter batches are filled up, so that shapes stay few.
      mesh: texts are spread over its data axes.
    """
    self.dim, self.batch, self._settings, self._mark, self._mesh = dim, batch, settings, mark, mesh
    self._tokenizers = tokenizers
    self._split = {kind: nnx.split(model) for kind, model in models.items()}
    self._run = jax.jit(functools.partial(_encode, settings), static_argnums=0)

  @property
  def settings(self) -> Mapping[str, Any]:
    """JSON: the settings and a mark of the weights."""
    return {**dataclasses.asdict(self._settings), "weights": self._mark}

  def encode(self, tokens: jax.Array, mask: jax.Array, kind: str = "query") -> jax.Array:
    """Vectors, float32 [B, D], of token ids int [B, T] whose mask is 1 on the text. Compiles once a shape."""
    graphdef, params = self._split[kind]
    return self._run(graphdef, params, tokens, mask)

  def embed_texts(self, texts: Sequence[str], kind: str = "query", batch: int | None = None) -> np.ndarray:
    """Vectors, float32 [n, D], in the order of the texts, the kind's prefix put before each.

    A text is padded to the next of a few lengths and computed among a fixed number of rows, so that its vector depends
    on it alone and a handful of shapes are compiled.

    Args:
      texts: any number of them.
      kind: "query" or "passage".
      batch: rows computed together; by default the encoder's own, 8 for queries.
    """
    if kind not in TOWERS:
      raise ValueError(f"kind={kind!r}: a text is embedded as one of {', '.join(TOWERS)}.")
    prefix = self._settings.query_prefix if kind == "query" else self._settings.passage_prefix
    batch = batch or (min(8, self.batch) if kind == "query" else self.batch)
    if self._mesh is not None:
      batch += -batch % rules.ways(self._mesh, rules.MESH_AXES["batch"])
    ids = [encoding.ids for encoding in self._tokenizers[kind].encode_batch([prefix + text for text in texts])]
    buckets: dict[int, list[int]] = {}
    for i, row in enumerate(ids):
      buckets.setdefault(min(self._length(len(row)), self._settings.max_tokens), []).append(i)
    out = np.zeros((len(ids), self.dim), np.float32)
    for length, members in buckets.items():
      for start in range(0, len(members), batch):
        chosen = members[start : start + batch]
        out[chosen] = self._padded([ids[i] for i in chosen], length, batch, kind)[: len(chosen)]
    return out

  def queries(self, texts: Sequence[str]) -> np.ndarray:
    """float32 [n, dim]."""
    return self.embed_texts(texts, "query")

  def passages(self, passages: Sequence[Passage]) -> np.ndarray:
    """float32 [n, dim]; a passage's title stands before its text."""
    join = self._settings.title_separator
    return self.embed_texts([f"{p.title}{join}{p.text}" if p.title else p.text for p in passages], "passage")

  @staticmethod
  def _length(size: int) -> int:
    return next(length for length in LENGTHS if size <= length)

  def _padded(self, rows: Sequence[Sequence[int]], length: int, batch: int, kind: str) -> np.ndarray:
    tokens, mask = np.zeros((batch, length), np.int32), np.zeros((batch, length), np.int32)
    for i, row in enumerate(rows):
      tokens[i, : len(row)], mask[i, : len(row)] = row, 1
    if self._mesh is not None:
      spread = jax.sharding.NamedSharding(self._mesh, jax.sharding.PartitionSpec(rules.MESH_AXES["batch"]))
      tokens, mask = jax.device_put((tokens, mask), spread)
    return np.asarray(self.encode(tokens, mask, kind))


def _encode(settings: EncoderSettings, graphdef, params, tokens, mask):
  model = nnx.merge(graphdef, params)
  if isinstance(model, bert.Bert):
    states = model.hidden(tokens, mask)
  else:
    states = model.hidden(tokens, segment_ids=mask)
  vectors = pool(states, mask, settings.pooling)
  if settings.pooling == "pooler":
    vectors = model.pooled(vectors)
  if settings.normalize:
    vectors = vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
  return vectors


def load_encoder(
  path: str | os.PathLike,
  *,
  settings: str | Mapping[str, Any] | EncoderSettings | None = None,
  passage_path: str | os.PathLike | None = None,
  dtype: Any = "float32",
  batch: int = 32,
  mesh: jax.sharding.Mesh | None = None,
) -> Encoder:
  """A text encoder from a Hugging Face folder: config.json, safetensors and tokenizer.

  Args:
    path: a BERT-type encoder, or a decoder that embeds (its last token's state); the query tower where there are two.
    settings: see `settings_for`.
    passage_path: the folder of the passages' own tower (DPR).
    dtype: of weights and matmuls; vectors are float32.
    batch: passages encoded together.
    mesh: its devices share the texts.

  Raises:
    ValueError: an unknown architecture, weights that do not fit it, no tokenizer, or unknown settings.
  """
  chosen = settings_for(path, settings)
  towers = {
    kind: _tower(folder, chosen, jnp.dtype(dtype), mesh)
    for kind, folder in zip(TOWERS, (path, passage_path))
    if folder is not None
  }
  towers.setdefault("passage", towers["query"])
  models, texts, marks, sizes, limits = zip(*towers.values())
  if len(set(sizes)) > 1:
    raise ValueError(f"{path} gives vectors of {sizes[0]}, {passage_path} of {sizes[1]}: two towers must agree.")
  chosen = dataclasses.replace(chosen, max_tokens=min(chosen.max_tokens, *limits))
  for text in texts:
    text.no_padding()
    text.enable_truncation(chosen.max_tokens)
  return Encoder(
    dict(zip(TOWERS, models)),
    dict(zip(TOWERS, texts)),
    chosen,
    dim=sizes[0],
    batch=batch,
    mesh=mesh,
    mark="+".join(dict.fromkeys(marks)),
  )


def _tower(path, settings: EncoderSettings, dtype, mesh) -> tuple[nnx.Module, Any, str, int, int]:
  """(model, tokenizer, mark of the weights, vector length, longest text in tokens)."""
  folder = pathlib.Path(path)
  values = hf.read_json(folder / "config.json")
  mark = hashlib.sha256(tensors.TensorFolder(folder).fingerprint()).hexdigest()[:16]
  if values.get("model_type") in config.ARCHITECTURES:
    if settings.pooling == "pooler":
      raise ValueError(f"{folder}: a decoder has no pooler: use pooling='last' (encoder settings).")
    model, shape = weights.load_pretrained(folder, dtype=dtype, mesh=mesh, head=False)
    return model, _tokenizer(folder), mark, shape.d_model, shape.max_position
  model, shape = bert.load_bert(folder, pooler=settings.pooling == "pooler", dtype=dtype, mesh=mesh)
  return model, _tokenizer(folder), mark, shape.d_model, shape.max_position


def _tokenizer(folder: pathlib.Path):
  """The folder's own fast tokenizer, with the special tokens its post-processor puts around a text."""
  import transformers  # slow to import, and only needed here

  if not any((folder / name).exists() for name in ("tokenizer.json", "vocab.txt", "tokenizer.model")):
    raise ValueError(f"{folder} has no tokenizer (tokenizer.json or vocab.txt): copy the model's own there.")
  return transformers.AutoTokenizer.from_pretrained(folder, use_fast=True).backend_tokenizer
