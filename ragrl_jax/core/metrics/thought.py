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
    text: of the model.
    query: of the search that it asked for, which is where it is last in the text; None without one.
    answer: its answer, where it is last; None without one.
  """
  found = np.full(len(text), 1, np.int8)
  for kind, said in ((2, query), (3, answer)):
    if said and (start := text.rfind(said)) >= 0:
      found[start : start + len(said)] = kind
  for tag in _TAG.finditer(text):
    found[slice(*tag.span())] = 0
  return found


def repeated(turns: Sequence[str]) -> tuple[float | None, float | None]:
  """(within, between): the share of a turn's GRAM words in a row that it, or an earlier turn, has said before.

  A share is of all the turns, and of all but the first one; None if these have no GRAM words in a row.
  """
  before: set[tuple[str, ...]] = set()
  within, between, of, later = 0, 0, 0, 0
  for number, text in enumerate(turns):
    said = [word.lower() for word in tokens.words(text)]
    grams = list(zip(*(said[start:] for start in range(GRAM))))
    of += len(grams)
    within += len(grams) - len(set(grams))
    if number:
      later += len(grams)
      between += sum(gram in before for gram in grams)
    before.update(grams)
  return (within / of if of else None), (between / later if later else None)


def broken(text: str) -> bool:
  """Whether a tag in the text is not closed, closes none, or closes another than the last one that is open."""
  opened: list[str] = []
  for closing, name in _TAG.findall(text):
    if not closing:
      opened.append(name)
    elif not opened or opened.pop() != name:
      return True
  return bool(opened)
