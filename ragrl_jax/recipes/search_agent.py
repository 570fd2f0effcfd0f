"""A search agent's turns in Search-R1's tags: what they ask, what they answer, what they get back.

Every recipe that searches reads its model by these rules. They see the model's words and the environment's apart.
"""

import dataclasses
import re
from collections.abc import Sequence

from ragrl_jax.core.text import tags
from ragrl_jax.prompting import passages
from ragrl_jax.structs import ENVIRONMENT, MODEL, Episode, Passage, Segment

STOPS = ("</search>", "</answer>")
_ACTIONS = ("search", "answer")
_LETTERS = {"think": "T", "search": "S", "information": "I", "answer": "A", "notice": "N"}
_SHAPE = re.compile("T(SIT)*A")

# The environment's words after a turn that neither searches nor answers.
NOTICE = (
  "\nThat was no valid action. To search, I put a query between <search> and </search>; to answer, I put the answer "
  "between <answer> and </answer>. Another try.\n"
)


@dataclasses.dataclass(frozen=True)
class Parser:
  """Model text → action.

  Attributes:
    action: which complete pair of a turn is its action: the "last" one (a query or answer then holds no tag of its own
      name), or the "first" match of `<(search|answer)>(.*?)</\\1>`, as Search-R1's code has it.
  """

  action: str = "last"

  def act(self, text: str) -> tuple[str, str] | None:
    """("search", query) or ("answer", answer), stripped; None where the turn takes no valid action.

    What the model writes between <information> tags is no search result and takes no action either.
    """
    said = tags.without(text, "information")
    found = tags.last(said, _ACTIONS) if self.action == "last" else tags.first_match(said, _ACTIONS)
    return None if found is None else (found.name, found.body.strip())

  def search(self, text: str) -> str | None:
    """The query, if the turn's action is to search."""
    action = self.act(text)
    return action[1] if action is not None and action[0] == "search" else None

  def answer(self, text: str) -> str | None:
    """The last complete answer of the text, or None. "" is an answer."""
    found = tags.last(tags.without(text, "information"), "answer")
    return None if found is None else found.body.strip()

  def stop(self, text: str) -> str:
    """The stop string a turn ends on, or "eos"."""
    return next((stop for stop in STOPS if text.rstrip().endswith(stop)), "eos")

  def observed(self, said: str, text: str) -> tuple[str | None, tuple[Passage, ...] | None]:
    """(query, passages) of a result block; (None, None) for a notice.

    A block in another style than ours, as transcripts from elsewhere may have, is one passage without a title.
    """
    found, body = passages.parse_block(text), text.strip()
    if found is None and body.startswith(passages.OPEN) and body.endswith(passages.CLOSE):
      found = (Passage("1", "", body[len(passages.OPEN) : -len(passages.CLOSE)].strip()),)
    return (None, None) if found is None else (self.search(said), found)


def last_answer(parser: Parser, episode: Episode) -> str | None:
  """The last answer the model wrote, each turn read on its own: tags of two turns make no pair."""
  for segment in reversed(episode.segments):
    if segment.owner == MODEL:
      answer = parser.answer(segment.text)
      if answer is not None:
        return answer
  return None


def outline(turns: Sequence[Segment], names: Sequence[str]) -> list[str] | None:
  """The episode as a plain row of sections: their names, "information" for results, "notice" for other observations.

  None as soon as a model turn holds anything but white space outside these sections, or a result block of its own:
  results are the environment's.

  Args:
    turns: without the prompt.
    names: what a model's section may be called.
  """
  found = []
  for segment in turns:
    if segment.owner == ENVIRONMENT:
      found.append("notice" if segment.found is None else "information")
      continue
    parts = tags.sections(segment.text, (*names, "information"))
    if parts is None or any(part.name == "information" for part in parts):
      return None
    found += [part.name for part in parts]
  return found


def in_shape(episode: Episode) -> bool:
  """think, then any number of (search, results, think), then answer; nothing else but white space.

  The results must be the environment's: a block that the model wrote itself breaks the shape, and so does a notice.

  Source: Search-R1's qa_em_format.py (v0.3).
  """
  found = outline(episode.turns, ("think", "search", "answer"))
  return found is not None and _SHAPE.fullmatch("".join(_LETTERS[name] for name in found)) is not None
