"""Documents that agents read: opens the document of a search result, or finds words in it."""

from __future__ import annotations

from collections.abc import Sequence

from ragrl_jax.core.text import forms
from ragrl_jax.retrieval import api
from ragrl_jax.retrieval.chunks import document_of
from ragrl_jax.retrieval.corpus import Corpus
from ragrl_jax.structs import Passage

FAR = 1000  # passages of a document that are considered, at most, on each side of the opened one


def read(corpus: Corpus, asked: Sequence[tuple[str, str]], k: int) -> api.Answers:
  """Opens documents, and finds words in them.

  The passages of a document are neighbours whose ids were made by cutting it ("d#0", "d#1", …). Without such ids they
  are neighbours with the same title, as in wiki-18. A passage with neither is a document by itself.

  Args:
    corpus: the passages.
    asked: (passage id, words). If words is "", the answer is the passage and its neighbours. Otherwise it is the
      document's passages that contain the words; case, white space and forms of Unicode are ignored.
    k: most passages in an answer.

  Returns:
    The passages for each request, in the document's order and without scores; none if no passage has this id.
  """
  checked(asked, k)
  return [_read(corpus, name, words, k) for name, words in asked]


def checked(asked: Sequence[tuple[str, str]], k: int) -> None:
  """Raises ValueError unless every entry is a pair of strings and k a whole number of at least 1."""
  for pair in asked:
    if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)):
      raise ValueError(f"{pair!r:.80}: each request must be a pair (a passage's id, words or '').")
  api.checked([], k)


def _read(corpus: Corpus, name: str, words: str, k: int) -> list[Passage]:
  row = corpus.row_of(name)
  if row is None:
    return []
  rows = document(corpus, row)
  if wanted := _plain(words):
    hits = (passage for passage in map(corpus.__getitem__, rows) if wanted in _plain(passage.text))
    return [passage for passage, _ in zip(hits, range(k))]
  first = max(min(row - (k - 1) // 2, rows.stop - k), rows.start)  # the passage is in the middle, if possible
  return [corpus[place] for place in range(first, min(first + k, rows.stop))]


def document(corpus: Corpus, row: int) -> range:
  """The rows of the document that contains this row."""
  here, start, stop = _mark(corpus[row]), row, row + 1
  if here is None:
    return range(start, stop)
  while start > max(row - FAR, 0) and _mark(corpus[start - 1]) == here:
    start -= 1
  while stop < min(row + FAR, len(corpus)) and _mark(corpus[stop]) == here:
    stop += 1
  return range(start, stop)


def _mark(passage: Passage) -> tuple[str, str] | None:
  """The document's id or title, which its passages share; None for a passage that is its own document."""
  name, number = document_of(passage.id)
  if number is not None:
    return "id", name
  return ("title", passage.title) if passage.title else None


def _plain(text: str) -> str:
  return " ".join(forms.typed(text).split()).casefold()
