"""Normalises answers before they are compared, in one of three styles."""

import re
import string

STYLES = ("squad", "spaced", "none")

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_DELETE = str.maketrans("", "", string.punctuation)
_SPACE = str.maketrans({mark: " " for mark in string.punctuation + "‘’´`"})


def normalize(text: str, style: str) -> str:
  """The text, normalised in this style.

  "squad": lower case; ASCII punctuation deleted; the words a, an, the removed; white space collapsed to one space.
  "spaced": the same, but punctuation, and the quotes ‘ ’ ´ `, become a space each.
  "none": the text unchanged.

  Example: "The_U.S." is "theus" in squad (without the underscore, "The" is no word of its own) and "u s" in spaced.

  Raises:
    ValueError: a style that is none of the three.

  Source: SQuAD 1.1's evaluation script (so Search-R1, FlashRAG, LongBench); ARENA's and TriviaQA's for "spaced";
    CARE's training reward for "none".
  """
  if style == "none":
    return text
  if style not in STYLES:
    raise ValueError(f"style={style!r}: answers are normalised by 'squad', 'spaced' or 'none'.")
  text = text.lower().translate(_DELETE if style == "squad" else _SPACE)
  return " ".join(_ARTICLE.sub(" ", text).split())
