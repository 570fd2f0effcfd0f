"""The interface of every retriever: a list of queries → the best passages for each query."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ragrl_jax.structs import Passage, ToolFailed

Answers = list[list[Passage]]


class Retriever(Protocol):
  """Finds passages. Several threads may call `search` at the same time."""

  def search(self, queries: Sequence[str], k: int) -> Answers:
    """The k best passages for each query, best first, each with its score (higher is better).

    Passages of equal score keep the order of the corpus. A query gets fewer than k passages when the corpus is smaller
    or when no further passage matches it. An empty or blank query gets an empty list.

    Raises:
      ValueError: `queries` is not a sequence of strings, or k is not an integer of at least 1.
      ToolFailed: a remote retriever did not answer in time.
    """

  def read(self, requests: Sequence[tuple[str, str]], k: int) -> Answers:
    """The documents around passages, as in `documents.read`. Only recipes whose agents open documents need it."""

  def describe(self) -> Mapping[str, Any]:
    """The retriever's settings (JSON): corpus, checksum, encoder, index. Evaluations store them with their scores."""


class Encoder(Protocol):
  """Texts → vectors. The inner product of a query's and a passage's vector ranks the passage."""

  dim: int

  @property
  def settings(self) -> Mapping[str, Any]:
    """JSON, stored with the index. If a caller loads the index with another encoder, the settings are compared."""

  def queries(self, texts: Sequence[str]) -> np.ndarray:
    """The queries' vectors, float32 [n, dim]."""

  def passages(self, passages: Sequence[Passage]) -> np.ndarray:
    """The passages' vectors, float32 [n, dim]. A passage's vector depends on that passage alone."""

  def num_tokens(self, texts: Sequence[str], kind: str) -> list[int]:
    """Number of tokens that the encoder reads of each "query" or "passage". Only the server of embeddings needs it."""


class RetrievalFailed(ToolFailed):
  """A retriever did not answer `queries` within its retries and its deadline."""

  def __init__(self, message: str, queries: Sequence[str] = ()):
    super().__init__(message)
    self.queries = tuple(queries)


def check_queries(queries: Sequence[str], k: int) -> list[str]:
  """Checks the arguments of a search and returns the queries as a list. Raises ValueError: see `Retriever.search`."""
  if isinstance(queries, str):
    raise ValueError(f"queries={queries[:80]!r} is one string: pass a list of strings, one per search.")
  queries = list(queries)
  for i, query in enumerate(queries):
    if not isinstance(query, str):
      raise ValueError(f"query {i} is {type(query).__name__} {query!r:.80}: every query must be a string.")
  if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
    raise ValueError(f"k={k!r}: the number of passages must be a whole number of at least 1 (config.retrieval.top_k).")
  return queries


class Searches:
  """Base class of the retrievers, whose `_search` gets only queries that are not blank."""

  def search(self, queries: Sequence[str], k: int) -> Answers:
    """The k best passages for each query, best first, with scores. See `Retriever`."""
    queries = check_queries(queries, k)
    positions = [i for i, query in enumerate(queries) if query.strip()]
    answers: Answers = [[] for _ in queries]
    if positions:
      for i, passages in zip(positions, self._search([queries[i] for i in positions], int(k)), strict=True):
        answers[i] = passages
    return answers

  def _search(self, texts: list[str], k: int) -> Answers:
    raise NotImplementedError


def placeless(description: Any) -> Any:
  """A retriever's description without paths. A server that describes its retriever is known by that, not by address."""
  if isinstance(description, list | tuple):
    return [placeless(one) for one in description]
  if not isinstance(description, Mapping):
    return description
  server = description.get("server")
  if isinstance(server, Mapping) and server.get("retriever"):
    return placeless(server["retriever"])
  return {name: placeless(value) for name, value in description.items() if name not in ("index", "path")}
