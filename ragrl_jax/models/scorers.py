"""Scores of (query, passage) pairs, for reranking: a cross-encoder, and late interaction.

A cross-encoder reads both texts at once; its score is the logit of BertForSequenceClassification with one label
(cross-encoder/ms-marco-MiniLM-L-6-v2 and its kin). Late interaction reads them apart, gives each token a vector of
length 1, and adds up for each token of the query its best inner product with a token of the passage (ColBERT, arXiv
2004.12832 sec. 3; the files are those of ColBERTv2, arXiv 2112.01488).
"""

import json
import os
import pathlib
import string
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ragrl_jax.models import bert, encoder, hf, tensors
from ragrl_jax.structs import Passage

KINDS = ("cross-encoder", "late-interaction")
CUT = 512  # tokens that a cross-encoder reads of a pair, unless it is told otherwise


class _Padded:
  """Rows of token ids, computed in a few compiled shapes: a fixed number of rows of one of `encoder.LENGTHS`."""

  def __init__(self, run: Callable[..., jax.Array], batch: int, longest: int):
    self._run, self._batch, self._longest = jax.jit(run), batch, longest

  def __call__(self, rows: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """The result of each row, which is a few int arrays [t] (ids first, then what goes with them)."""
    buckets: dict[int, list[int]] = {}
    for i, row in enumerate(rows):
      buckets.setdefault(min(encoder.padded_length(len(row[0])), self._longest), []).append(i)
    out: list[Any] = [None] * len(rows)
    for length, members in buckets.items():
      for start in range(0, len(members), self._batch):
        some = members[start : start + self._batch]
        stacked = np.zeros((len(rows[0]), self._batch, length), np.int32)
        for at, i in enumerate(some):
          for place, values in enumerate(rows[i]):
            stacked[place, at, : len(values)] = values
        for i, found in zip(some, np.asarray(self._run(*stacked))):
          out[i] = found
    return out


class CrossEncoder:
  """Reads query and passage together. `scores` gives the model's logits: higher is better, of any size."""

  def __init__(self, folder: pathlib.Path, *, max_tokens: int, title_separator: str, dtype: Any, batch: int):
    """Use `load_scorer`."""
    model, shape = bert.load_bert(folder, pooler=True, dtype=dtype, head="classifier")
    files = tensors.TensorFolder(folder)
    weight = jnp.asarray(files.open("classifier.weight", (1, shape.d_model)), dtype)
    bias = jnp.asarray(files.open("classifier.bias", (1,)), dtype)
    self._tokenizer, self._join = encoder.tokenizer_of(folder), title_separator
    most = min(max_tokens, shape.max_position)
    self._tokenizer.no_padding()
    self._tokenizer.enable_truncation(most)
    self.settings = dict(
      kind="cross-encoder", max_tokens=most, title_separator=title_separator, weights=encoder.mark_of(files)
    )
    graphdef, params = nnx.split(model)

    def run(ids, mask, types):
      one = nnx.merge(graphdef, params)
      first = one.pooled(one.hidden(ids, mask, types=types)[:, 0].astype(jnp.float32).astype(dtype))
      return (first @ weight.T + bias[None]).astype(jnp.float32)[:, 0]

    self._run = _Padded(run, batch, most)

  def scores(self, pairs: Sequence[tuple[str, Passage]]) -> np.ndarray:
    """float32 [n]: the logit of each (query, passage)."""
    texts = [(query, _text(passage, self._join)) for query, passage in pairs]
    rows = [
      (np.array(one.ids), np.ones(len(one.ids), np.int32), np.array(one.type_ids))
      for one in self._tokenizer.encode_batch(texts)
    ]
    return np.array(self._run(rows), np.float32)


class LateInteraction:
  """Reads query and passage apart, and compares their tokens.

  A query is [CLS], a mark, its tokens and [SEP], filled up with [MASK] to `query_tokens`: the masks' vectors count too.
  No token attends to a [MASK]. A passage is [CLS], another mark, its tokens and [SEP]; the vectors of punctuation do
  not count.
  """

  def __init__(self, folder: pathlib.Path, *, title_separator: str, dtype: Any, batch: int):
    """Use `load_scorer`."""
    where = folder / "artifact.metadata"
    told = json.loads(where.read_text()) if where.is_file() else {}
    model, shape = bert.load_bert(folder, pooler=False, dtype=dtype, head="linear")
    files = tensors.TensorFolder(folder)
    dim = files.shape("linear.weight")[0] if "linear.weight" in files.names() else 0  # `open` refuses its lack
    weight = jnp.asarray(files.open("linear.weight", (dim, shape.d_model)), dtype)
    self._tokenizer, self._join = encoder.tokenizer_of(folder), title_separator
    self._tokenizer.no_padding()
    self._tokenizer.no_truncation()
    self._query_tokens = int(told.get("query_maxlen", 32))
    self._passage_tokens = min(int(told.get("doc_maxlen", 220)), shape.max_position)
    ids = {name: self._id(told.get(name, usual), folder) for name, usual in _MARKS.items()}
    self._marks = ids["query_token_id"], ids["doc_token_id"]
    self._mask_id = self._id("[MASK]", folder)
    dropped = string.punctuation if told.get("mask_punctuation", True) else ""
    self._dropped = np.array([self._tokenizer.token_to_id(one) for one in dropped if self._tokenizer.token_to_id(one)])
    self._seen = bool(told.get("attend_to_mask_tokens", False))
    self.settings = dict(
      kind="late-interaction",
      query_tokens=self._query_tokens,
      passage_tokens=self._passage_tokens,
      title_separator=title_separator,
      weights=encoder.mark_of(files),
    )
    graphdef, params = nnx.split(model)

    def run(ids, mask, counts):
      states = nnx.merge(graphdef, params).hidden(ids, mask, plain=True)
      made = (states @ weight.T).astype(jnp.float32)
      made = made / jnp.maximum(jnp.linalg.norm(made, axis=-1, keepdims=True), 1e-12)
      return made * counts[:, :, None].astype(jnp.float32)

    self._run = _Padded(run, batch, shape.max_position)

  def scores(self, pairs: Sequence[tuple[str, Passage]]) -> np.ndarray:
    """float32 [n]: the sum over the query's tokens of the best inner product with a token of the passage."""
    queries = list(dict.fromkeys(query for query, _ in pairs))  # each is encoded once
    asked = dict(zip(queries, self._run([self._query(text) for text in queries])))
    rows = [self._passage(_text(passage, self._join)) for _, passage in pairs]
    found = self._run(rows)
    out = np.zeros(len(pairs), np.float32)
    for i, ((query, _), vectors, (_, _, counts)) in enumerate(zip(pairs, found, rows)):
      # A token that does not count has the vector 0, and may not be the best one: products can be negative.
      products = asked[query][: self._query_tokens] @ vectors[: len(counts)][counts > 0].T
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
    ids = self._tokenizer.encode(text).ids  # [CLS] … [SEP]
    return np.array([ids[0], mark, *ids[1:-1][: most - 3], ids[-1]])

  def _id(self, token: str, folder: pathlib.Path) -> int:
    if (found := self._tokenizer.token_to_id(token)) is None:
      raise ValueError(f"{folder}: its tokenizer has no token {token!r}, which late interaction puts into each text.")
    return found


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
    path: folder of a BERT with one label ("cross-encoder"), or of ColBERT: a BERT with `linear.weight` and, if it is
      there, artifact.metadata ("late-interaction").
    kind: one of KINDS.
    title_separator: text between a passage's title and its text.
    max_tokens: of a pair, for a cross-encoder; the longer of the two texts is cut first.
    dtype: dtype of weights and matmuls; scores are float32.
    batch: pairs computed together; by default 8 on a CPU, and else 64.

  Raises:
    ValueError: another kind, weights that do not fit it, or no tokenizer.
  """
  if kind not in KINDS:
    raise ValueError(f"kind={kind!r}: a scorer is one of {', '.join(KINDS)}.")
  folder = pathlib.Path(path)
  hf.read_json(folder / "config.json")
  settings = dict(title_separator=title_separator, dtype=jnp.dtype(dtype), batch=batch or encoder.usual_batch())
  if kind == "cross-encoder":
    return CrossEncoder(folder, max_tokens=max_tokens, **settings)
  return LateInteraction(folder, **settings)


def _text(passage: Passage, join: str) -> str:
  return f"{passage.title}{join}{passage.text}" if passage.title else passage.text
