"""Answers as they are compared: three named ways to write one down."""

import re
import string

STYLES = ("squad", "spaced", "none")

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_DELETE = str.maketrans("", "", string.punctuation)
_SPACE = str.maketrans({mark: " " for mark in string.punctuation + "‘’´`"})


def normalize(text: str, style: str) -> str:
  """The text as the style compares it.

  "squad": lower case; ASCII punctuation deleted; the words a, an, the dropped; white space squeezed.
  "spaced": the same, but punctuation, and the quotes ‘ ’ ´ `, become a space each.
  "none": the text as it is.

  So "The_U.S." is "theus" in squad (the article hides behind the deleted underscore) and "u s" in spaced.

  Raises:
    ValueError: a style that is none of the three.

  Source: SQuAD 1.1's evaluation script (so Search-R1, FlashRAG, LongBench); ARENA's and TriviaQA's for "spaced";
    CARE's training reward for "none".
  """
  if style == "none":
    return text
  if style not in STYLES:
    raise ValueError(f"style={style!r} is no way to normalise an answer: use 'squad', 'spaced' or 'none'.")
  text = text.lower().translate(_DELETE if style == "squad" else _SPACE)
  return " ".join(_ARTICLE.sub(" ", text).split())
