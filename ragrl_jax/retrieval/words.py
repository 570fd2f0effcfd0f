"""Text → words, for the lexical index and for the hashing encoder."""

import re
import threading
import unicodedata

import Stemmer

from ragrl_jax.structs import Passage

PATTERNS = {
  "two": re.compile(r"(?u)\b\w\w+\b"),  # bm25s's own: words of at least two characters
  "all": re.compile(r"(?u)\w+"),
}


class Words:
  """`Words(…)(text)` returns the lower-cased words of a text. Several threads may call it.

  Attributes:
    settings: JSON; `Words(**settings)` makes an equal object.
  """

  def __init__(self, pattern: str = "two", stopwords: str = "english", stemmer: str = ""):
    """
    Args:
      pattern: "two" (words of two characters or more) or "all".
      stopwords: "english" drops bm25s's list, "none" drops nothing.
      stemmer: a Snowball language ("english", "german", …), or "" for none.

    Raises:
      ValueError: an unknown name.
    """
    if pattern not in PATTERNS:
      raise ValueError(f"pattern={pattern!r}: it must be one of {sorted(PATTERNS)}.")
    if stopwords not in ("english", "none"):
      raise ValueError(f"stopwords={stopwords!r}: it must be 'english' or 'none'.")
    if stemmer and stemmer not in Stemmer.algorithms():
      raise ValueError(f"stemmer={stemmer!r}: it must be '' or one of {', '.join(Stemmer.algorithms())}.")
    self.settings = dict(pattern=pattern, stopwords=stopwords, stemmer=stemmer)
    self._find = PATTERNS[pattern].findall
    self._drop = frozenset()
    if stopwords == "english":
      from bm25s.stopwords import STOPWORDS_EN  # inside: its import starts JAX; hosts join first

      self._drop = frozenset(STOPWORDS_EN)
    self._local = threading.local()  # a Snowball stemmer keeps state: one for each thread

  def __call__(self, text: str) -> list[str]:
    found = self._find(unicodedata.normalize("NFC", text).lower())
    if self._drop:
      found = [word for word in found if word not in self._drop]
    if self.settings["stemmer"]:
      if not hasattr(self._local, "stemmer"):
        self._local.stemmer = Stemmer.Stemmer(self.settings["stemmer"])
      found = self._local.stemmer.stemWords(found)
    return found


def title_and_text(passage: Passage) -> str:
  """A passage as one text: title, line break and text, or the text alone if there is no title."""
  return f"{passage.title}\n{passage.text}" if passage.title else passage.text
