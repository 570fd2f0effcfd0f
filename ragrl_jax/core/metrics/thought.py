"""How a policy thinks, in its text: repeated words, broken tags, and which characters are thought, query or answer."""

import re
from collections.abc import Sequence

import numpy as np

from ragrl_jax.core.text import tokens

KINDS = ("tag", "thought", "query", "answer")
GRAM = 4  # words whose sequence counts as repeated
_TAG = re.compile(r"<(/?)([A-Za-z_][\w-]*)>")


def kinds(text: str, query: str | None, answer: str | None) -> np.ndarray:
  """The place in KINDS of each character of a turn's text, int8. What is neither tag, query nor answer is thought.

  Args:
    query: of the search that it asked for, which is where it is last in the text; None without one.
    answer: its answer, where it is last; None without one.
  """
  result = np.full(len(text), 1, np.int8)
  for kind, part in ((2, query), (3, answer)):
    if part and (start := text.rfind(part)) >= 0:
      result[start : start + len(part)] = kind
  for tag in _TAG.finditer(text):
    result[slice(*tag.span())] = 0
  return result


def repeated(turns: Sequence[str]) -> tuple[float | None, float | None]:
  """(within, between): the share of a turn's GRAM words in a row that it, or an earlier turn, has said before.

  A share is of all the turns, and of all but the first one; None if these have no GRAM words in a row.
  """
  before: set[tuple[str, ...]] = set()
  within, between, grams_seen, later = 0, 0, 0, 0
  for number, text in enumerate(turns):
    words = [word.lower() for word in tokens.words(text)]
    grams = list(zip(*(words[start:] for start in range(GRAM))))
    grams_seen += len(grams)
    within += len(grams) - len(set(grams))
    if number:
      later += len(grams)
      between += sum(gram in before for gram in grams)
    before.update(grams)
  return (within / grams_seen if grams_seen else None), (between / later if later else None)


def broken(text: str) -> bool:
  """Whether a tag in the text is not closed, closes none, or closes another than the last one that is open."""
  opened: list[str] = []
  for closing, name in _TAG.findall(text):
    if not closing:
      opened.append(name)
    elif not opened or opened.pop() != name:
      return True
  return bool(opened)
