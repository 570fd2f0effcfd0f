"""Scores of (query, passage) pairs, for reranking: a cross-encoder, and late interaction.

A cross-encoder encodes both texts together. Its score is the logit of a BertForSequenceClassification (as
cross-encoder/ms-marco-MiniLM-L-6-v2), or of its kin for RoBERTa, XLM-RoBERTa (BAAI/bge-reranker-v2-m3), MPNet and
ModernBERT (Alibaba-NLP/gte-reranker-modernbert-base), with one label.
Late interaction encodes them separately, with a vector of length 1 per token. Its score is the sum, over the query's
tokens, of the best inner product with a token of the passage. Source: ColBERT (arXiv 2004.12832) sec. 3; the files are
those of ColBERTv2 (arXiv 2112.01488).
"""

import functools
import os
import pathlib
import string
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ragrl_jax.core.text import beginnings
from ragrl_jax.models import bert, encoder, hf, tensors
from ragrl_jax.structs import Passage

KINDS = ("cross-encoder", "late-interaction")
CUT = 512  # default of a cross-encoder's max_tokens


def _computed(run: Callable[..., jax.Array], batch: int, longest: int) -> Callable[..., list[np.ndarray]]:
  """A function that computes rows, see `encoder.batches`, in few compiled shapes and returns the result of each."""
  compiled = jax.jit(run)

  def compute(rows: Sequence[Sequence[Sequence[int]]]) -> list[np.ndarray]:
    out: list[Any] = [None] * len(rows)
    for indices, arrays in encoder.batches(rows, batch, lambda size: min(encoder.padded_length(size), longest)):
      for i, value in zip(indices, np.asarray(compiled(*arrays))):
        out[i] = value
    return out

  return compute


class CrossEncoder:
  """Encodes query and passage together. `scores` gives the model's logits, which are any numbers: higher is better."""

  def __init__(self, folder: pathlib.Path, *, max_tokens: int, title_separator: str, dtype: Any, batch: int):
    """Use `load_scorer`."""
    model, shape = bert.load_bert(folder, pooler=True, dtype=dtype, head="classifier")
    files = tensors.TensorFolder(folder)
    of_roberta = "classifier.out_proj.weight" in files.names()
    head = "classifier.out_proj" if of_roberta else "classifier"
    weight = jnp.asarray(files.open(f"{head}.weight", (1, shape.d_model)), dtype)
    bias = jnp.asarray(files.open(f"{head}.bias", (1,)), dtype)
    self._tokenizer, self._join = encoder.tokenizer_of(folder, shape.vocab_size), title_separator
    self._most = most = min(max_tokens, shape.max_position)
    self._tokenizer.no_padding()
    self._tokenizer.enable_truncation(most)
    self.settings = dict(
      kind="cross-encoder", max_tokens=most, title_separator=title_separator, weights=files.fingerprint()
    )
    graphdef, params = nnx.split(model)

    def run(ids, mask, types):
      model = nnx.merge(graphdef, params)
      read = encoder.pool(model.hidden(ids, mask, types=types), mask, shape.classifier_pooling)
      return (model.pooled(read.astype(dtype)) @ weight.T + bias[None]).astype(jnp.float32)[:, 0]

    self._run = _computed(run, batch, most)

  def scores(self, pairs: Sequence[tuple[str, Passage]]) -> np.ndarray:
    """float32 [n]: the logit of each (query, passage)."""
    short = functools.partial(beginnings.for_rows, tokens=self._most, tokenizer=self._tokenizer)
    texts = [(short(query), short(encoder.text_of(passage, self._join))) for query, passage in pairs]
    rows = [
      (np.array(one.ids), np.ones(len(one.ids), np.int32), np.array(one.type_ids))
      for one in self._tokenizer.encode_batch(texts)
    ]
    return np.array(self._run(rows), np.float32)


class LateInteraction:
  """Encodes query and passage separately, and compares their tokens.

  A query is [CLS], a mark, its tokens and [SEP], padded with [MASK] to `query_tokens` tokens. No token attends to a
  [MASK], but the vectors of the masks count. A passage is [CLS], another mark, its tokens and [SEP]. The vectors of
  punctuation do not count.
  """

  def __init__(self, folder: pathlib.Path, *, title_separator: str, dtype: Any, batch: int):
    """Use `load_scorer`."""
    where = folder / "artifact.metadata"
    settings = hf.read_json(where) if where.is_file() else {}
    model, shape = bert.load_bert(folder, pooler=False, dtype=dtype, head="linear")
    if not isinstance(model, bert.Bert):
      raise ValueError(f"{folder}: a ModernBERT: late interaction is only supported for a BERT with ColBERT's files.")
    files = tensors.TensorFolder(folder)
    dim = files.shape("linear.weight")[0] if "linear.weight" in files.names() else 0  # if it is missing, `open` raises
    weight = jnp.asarray(files.open("linear.weight", (dim, shape.d_model)), dtype)
    self._tokenizer, self._join = encoder.tokenizer_of(folder, shape.vocab_size), title_separator
    self._tokenizer.no_padding()
    self._tokenizer.no_truncation()
    self._query_tokens = hf.whole(settings, "query_maxlen", str(where), default=32)
    self._passage_tokens = min(hf.whole(settings, "doc_maxlen", str(where), default=220), shape.max_position)
    ids = {name: self._id(settings.get(name, usual), folder) for name, usual in _MARKS.items()}
    self._marks = ids["query_token_id"], ids["doc_token_id"]
    self._mask_id = self._id("[MASK]", folder)
    dropped = string.punctuation if settings.get("mask_punctuation", True) else ""
    known = [self._tokenizer.token_to_id(one) for one in dropped]
    self._dropped = np.array([number for number in known if number is not None])
    self._seen = bool(settings.get("attend_to_mask_tokens", False))
    tokens = dict(query_tokens=self._query_tokens, passage_tokens=self._passage_tokens)
    self.settings = dict(
      kind="late-interaction", **tokens, title_separator=title_separator, weights=files.fingerprint()
    )
    graphdef, params = nnx.split(model)

    def run(ids, mask, counts):
      states = nnx.merge(graphdef, params).hidden(ids, mask, plain=True)
      vectors = (states @ weight.T).astype(jnp.float32)
      vectors = vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
      return vectors * counts[:, :, None].astype(jnp.float32)

    self._run = _computed(run, batch, shape.max_position)

  def scores(self, pairs: Sequence[tuple[str, Passage]]) -> np.ndarray:
    """float32 [n]: the sum over the query's tokens of the best inner product with a token of the passage."""
    queries = list(dict.fromkeys(query for query, _ in pairs))  # each is encoded once
    query_vectors = dict(zip(queries, self._run([self._query(text) for text in queries])))
    rows = [self._passage(encoder.text_of(passage, self._join)) for _, passage in pairs]
    passage_vectors = self._run(rows)
    out = np.zeros(len(pairs), np.float32)
    for i, ((query, _), vectors, (_, _, counts)) in enumerate(zip(pairs, passage_vectors, rows)):
      # Tokens that do not count are removed: their vectors are 0, and 0 is more than a negative product.
      products = query_vectors[query][: self._query_tokens] @ vectors[: len(counts)][counts > 0].T
      out[i] = products.max(axis=1).sum()
    return out

  def _query(self, text: str) -> tuple[np.ndarray, ...]:
    ids = self._marked(text, self._marks[0], self._query_tokens)
    fill = self._query_tokens - len(ids)
    mask = np.concatenate([np.ones(len(ids), np.int32), np.full(fill, int(self._seen), np.int32)])
    return np.concatenate([ids, np.full(fill, self._mask_id)]), mask, np.ones(self._query_tokens, np.int32)

  def _passage(self, text: str) -> tuple[np.ndarray, ...]:
    ids = self._marked(text, self._marks[1], self._passage_tokens)
    return ids, np.ones(len(ids), np.int32), (~np.isin(ids, self._dropped)).astype(np.int32)

  def _marked(self, text: str, mark: int, most: int) -> np.ndarray:
    read = lambda text: self._tokenizer.encode(text).ids  # [CLS] … [SEP]
    ids = read(beginnings.for_ids(text, most, read))
    return np.array([ids[0], mark, *ids[1:-1][: most - 3], ids[-1]])

  def _id(self, token: str, folder: pathlib.Path) -> int:
    if (number := self._tokenizer.token_to_id(token)) is None:
      raise ValueError(f"{folder}: its tokenizer has no token {token!r}, which late interaction adds to each text.")
    return number


_MARKS = dict(query_token_id="[unused0]", doc_token_id="[unused1]")


def load_scorer(
  path: str | os.PathLike,
  kind: str,
  *,
  title_separator: str = " ",
  max_tokens: int = CUT,
  dtype: Any = "float32",
  batch: int | None = None,
) -> CrossEncoder | LateInteraction:
  """A scorer from a Hugging Face folder.

  Args:
    path: for "cross-encoder", the folder of a BERT (see `bert.load_bert`) with one label. For "late-interaction", that
      of a ColBERT: a BERT with `linear.weight` and, optionally, artifact.metadata.
    max_tokens: longest pair that a cross-encoder reads, in tokens; the longer text of a longer pair is cut first.
    dtype: dtype of weights and matmuls; scores are float32.
    batch: number of pairs computed together; by default `encoder.usual_batch`.

  Raises:
    ValueError: another kind, weights that do not fit it, or no tokenizer.
  """
  if kind not in KINDS:
    raise ValueError(f"kind={kind!r}: it must be one of {', '.join(KINDS)}.")
  folder = pathlib.Path(path)
  hf.read_json(folder / "config.json")
  settings = dict(title_separator=title_separator, dtype=jnp.dtype(dtype), batch=batch or encoder.usual_batch())
  if kind == "cross-encoder":
    return CrossEncoder(folder, max_tokens=max_tokens, **settings)
  return LateInteraction(folder, **settings)
