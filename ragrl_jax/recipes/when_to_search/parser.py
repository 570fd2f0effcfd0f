"""Model text → action, and whether an episode has one of the two formats. Written against `prompt.py`."""

import re

from ragrl_jax.core.text import tags
from ragrl_jax.recipes.search_agent import STOPS, Parser, last_answer, outline
from ragrl_jax.structs import MODEL, Episode

__all__ = ["STOPS", "Parser", "in_shape", "last_answer", "wordless"]

_LETTERS = {"think": "T", "search": "S", "information": "I", "reflect": "R", "answer": "A", "notice": "N"}
_SHAPE = re.compile("TRA|TSIR(T?SIR)*A")


def in_shape(episode: Episode) -> bool:
  """Whether the format is think reflect answer, or think (search results reflect) … answer.

  A think may precede later searches. Outside of these sections there is only white space. Results are segments of the
  environment, never the model's text. The only answer comes last.

  Source: When to Search sec. 3.3; its second example searches right after a reflection.
  """
  found = outline(episode.turns, ("think", "search", "reflect", "answer"))
  return found is not None and _SHAPE.fullmatch("".join(_LETTERS[name] for name in found)) is not None


def wordless(episode: Episode) -> bool:
  """Whether a think or a reflection has no letter and no digit."""
  said = [segment.text for segment in episode.turns if segment.owner == MODEL]
  return any(not any(map(str.isalnum, pair.body)) for text in said for pair in tags.pairs(text, ("think", "reflect")))
