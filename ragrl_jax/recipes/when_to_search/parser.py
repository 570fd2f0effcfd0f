"""Model text → action, and whether an episode has one of the two shapes. Written against `prompt.py`."""

import re

from ragrl_jax.recipes.search_agent import STOPS, Parser, last_answer, outline
from ragrl_jax.structs import Episode

__all__ = ["STOPS", "Parser", "in_shape", "last_answer"]

_LETTERS = {"think": "T", "search": "S", "information": "I", "reflect": "R", "answer": "A", "notice": "N"}
_SHAPE = re.compile("TRA|TSIR(T?SIR)*A")


def in_shape(episode: Episode) -> bool:
  """think reflect answer, or think (search results reflect) … answer, where later searches may have a think before.

  Nothing but white space stands outside; results are the environment's segments, never the model's words; the one
  answer comes last.

  Source: When to Search sec. 3.3; its second example searches right after a reflection.
  """
  found = outline(episode.turns, ("think", "search", "reflect", "answer"))
  return found is not None and _SHAPE.fullmatch("".join(_LETTERS[name] for name in found)) is not None
