"""Text → words, for the lexical index and for the hashing encoder."""

from __future__ import annotations

import itertools
import logging
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import Stemmer

from ragrl_jax.core.text import forms, tokens
from ragrl_jax.structs import Passage

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
    settings: JSON; `Words.of(settings)` makes an equal object.
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
      from bm25s.stopwords import STOPWORDS_EN  # inside: its import starts JAX; hosts join first

      self._drop = frozenset(STOPWORDS_EN)
    self._local = threading.local()  # a Snowball stemmer keeps state: one for each thread

  @classmethod
  def of(cls, settings: Mapping[str, Any], where: object) -> Words:
    """The words of an index. Raises ValueError: it has words by another rule. `where` names the index."""
    given = dict(settings)
    if (rule := given.pop("rule", 1)) != RULE:
      raise ValueError(f"{where}: its words are those of rule {rule}, this version has rule {RULE}: build it again.")
    return cls(**given)

  def __call__(self, text: str) -> list[str]:
    if text.isascii():
      found = [word for word in _ASCII.findall(text.lower()) if len(word) >= self._least]
    else:
      found = list(self._of_any_script(text))
    if self._drop:
      found = [word for word in found if word not in self._drop]
    if self.settings["stemmer"]:
      if not hasattr(self._local, "stemmer"):
        self._local.stemmer = Stemmer.Stemmer(self.settings["stemmer"])
      found = self._local.stemmer.stemWords(found)
    return found if text.isascii() else [word.translate(_SAME) for word in found]

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


def say_wordless(what: str, found: int, total: int, example: str) -> None:
  """Logs how many passages or queries have no words: searches by words do not find them, or find nothing."""
  if found:
    logging.warning("%d of %d %s have no words to search by, such as %.80r.", found, total, what, example)


def title_and_text(passage: Passage) -> str:
  """A passage as one text: title, line break and text, or the text alone if there is no title."""
  return f"{passage.title}\n{passage.text}" if passage.title else passage.text
