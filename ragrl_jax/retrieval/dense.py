"""Dense retrieval: an encoder maps passages and queries to vectors. An index ranks passages by inner product."""

import json
import os
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from tqdm import tqdm

from ragrl_jax.retrieval import api, documents, vectors as vectors_lib
from ragrl_jax.retrieval.cards import write_json
from ragrl_jax.retrieval.corpus import Corpus
from ragrl_jax.structs import Passage

PROGRESS = "vectors.progress.json"


class VectorIndex(Protocol):
  """Ranks stored vectors by their inner product with a query's vector."""

  def search(self, queries: np.ndarray, k: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """float32 [n, D] → n pairs (float32 scores, int64 rows), best first, with at most k entries each."""


class Embeds:
  """A retriever with an encoder.

  Attributes:
    dispatch: `dispatch(function, *arguments)` runs the encoder and an on-device index. By default the calling thread
      runs them. If one thread owns the accelerators, set its queue here.
  """

  def __init__(self, encoder: api.Encoder | None, *, model: str, dispatch: Callable[..., Any] | None = None):
    self.encoder, self.model = encoder, model
    self.dispatch = dispatch or (lambda function, *arguments: function(*arguments))

  def embed(self, texts: Sequence[str], kind: str) -> list[tuple[np.ndarray, int]]:
    """(float32 [dim], number of tokens) of each text, embedded as a "query" or as a "passage" without a title."""
    vectors = self._vectors(texts, kind)
    return list(zip(vectors, self.encoder.num_tokens(texts, kind), strict=True))

  def _vectors(self, texts: Sequence[str], kind: str) -> np.ndarray:
    encode = self._where(self.encoder, default=True)
    if kind == "query":
      made = encode(self.encoder.queries, texts)
    else:
      made = encode(self.encoder.passages, [Passage("", "", text) for text in texts])
    vectors = np.ascontiguousarray(made, dtype=np.float32)
    if not np.isfinite(vectors).all():
      bad = texts[int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])]
      raise ValueError(f"the encoder's vector for the {kind} {bad!r:.200} is not finite: check that text.")
    return vectors

  def _where(self, worker: Any, *, default: bool) -> Callable[..., Any]:
    """`dispatch` if the worker computes on the accelerators (`on_device`); otherwise a direct call."""
    return self.dispatch if getattr(worker, "on_device", default) else lambda function, *a: function(*a)


class DenseRetriever(Embeds, documents.OverCorpus):
  """Ranks passages by the inner product of the encoded query and passage."""

  def __init__(self, corpus: Corpus, index: VectorIndex, *, description: Mapping[str, Any], **settings: Any):
    """**settings: those of `Embeds`."""
    Embeds.__init__(self, **settings)
    documents.OverCorpus.__init__(self, corpus, description)
    self._index = index

  def _search(self, texts: list[str], k: int) -> api.Answers:
    vectors = self._vectors(texts, "query")
    nonzero = np.flatnonzero(vectors.any(axis=1))  # a query without known words has a zero vector, and finds nothing
    answers: api.Answers = [[] for _ in texts]
    if len(nonzero):
      run = self._where(self._index, default=False)
      for i, best in zip(nonzero, run(self._index.search, vectors[nonzero], k), strict=True):
        answers[i] = [self.corpus.scored(row, score) for score, row in zip(*best)]
    return answers


def encode_corpus(
  corpus: Corpus, encoder: api.Encoder, folder: pathlib.Path, *, dtype: str, shard_rows: int, note_s: float, batch: int,
  progress: bool,
) -> float:  # fmt: skip
  """Encodes the passages into a memory-mapped array [N, dim]. A killed build continues from the last save, if its
  encoder is the same: the model in its folder may have been replaced since.

  The settings are those of `build.build_index`. Scores are computed from the rounded vectors. Each shard starts a new
  batch, so that a continued build has the same batches.

  Returns:
    The largest Euclidean norm of a vector.

  Raises:
    ValueError: the dtype is unknown, or the encoder's vectors have the wrong size or are not finite.
  """
  notes, by = folder / PROGRESS, dict(encoder.settings)
  done = json.loads(notes.read_text(encoding="utf-8")) if notes.is_file() else dict(rows=0, max_norm=0.0)
  if done.get("by", by) != by:
    done = dict(rows=0, max_norm=0.0)
    (folder / "index.faiss").unlink(missing_ok=True)
    notes.unlink()  # before the vectors go: after a kill, they would be taken for that encoder's
  if done["rows"]:
    vectors = vectors_lib.open_mapped(folder, mode="r+")
  else:
    vectors = vectors_lib.create(folder, dtype, (len(corpus), encoder.dim))
  noted = time.monotonic()
  with tqdm(
    total=len(corpus), initial=done["rows"], desc="index: encode", unit=" passages", disable=not progress
  ) as bar:
    while done["rows"] < len(corpus):
      shard_end = min((done["rows"] // shard_rows + 1) * shard_rows, len(corpus))
      rows = range(done["rows"], min(done["rows"] + batch, shard_end))
      vectors[rows.start : rows.stop] = encode_rows(encoder, corpus, rows, dtype)
      norms = np.linalg.norm(vectors[rows.start : rows.stop].astype(np.float64), axis=1)
      done = dict(rows=rows.stop, max_norm=max(done["max_norm"], float(norms.max())))
      bar.update(len(rows))
      if rows.stop == shard_end or time.monotonic() - noted >= note_s:
        vectors.flush()
        write_json(notes, dict(done, by=by))
        noted = time.monotonic()
  return done["max_norm"]


def encode_rows(encoder: api.Encoder, corpus: Corpus, rows: range, dtype: str) -> np.ndarray:
  """The passages' vectors. Raises ValueError if they have another shape or are not finite in this dtype."""
  result = np.asarray(encoder.passages([corpus[row] for row in rows]))
  if result.shape != (len(rows), encoder.dim):
    raise ValueError(
      f"the encoder returned an array {result.shape} for {len(rows)} passages: it must be ({len(rows)}, {encoder.dim})."
    )
  with np.errstate(over="ignore"):
    result = result.astype(np.float32 if dtype == "int8" else np.dtype(dtype))  # int8 has a scale for each row
  if not np.isfinite(result).all():
    row = rows[int(np.flatnonzero(~np.isfinite(result).all(axis=1))[0])]
    raise ValueError(
      f"the encoder's vector for passage {row} (id {corpus[row].id!r}) is not finite in {dtype}: check that passage, "
      "or store float32."
    )
  return result


def open_vectors(folder: str | os.PathLike, *, rows: int, dim: int) -> Any:
  """Opens the memory-mapped vectors [rows, dim]. Raises ValueError if they have another shape."""
  vectors, path = vectors_lib.open_mapped(folder), pathlib.Path(folder) / vectors_lib.FILE
  if vectors.shape != (rows, dim):
    raise ValueError(f"{path}: its shape is {vectors.shape}, but it must be {(rows, dim)}: build the index again.")
  return vectors
