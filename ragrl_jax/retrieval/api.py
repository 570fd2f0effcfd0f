"""The contract of every retriever: a list of queries → the best passages for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ragrl_jax.structs import Passage, ToolFailed

Answers = list[list[Passage]]


class Retriever(Protocol):
  """Finds passages. `search` may be called from several threads at once."""

  def search(self, queries: Sequence[str], k: int) -> Answers:
    """The k best passages for each query, best first, each with its score (higher is better).

    Equal scores stand in the order of the corpus. Fewer than k come back when the corpus is smaller, or when no more
    passages have anything to do with the query; an empty or blank query gets an empty list.

    Raises:
      ValueError: `queries` is no sequence of strings, or k is no whole number of at least 1.
      ToolFailed: the retriever is elsewhere and gave no answer in time.
    """

  def describe(self) -> Mapping[str, Any]:
    """What belongs beside every score that rests on this retriever: corpus, checksum, encoder, index (JSON)."""


class Encoder(Protocol):
  """Texts → vectors whose inner product ranks passages."""

  dim: int

  @property
  def settings(self) -> Mapping[str, Any]:
    """JSON; stored with an index, and compared when the index is searched with an encoder that was handed in."""

  def queries(self, texts: Sequence[str]) -> np.ndarray:
    """float32 [n, dim]."""

  def passages(self, passages: Sequence[Passage]) -> np.ndarray:
    """float32 [n, dim]. A passage's vector depends on that passage alone."""


class RetrievalFailed(ToolFailed):
  """A retriever gave no answer for `queries` within its retries and deadline."""

  def __init__(self, message: str, queries: Sequence[str] = ()):
    super().__init__(message)
    self.queries = tuple(queries)


def checked(queries: Sequence[str], k: int) -> list[str]:
  """The queries as a list, after the checks of the contract.

  Raises:
    ValueError: see `Retriever.search`.
  """
  if isinstance(queries, str):
    raise ValueError(f"queries={queries[:80]!r} is one string: hand in a list of strings, one per search.")
  queries = list(queries)
  for i, query in enumerate(queries):
    if not isinstance(query, str):
      raise ValueError(f"query {i} is {type(query).__name__} {query!r:.80}: every query must be a string.")
  if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
    raise ValueError(f"k={k!r}: the number of passages must be a whole number of at least 1 (config.retrieval.top_k).")
  return queries


def each(queries: Sequence[str], k: int, search: Callable[[list[str]], Answers]) -> Answers:
  """Checks, then answers the blank queries with nothing and the others by one call of `search`."""
  queries = checked(queries, k)
  asked = [i for i, query in enumerate(queries) if query.strip()]
  answers: Answers = [[] for _ in queries]
  if asked:
    for i, found in zip(asked, search([queries[i] for i in asked]), strict=True):
      answers[i] = found
  return answers
