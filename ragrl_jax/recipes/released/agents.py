"""The tags and protocols of published search agents: recipe and adapters use them to play and to read."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from ragrl_jax.core.text import beginnings
from ragrl_jax.prompting import passages
from ragrl_jax.structs import Passage

Tags = tuple[str, str]
ANSWER: Tags = ("<answer>", "</answer>")
THOUGHT: Tags = ("<think>", "</think>")
SEARCH: Tags = ("<search>", "</search>")


@dataclasses.dataclass(frozen=True)
class Agent:
  """The tags and the protocol of one agent.

  Attributes:
    query, results: opening and closing tags.
    answered: where the answer is. "tags": in answer tags. "boxed": in LaTeX's box, within answer tags. "box": in a box.
    thinks: whether the transcript has both `<think>` tags of each thought, so that its faithfulness can be scored.
    others: further tags.
    asks: whether its data end each question with "?", as Search-R1's do.
    spaces: the white space around the tags of results: before and after the opening one, before and after the closing.
    documents: "heads" (Doc 1(Title: …) …), "counted" ((1) …) or "contents" (title and text).
    between: the text between two documents.
    notice: whether a turn without a search or an answer gets a notice; otherwise it ends the episode.
    digests: whether the model reads documents in a separate conversation, and only its digest enters the main one. Such
      an agent is told when it repeats a query, or may not search any more.
  """

  query: Tags
  results: Tags
  answered: str = "tags"
  thinks: bool = False
  others: tuple[str, ...] = ()
  asks: bool = False
  spaces: tuple[str, str, str, str] = ("\n\n", "", "", "\n\n")
  documents: str = "heads"
  between: str = "\n"
  notice: bool = False
  digests: bool = False

  @property
  def _around(self) -> Tags:
    """The texts before and after the results, with their tags."""
    before, first, last, after = self.spaces
    return f"{before}{self.results[0]}{first}", f"{last}{self.results[1]}{after}"

  def block(self, inside: str) -> str:
    """The environment's text after a query."""
    before, after = self._around
    return f"{before}{inside}{after}"

  def inside(self, text: str) -> str | None:
    """The contents of a block; None if the text is not a block."""
    before, after = (part.strip() for part in self._around)
    text = text.strip()
    is_block = text.startswith(before) and text.endswith(after)
    return text[len(before) : len(text) - len(after)] if is_block else None

  def shown(self, documents: Sequence[Passage], tokenizer, limit: int | None) -> str:
    """The documents as text. Text that looks like a tag is broken up. Documents are cut to `limit` tokens."""
    if self.documents == "heads":
      text = passages.block(documents, tokenizer=tokenizer, max_passage_tokens=limit).strip()
      return text.removeprefix(passages.OPEN).removesuffix(passages.CLOSE)
    text = (f"{one.title}\n{one.text}".strip() for one in documents)
    short = (beginnings.for_ids(line, limit, tokenizer.encode) if limit else line for line in text)
    lines = [passages.neutral(line) for line in short]
    if self.documents == "counted":
      lines = [f"({number}){' '.join(line.split())}" for number, line in enumerate(lines, 1)]
    return self.between.join(passages.cut(line, tokenizer, limit) if limit else line for line in lines)


_O1 = Agent(
  ("<|begin_search_query|>", "<|end_search_query|>"),
  ("<|begin_search_result|>", "<|end_search_result|>"),
  answered="box",
  digests=True,
)
_SEARCH_R1 = Agent(SEARCH, ("<information>", "</information>"), thinks=True, asks=True, notice=True)
AGENTS: Mapping[str, Agent] = {
  "search_r1": _SEARCH_R1,
  # Both are built on Search-R1's code.
  "desa": _SEARCH_R1,
  "autorefine": Agent(SEARCH, ("<documents>", "</documents>"), others=("<refine>",), asks=True, notice=True),
  "research": Agent(
    SEARCH,
    ("<result>", "</result>"),
    answered="boxed",
    thinks=True,
    spaces=(" ", "\n", "\n", ""),
    documents="contents",
    between="\n\n",
  ),
  "r1_searcher": Agent(
    ("<|begin_of_query|>", "<|end_of_query|>"),
    ("<|begin_of_documents|>", "<|end_of_documents|>"),
    spaces=("\n\n", "\n", "\n", "\n\n"),
    documents="counted",
  ),
  "search_o1": _O1,
  "simpledeepsearcher": _O1,
}


def boxed(text: str) -> str | None:
  """The inside of the last complete `\\boxed{…}`, without LaTeX's `\\text{…}` and escapes; None if there is none."""
  opened: list[re.Match[str]] = []
  last: tuple[int, int] | None = None  # where the inside of the pair that begins last begins, and where it ends
  for brace in re.finditer(r"(\\boxed)?\{|\}", text):
    if brace[0] != "}":
      opened.append(brace)
    elif opened and (start := opened.pop())[1] and (last is None or start.end() > last[0]):
      last = start.end(), brace.start()
  return None if last is None else _plain(text[slice(*last)])


def _plain(text: str) -> str:
  text = re.sub(r"\\(?:text|textbf|mathrm|mathbf)\{([^{}]*)\}", r"\1", text)
  return re.sub(r"\\([%$&#_,; ])", lambda match: " " if match[1] in ",; " else match[1], text).strip()
