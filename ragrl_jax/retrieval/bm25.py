"""Lexical search: text → words, and BM25 by bm25s, whose scores are computed by the build and memory-mapped later."""

import itertools
import logging
import math
import pathlib
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import Stemmer
from tqdm import tqdm

from ragrl_jax.core.text import forms, tokens
from ragrl_jax.parallel import imports
from ragrl_jax.retrieval import api, cards, documents
from ragrl_jax.retrieval.corpus import Corpus
from ragrl_jax.retrieval.vectors import take_best
from ragrl_jax.structs import Passage

if TYPE_CHECKING:
  import bm25s

RULE = 2  # recorded with every index, whose words would not match those of another rule
LEAST = {"two": 2, "all": 1}  # pattern → characters of the shortest word; "two" is bm25s's own
_ASCII = re.compile(r"\w+", re.ASCII)
# The same words are written with and without these: accents that no letter is composed with, vowel signs of Hebrew and
# Arabic, tatweel, soft hyphens, joiners and selectors.
_LEFT_OUT = re.compile(
  "[\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06dc"
  "\u06df-\u06e8\u06ea-\u06ed\u00ad\u200c\u200d\u2060\ufe00-\ufe0f\ufeff]"
)
_SAME = str.maketrans(  # letters that are written either way, of Turkish and Arabic
  "ı\u0623\u0625\u0622\u0671\u0624\u0626\u0649\u06cc\u06a9\u0629",
  "i\u0627\u0627\u0627\u0627\u0648\u064a\u064a\u064a\u0643\u0647",
)


class Words:
  """`Words(…)(text)` returns the words of a text in lower case and one form of Unicode. Several threads may call it.

  In scripts without spaces between words (and in Korean, whose words carry particles) the words are pairs of
  neighbouring signs; in Chinese, Japanese and Korean also single signs, whatever the pattern.

  Attributes:
    settings: JSON; `Words.from_settings(settings)` makes an equal object.
  """

  def __init__(self, pattern: str = "two", stopwords: str = "english", stemmer: str = ""):
    """
    Args:
      pattern: "two" (words of two characters or more) or "all", as in "vitamin C".
      stopwords: "english" drops bm25s's list, "none" drops nothing.
      stemmer: a Snowball language ("english", "german", …), or "" for none.

    Raises:
      ValueError: an unknown name.
    """
    if pattern not in LEAST:
      raise ValueError(f"pattern={pattern!r}: it must be one of {sorted(LEAST)}.")
    if stopwords not in ("english", "none"):
      raise ValueError(f"stopwords={stopwords!r}: it must be 'english' or 'none'.")
    if stemmer and stemmer not in Stemmer.algorithms():
      raise ValueError(f"stemmer={stemmer!r}: it must be '' or one of {', '.join(Stemmer.algorithms())}.")
    self.settings = dict(pattern=pattern, stopwords=stopwords, stemmer=stemmer, rule=RULE)
    self._least = LEAST[pattern]
    self._drop = frozenset()
    if stopwords == "english":
      self._drop = frozenset(imports.without_jax("bm25s.stopwords").STOPWORDS_EN)
    self._local = threading.local()  # a Snowball stemmer keeps state: one for each thread

  @classmethod
  def from_settings(cls, settings: Mapping[str, Any], where: object) -> "Words":
    """The words of an index. Raises ValueError: it has words by another rule. `where` names the index."""
    given = dict(settings)
    if (rule := given.pop("rule", 1)) != RULE:
      raise ValueError(f"{where}: its words are those of rule {rule}, this version has rule {RULE}: build it again.")
    return cls(**given)

  def __call__(self, text: str) -> list[str]:
    if text.isascii():
      words = [word for word in _ASCII.findall(text.lower()) if len(word) >= self._least]
    else:
      words = list(self._of_any_script(text))
    if self._drop:
      words = [word for word in words if word not in self._drop]
    if self.settings["stemmer"]:
      if not hasattr(self._local, "stemmer"):
        self._local.stemmer = Stemmer.Stemmer(self.settings["stemmer"])
      words = self._local.stemmer.stemWords(words)
    return words if text.isascii() else [word.translate(_SAME) for word in words]

  def _of_any_script(self, text: str) -> Iterator[str]:
    plain = _LEFT_OUT.sub("", forms.composed(text).lower())
    letters = r"[^\WUNSPACED]"
    runs = tokens.pattern(rf"({letters}+(?:[MARKS]+{letters}*)*)|(?:(?=\w)[UNSPACED][MARKS]*)+")
    for run in runs.finditer(plain):
      if word := run[1]:
        if len(word) >= self._least:
          yield word
        continue
      signs = tokens.words(run[0])
      yield from map("".join, itertools.pairwise(signs))
      yield from (sign for sign in signs if len(signs) == 1 or tokens.pattern("[CJK]").match(sign))


def say_wordless(what: str, count: int, total: int, example: str) -> None:
  """Logs how many passages or queries have no words: searches by words do not find them, or find nothing."""
  if count:
    logging.warning("%d of %d %s have no words to search by, such as %.80r.", count, total, what, example)


def title_and_text(passage: Passage) -> str:
  """A passage as one text: title, line break and text, or the text alone if there is no title."""
  return f"{passage.title}\n{passage.text}" if passage.title else passage.text


class BM25Retriever(documents.OverCorpus):
  """Ranks the passages that share a word with the query by BM25 (Lucene's idf) over title and text."""

  def __init__(
    self, folder: pathlib.Path, corpus: Corpus, settings: Mapping[str, Any], shard: Mapping[str, Any] | None = None
  ):
    """Reads the files of `build`, which returned `settings`. `shard`: the part of a corpus; None for a whole one.

    Raises:
      ValueError: the files do not match, or their words are those of another version's rule.
    """
    bm25s = imports.without_jax("bm25s")
    self._folder, self._words = folder, Words.from_settings(settings["words"], folder)
    self._said_wordless = False
    with cards.opening(folder):
      self._index = bm25s.BM25.load(folder, mmap=True, allow_pickle=False, load_corpus=False)
      columns = _columns(self._index, rows=len(corpus) if shard is None else None)
    if (count := len(self._index.vocab_dict)) != columns:
      raise ValueError(
        f"{folder / 'vocab.index.json'}: {count} words, but the scores are for {columns}: {cards.AGAIN}."
      )
    about = dict(k1=self._index.k1, b=self._index.b, words=self._words.settings, wordless=settings["wordless"])
    super().__init__(corpus, dict(kind="bm25", **about, **(dict(shard=shard) if shard else {})))

  def _search(self, texts: list[str], k: int) -> api.Answers:
    words = [self._words(text) for text in texts]
    without = [text for text, found in zip(texts, words) if not found]
    if without and not self._said_wordless:  # once: a long run would log it tens of thousands of times
      self._said_wordless = True
      say_wordless("queries", len(without), len(texts), without[0])
    return [self._best(found, k) for found in words]

  def _best(self, words: Sequence[str], k: int) -> list[Passage]:
    ids = [self._index.vocab_dict[word] for word in words if word in self._index.vocab_dict]
    if not ids:
      return []
    with cards.opening(self._folder):
      scores = self._index.get_scores_from_ids(ids)
    hits = np.flatnonzero(scores > 0)  # leave out passages without any of the words
    if len(hits) > k:
      # Keep all passages that tie with the k-th one: `take_best` orders them by row.
      hits = hits[scores[hits] >= np.partition(scores[hits], len(hits) - k)[len(hits) - k]]
    best = take_best(scores[hits], hits, k)
    return [self.corpus.scored(row, score) for score, row in zip(*best)]


def build(
  corpus: Collection[Passage], folder: pathlib.Path, *, rows: range | None = None, progress: bool = True, **options: Any
) -> dict[str, Any]:
  """Writes bm25s's files. The same corpus gives the same files, since words are numbered by first appearance.

  Memory: about 4 bytes per word of the corpus and 130 per passage; and beside them, once the words are counted, 20 per
  distinct word of each passage.

  Args:
    rows: rows of the passages that searches return; None for all.
    **options: see `checked`.

  Returns:
    The settings that `BM25Retriever` needs beside the files.

  Raises:
    ValueError: a wrong option, or the corpus has no words.
  """
  k1, b, words = checked(**options)
  vocabulary, documents, wordless, example = {}, [], 0, ""
  for passage in tqdm(corpus, total=len(corpus), desc="index: bm25", unit=" passages", disable=not progress):
    ids = [vocabulary.setdefault(word, len(vocabulary)) for word in words(title_and_text(passage))]
    if not ids and (rows is None or len(documents) in rows):
      wordless, example = wordless + 1, example or title_and_text(passage)
    documents.append(np.array(ids, dtype=np.int32))
  if not vocabulary:
    raise ValueError("no passage has a word that BM25 indexes (two letters or more, no stop word): check the corpus.")
  bm25s = imports.without_jax("bm25s")
  # By default bm25s sorts the scores by NumPy, with 36 bytes for each of them, and not in linear time.
  index = bm25s.BM25(k1=k1, b=b, method="lucene", backend="numpy", csc_backend="scipy")
  index.index((documents, vocabulary), create_empty_token=False, show_progress=progress)
  index.scores["indptr"] = index.scores["indptr"].astype(np.int64)  # as by default
  if rows is not None:
    _keep(index.scores, rows)
  index.save(folder, allow_pickle=False, show_progress=False)
  say_wordless("passages", wordless, len(documents) if rows is None else len(rows), example)
  return dict(words=words.settings, wordless=wordless)


def checked(
  *, k1: float = 0.9, b: float = 0.4, stemmer: str = "", stopwords: str = "english", pattern: str = "two"
) -> tuple[float, float, Words]:
  """BM25's saturation (at least 0) and length normalisation (0 to 1), and the words of these options of `build`.

  Raises:
    ValueError: an option is of a wrong type or outside its range.
  """
  if not all(type(value) in (int, float) for value in (k1, b)) or not 0 <= k1 < math.inf or not 0 <= b <= 1:
    raise ValueError(f"k1={k1!r}, b={b!r}: they must be numbers; k1 must not be negative and b must lie in [0, 1].")
  return k1, b, Words(stemmer=stemmer, stopwords=stopwords, pattern=pattern)


def _columns(index: "bm25s.BM25", *, rows: int | None) -> int:
  """The number of words with scores. Raises ValueError if the arrays do not fit together, or the corpus's rows."""
  places, scores = index.scores["indptr"], index.scores["data"]
  if not all(isinstance(place, int) for place in index.vocab_dict.values()):
    raise ValueError("vocab.index.json: places of words must be whole numbers")
  if places.ndim != 1 or not len(places) or places[0] != 0 or (np.diff(places) < 0).any() or places[-1] != len(scores):
    raise ValueError("indptr.csc.index.npy does not fit data.csc.index.npy")
  if len(index.scores["indices"]) != len(scores):
    raise ValueError("indices.csc.index.npy does not fit data.csc.index.npy")
  if rows is not None and index.scores["num_docs"] != rows:
    raise ValueError(f"params.index.json: {index.scores['num_docs']} passages, but the corpus has {rows}")
  return len(places) - 1


def _keep(scores: dict[str, Any], rows: range) -> None:
  """Drops the scores of all other rows from bm25s's compressed columns (a column is a word, `indices` are rows)."""
  mask = (scores["indices"] >= rows.start) & (scores["indices"] < rows.stop)
  before = np.concatenate([[0], np.cumsum(mask)])  # before[i]: number of kept scores among the first i
  starts = before[scores["indptr"]].astype(scores["indptr"].dtype)
  kept = dict(data=scores["data"][mask], indices=scores["indices"][mask] - rows.start)
  scores.update(kept, indptr=starts, num_docs=len(rows))
