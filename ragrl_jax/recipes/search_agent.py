"""A search agent's turns with Search-R1's tags: queries, answers and results.

Every recipe that searches reads its model by these rules. They keep the model's and the environment's text apart.
"""

import dataclasses
import re
from collections.abc import Sequence

from ragrl_jax.core.text import tags
from ragrl_jax.prompting import passages, wording
from ragrl_jax.structs import ENVIRONMENT, MODEL, Episode, Passage, Segment

STOPS = ("</search>", "</answer>")
_ACTIONS = ("search", "answer")
_LETTERS = {"think": "T", "search": "S", "information": "I", "answer": "A", "notice": "N"}
_SHAPE = re.compile("T(SIT)*A")

# Opening tags of results, and of actions, of other agents (ReSearch, DeSA, Search-o1, tool calls).
_FOREIGN_RESULTS = re.compile(
  r"\s*(<(?:results?|documents?|docs|context|evidence|observation|retrieval|tool_response)>|<\|begin_search_result\|>)"
)
_FOREIGN_TURN = re.compile(r"\\boxed\{|<\|begin_search_query\|>|<(?:tool_call|query|retrieve)>")

# The environment's text after a turn that neither searches nor answers.
NOTICE = (
  "\nThat was no valid action. To search, I put a query between <search> and </search>; to answer, I put the answer "
  "between <answer> and </answer>. Another try.\n"
)
NOTICES = {"paper": NOTICE}


def notice(choice: str) -> str:
  """The notice that config.switches.notice names: a key of NOTICES, or file:PATH.

  Raises:
    ValueError: see `wording.chosen`.
  """
  return wording.chosen(choice, NOTICES, setting="config.switches.notice", roles=False).text()


def own(text: str) -> str:
  """The model's text without the result blocks that it wrote itself: they bring no results, and tags in them are none.

  A tag that it never closes is a mention, and so is the text after it the model's, as in Search-R1's qa_em.py.
  """
  return tags.without(text, passages.OPEN, passages.CLOSE)


@dataclasses.dataclass(frozen=True)
class Parser:
  """Model text → action.

  Attributes:
    actions: names of the pairs that are actions. "open" (the number of a result) and "find" (words) read documents.
    action: which complete pair of a turn is its action: the "last" one (its text then contains no tag of its own name),
      or the "first" match of `<(search|answer)>(.*?)</\\1>`, as in Search-R1's code. "first" also lets the last answer
      begin at its first opening tag, as the code of its reward does.
  """

  action: str = "last"
  actions: tuple[str, ...] = _ACTIONS

  @property
  def stops(self) -> tuple[str, ...]:
    """The stop strings of a turn: the closing tags of all actions."""
    return tuple(f"</{name}>" for name in self.actions)

  @property
  def facts(self) -> dict[str, str]:
    """What an episode's record says about how it was read: the action, unless it is the usual one."""
    return {} if self.action == "last" else dict(action=self.action)

  def act(self, text: str) -> tuple[str, str] | None:
    """("search", query) or ("answer", answer), stripped, or another of `actions`; None without a valid action.

    See `own` for a block of results that the model wrote.
    """
    said = own(text)
    found = tags.last(said, self.actions) if self.action == "last" else tags.first_match(said, self.actions)
    return None if found is None else (found.name, found.body.strip())

  def search(self, text: str) -> str | None:
    """The query, if the turn's action is a search."""
    action = self.act(text)
    return action[1] if action is not None and action[0] == "search" else None

  def answer(self, text: str) -> str | None:
    """The last complete answer in the text, or None. "" is an answer."""
    found = tags.pairs(own(text), "answer", opening=self.action)
    return found[-1].body.strip() if found else None

  def stop(self, text: str) -> str:
    """The stop string that a turn of a transcript ends on, or "eos".

    Raises:
      ValueError: it acts in another agent's tags only, so that every score of it would be 0.
    """
    if (foreign := _FOREIGN_TURN.search(text)) is not None and tags.last(text, self.actions) is None:
      raise ValueError(_foreign(foreign[0], "search in <search> </search> and answer in <answer> </answer>"))
    return next((stop for stop in self.stops if text.rstrip().endswith(stop)), "eos")

  def observed(self, said: str, text: str) -> tuple[str | None, tuple[Passage, ...] | None]:
    """(query, passages) of a result block; (None, None) for a notice.

    A block in another format, as in other systems' transcripts, is one passage without a title.

    Raises:
      ValueError: results are in another agent's tags, and would not count as a search.
    """
    if (foreign := _FOREIGN_RESULTS.match(text)) is not None:
      raise ValueError(_foreign(foreign[1], "bring results in <information> </information>"))
    found, body = passages.parse_block(text), text.strip()
    if found is None and body.startswith(passages.OPEN) and body.endswith(passages.CLOSE):
      found = (Passage("1", "", body[len(passages.OPEN) : -len(passages.CLOSE)].strip()),)
    return (None, None) if found is None else (self.search(said), found)


def _foreign(tag: str, ours: str) -> str:
  return f"this is another agent's transcript, with {tag!r}: turns must {ours}. Rewrite its tags before it is scored."


def last_answer(parser: Parser, episode: Episode) -> str | None:
  """The model's last answer. Each turn is read separately, so tags of two turns never form a pair."""
  for segment in reversed(episode.segments):
    if segment.owner == MODEL:
      answer = parser.answer(segment.text)
      if answer is not None:
        return answer
  return None


def outline(turns: Sequence[Segment], names: Sequence[str]) -> list[str] | None:
  """The episode as a list of sections: their names, "information" for results, "notice" for other observations.

  None if a model turn contains anything but white space outside these sections, or a result block: results come from
  the environment only.

  Args:
    turns: without the prompt.
    names: allowed names of a model's section.
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
  """Whether the format is think, any number of (search, results, think), answer, with only white space in between.

  Results must be the environment's. A result block that the model wrote itself breaks the format, and so does a notice.

  Source: Search-R1's qa_em_format.py (v0.3).
  """
  found = outline(episode.turns, ("think", "search", "answer"))
  return found is not None and _SHAPE.fullmatch("".join(_LETTERS[name] for name in found)) is not None


def thought(turns: Sequence[Segment]) -> list[str]:
  """The bodies of the model's think blocks, in order. A block inside another section does not count."""
  said = (own(segment.text) for segment in turns if segment.owner == MODEL)
  return [part.body for text in said for part in tags.outer(text, ("think", *_ACTIONS)) if part.name == "think"]


def says(text: str) -> bool:
  """Whether the text has a letter or a digit. ".", white space and U+200B alone do not count."""
  return any(sign.isalnum() for sign in text)


def unthought(episode: Episode) -> bool:
  """Whether no thought of the episode has a letter or a digit."""
  return not any(map(says, thought(episode.turns)))


def hollow(episode: Episode) -> bool:
  """Whether the format is right (`in_shape`), but a thought has no letter or digit."""
  return in_shape(episode) and not all(map(says, thought(episode.turns)))
