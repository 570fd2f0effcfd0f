"""The tags of published search agents: recipe and adapters use them to play and to read."""

import dataclasses
import re
from collections.abc import Mapping

Tags = tuple[str, str]
ANSWER: Tags = ("<answer>", "</answer>")
THOUGHT: Tags = ("<think>", "</think>")
SEARCH: Tags = ("<search>", "</search>")


@dataclasses.dataclass(frozen=True)
class AgentTags:
  """The tags of one agent.

  Attributes:
    query, results: opening and closing tags.
    answered: where the answer is. "tags": in answer tags. "boxed": in LaTeX's box, within answer tags. "box": in a box.
    thinks: whether the transcript has both `<think>` tags of each thought, so that its faithfulness can be scored.
    others: further tags.
    asks: whether its data end each question with "?", as Search-R1's do.
  """

  query: Tags
  results: Tags
  answered: str = "tags"
  thinks: bool = False
  others: tuple[str, ...] = ()
  asks: bool = False


_O1 = AgentTags(
  query=("<|begin_search_query|>", "<|end_search_query|>"),
  results=("<|begin_search_result|>", "<|end_search_result|>"),
  answered="box",
)
AGENTS: Mapping[str, AgentTags] = {
  "search_r1": AgentTags(SEARCH, ("<information>", "</information>"), thinks=True, asks=True),
  # Both are built on Search-R1's code.
  "desa": AgentTags(SEARCH, ("<information>", "</information>"), thinks=True, asks=True),
  "autorefine": AgentTags(SEARCH, ("<documents>", "</documents>"), others=("<refine>",), asks=True),
  "research": AgentTags(SEARCH, ("<result>", "</result>"), "boxed", thinks=True),
  "r1_searcher": AgentTags(
    ("<|begin_of_query|>", "<|end_of_query|>"), ("<|begin_of_documents|>", "<|end_of_documents|>")
  ),
  "search_o1": _O1,
  "simpledeepsearcher": _O1,
}


def boxed(text: str) -> str | None:
  """The inside of the last complete `\\boxed{…}`, without LaTeX's `\\text{…}` and escapes; None if there is none."""
  at = text.rfind(r"\boxed{")
  while at >= 0:
    depth, start = 0, at + len(r"\boxed")
    for end in range(start, len(text)):
      depth += {"{": 1, "}": -1}.get(text[end], 0)
      if not depth:
        return _plain(text[start + 1 : end])
    at = text.rfind(r"\boxed{", 0, at)
  return None


def _plain(text: str) -> str:
  text = re.sub(r"\\(?:text|textbf|mathrm|mathbf)\{([^{}]*)\}", r"\1", text)
  return re.sub(r"\\([%$&#_,; ])", lambda found: " " if found[1] in ",; " else found[1], text).strip()
