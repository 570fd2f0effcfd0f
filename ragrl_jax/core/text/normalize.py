"""Normalises answers before they are compared, in one of four styles."""

import functools
import re
import string

from ragrl_jax.core.text import forms

STYLES = ("squad", "spaced", "filco", "none")

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_ARTICLES = frozenset(("a", "an", "the"))
_DELETE = str.maketrans("", "", string.punctuation)
_MARKS = string.punctuation.encode()
_SPACED = bytes.maketrans(_MARKS, b" " * len(_MARKS))
_SPACE = str.maketrans({mark: " " for mark in string.punctuation + "‘’´`"})


@functools.lru_cache(maxsize=1024)  # several metrics normalise the same golds, one after the other
def normalize(text: str, style: str) -> str:
  """The text, normalised in this style.

  "squad": lower case; ASCII punctuation deleted; the words a, an, the removed; white space collapsed to one space.
  "spaced": the same, but punctuation, and the quotes ‘ ’ ´ `, become a space each.
  "filco": lower case; the words a, an, the removed; white space collapsed; punctuation stays.
  "none": the text unchanged.

  Unlike in the scripts, every text first gets the one form of `forms.composed`, so that answers are equal however their
  letters are encoded. This changes only texts that are not in Unicode's usual form.

  Example: "The_U.S." is "theus" in squad (without the underscore, "The" is no word of its own) and "u s" in spaced.

  Raises:
    ValueError: the style is not one of the four.

  Source: SQuAD 1.1's evaluation script (so Search-R1, FlashRAG, LongBench); ARENA's and TriviaQA's for "spaced";
    FilCo's eval.py for "filco", whose function that removes punctuation is never called; CARE's training reward for
    "none".
  """
  text = forms.composed(text)
  if style == "none":
    return text
  if style not in STYLES:
    raise ValueError(f"style={style!r}: answers are normalised by 'squad', 'spaced', 'filco' or 'none'.")
  text = text.lower()
  if text.isascii() and text.isprintable():  # most answers; bytes are translated ten times as fast as text
    if style != "filco":
      text = text.encode().translate(_SPACED, b"" if style == "spaced" else _MARKS).decode()
    # In words and spaces alone, a whole word is an item of `split`.
    if style != "filco" or text.replace(" ", "").isalnum():
      return " ".join([word for word in text.split() if word not in _ARTICLES])
  elif style != "filco":
    text = text.translate(_DELETE if style == "squad" else _SPACE)
  return " ".join(_ARTICLE.sub(" ", text).split())


def kept(text: str, style: str) -> str:
  """`normalize`; of a text of which it leaves nothing, what the last step leaves that leaves something.

  So "The." is "the", and "?" is "?": such answers are equal only to themselves.
  """
  if result := normalize(text, style):
    return result
  lower = " ".join(forms.composed(text).lower().split())
  marks = {"squad": _DELETE, "spaced": _SPACE}.get(style, {})
  return " ".join(lower.translate(marks).split()) or lower


@functools.lru_cache(maxsize=64)  # the golds of a question, whatever the number of metrics
def normalize_all(texts: tuple[str, ...], style: str) -> tuple[str, ...]:
  """Each text as `normalize` leaves it, several times as fast where all are plain: printable ASCII characters."""
  together = "".join(texts)
  plain = bool(texts) and together.isascii() and together.isprintable()
  if not plain or style not in ("squad", "spaced") and not (style == "filco" and together.replace(" ", "").isalnum()):
    return tuple(normalize(text, style) for text in texts)
  joined = " \0 ".join(texts).lower()  # a word of its own between two texts: no printable one has it
  if style != "filco":
    joined = joined.encode().translate(_SPACED, b"" if style == "spaced" else _MARKS).decode()
  words = " ".join([word for word in joined.split() if word not in _ARTICLES])
  return tuple([part.strip() for part in words.split("\0")])
