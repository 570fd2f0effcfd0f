"""Documents: cuts them into passages, which may overlap, and opens those around a passage for agents that read."""

import bisect
import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ragrl_jax.core.text import forms
from ragrl_jax.core.text.tokens import pattern
from ragrl_jax.retrieval import api
from ragrl_jax.retrieval.corpus import Corpus
from ragrl_jax.store import sums
from ragrl_jax.structs import CHUNK, Passage, document_of

RULE = 2  # of "words"; recorded, so that no build goes on by another one
FAR = 1000  # passages of a document that are considered, at most, on each side of the opened one
BLOCK = 1 << 20  # characters of a document that are tokenized at a time; a block ends before white space
Spans = Callable[[str], list[tuple[int, int]]]


@dataclasses.dataclass(frozen=True)
class Chunks:
  """How documents are cut. A document "d" becomes the passages "d#0", "d#1", …, each with the document's title.

  Attributes:
    tokens: most tokens of a passage, counted in the tokenized document. A passage tokenized alone may have one or two
      more.
    overlap: tokens that a passage shares with the previous one.
    tokenizer: "words" (separated by white space; in scripts without spaces, signs), or a folder with a tokenizer.json.
  """

  tokens: int
  overlap: int = 0
  tokenizer: str = "words"

  def __post_init__(self):
    if self.tokens < 1 or not 0 <= self.overlap < self.tokens:
      raise ValueError(
        f"tokens={self.tokens}, overlap={self.overlap}: tokens must be at least 1, and overlap less than tokens "
        "(--chunk_tokens, --chunk_overlap)."
      )
    if self.tokenizer != "words" and not self._file.is_file():
      raise ValueError(f"{self.tokenizer}: it must be 'words' or a folder with a tokenizer.json (--chunk_tokenizer).")

  @property
  def settings(self) -> dict[str, Any]:
    """JSON, stored with the index."""
    settings = dict(tokens=self.tokens, overlap=self.overlap)
    if self.tokenizer == "words":
      return dict(settings, tokenizer="words", rule=RULE)
    return dict(settings, tokenizer=self._file.parent.name, sha256=sums.digest(self._file))

  def cut(self, documents: Iterable[Passage]) -> Iterator[Passage]:
    """The documents' passages, in order."""
    spans = self._spans()
    for document in documents:
      for number, text in enumerate(_pieces(document.text, spans(document.text), self.tokens, self.overlap)):
        yield dataclasses.replace(document, id=f"{document.id}{CHUNK}{number}", text=text)

  @property
  def _file(self) -> pathlib.Path:
    return pathlib.Path(self.tokenizer) / "tokenizer.json"

  def _spans(self) -> Spans:
    """A function from a text to its tokens' places in it."""
    if self.tokenizer == "words":
      word = pattern(r"[UNSPACED][MARKS]*|[^\sUNSPACED]+")
      return lambda text: [match.span() for match in word.finditer(text)]
    import tokenizers  # comes with transformers

    read = tokenizers.Tokenizer.from_file(str(self._file))
    read.no_truncation()
    read.no_padding()
    places = lambda text: read.encode(text, add_special_tokens=False).offsets

    def spans(text: str) -> list[tuple[int, int]]:
      result, start = [], 0
      while start < len(text):
        end = start + BLOCK
        if end < len(text):
          end = max(text.rfind(" ", start + 1, end), text.rfind("\n", start + 1, end), 0) or end
        result += [(start + a, start + b) for a, b in places(text[start:end])]
        start = end
      return result

    return spans


# For documents in files of their own: passages as long as the papers'. Search-R1 and VERITAS show 166 tokens of one.
OF_DOCUMENTS = Chunks(100, overlap=12)


def _pieces(text: str, spans: list[tuple[int, int]], tokens: int, overlap: int) -> list[str]:
  """Pieces of at most `tokens` tokens, whose places are `spans`. A text without tokens is one piece.

  Characters are never split: a rare character can have several tokens, and a piece ends before or after all of them.
  """
  if not spans:
    return [text]
  # Token boundaries that do not split a character.
  edges = [at for at in range(1, len(spans)) if spans[at][0] >= spans[at - 1][1]] + [len(spans)]
  result, start = [], 0
  while True:
    end = _edge(edges, start, start + tokens)
    result.append(text[spans[start][0] : spans[end - 1][1]])
    if end == len(spans):
      return result
    start = min(_edge(edges, start, end - overlap), end)


def _edge(edges: list[int], after: int, most: int) -> int:
  """The last edge in (after, most]; if there is none, the first edge after `after`."""
  last = bisect.bisect_right(edges, most) - 1
  return edges[last] if last >= 0 and edges[last] > after else edges[bisect.bisect_right(edges, after)]


def read(corpus: Corpus, requests: Sequence[tuple[str, str]], k: int) -> api.Answers:
  """Opens documents, and finds words in them.

  The passages of a document are neighbours whose ids were made by cutting it ("d#0", "d#1", …). Without such ids they
  are neighbours with the same title, as in wiki-18. A passage with neither is a document by itself.

  Args:
    requests: (passage id, words). If words is "", the answer is the passage and its neighbours. Otherwise it is the
      document's passages that contain the words; case, white space and forms of Unicode are ignored.
    k: most passages in an answer.

  Returns:
    The passages for each request, in the document's order and without scores; none if no passage has this id.
  """
  check_requests(requests, k)
  return [_read(corpus, name, words, k) for name, words in requests]


class OverCorpus(api.Searches):
  """Base class of the retrievers whose passages are on this machine."""

  def __init__(self, corpus: Corpus, description: Mapping[str, Any]):
    self.corpus, self._description = corpus, dict(description)

  def describe(self) -> dict[str, Any]:
    """The settings that are stored with every score: kind, options, and the corpus with its checksum."""
    return dict(self._description, rows=len(self.corpus), checksum=self.corpus.checksum)

  def row_of(self, name: str) -> int | None:
    """The row of the passage with this id, or None."""
    return self.corpus.row_of(name)

  def read(self, requests: Sequence[tuple[str, str]], k: int) -> api.Answers:
    """Opens documents, and finds words in them. See `documents.read`."""
    return read(self.corpus, requests, k)


def check_requests(requests: Sequence[tuple[str, str]], k: int) -> None:
  """Raises ValueError unless every entry is a pair of strings and k a whole number of at least 1."""
  for pair in requests:
    if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)):
      raise ValueError(f"{pair!r:.80}: each request must be a pair (a passage's id, words or '').")
  api.check_queries([], k)


def _read(corpus: Corpus, name: str, words: str, k: int) -> list[Passage]:
  row = corpus.row_of(name)
  if row is None:
    return []
  rows = document(corpus, row)
  if query := _plain(words):
    hits = (passage for passage in map(corpus.__getitem__, rows) if query in _plain(passage.text))
    return [passage for passage, _ in zip(hits, range(k))]
  first = max(min(row - (k - 1) // 2, rows.stop - k), rows.start)  # the passage is in the middle, if possible
  return [corpus[place] for place in range(first, min(first + k, rows.stop))]


def document(corpus: Corpus, row: int) -> range:
  """The rows of the document that contains this row."""
  mark, start, stop = _mark(corpus[row]), row, row + 1
  if mark is None:
    return range(start, stop)
  while start > max(row - FAR, 0) and _mark(corpus[start - 1]) == mark:
    start -= 1
  while stop < min(row + FAR, len(corpus)) and _mark(corpus[stop]) == mark:
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
