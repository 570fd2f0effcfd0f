"""The protocols of the agents: the place of results, the format of documents, and notices."""

import dataclasses
from collections.abc import Mapping, Sequence

from ragrl_jax.core.text import beginnings
from ragrl_jax.prompting import passages
from ragrl_jax.recipes.released.tags import AGENTS
from ragrl_jax.structs import Passage


@dataclasses.dataclass(frozen=True)
class Agent:
  """The protocol of one agent, except for its tags (`tags.py`).

  Attributes:
    around: the texts before and after the results, with their tags.
    documents: "heads" (Doc 1(Title: …) …), "counted" ((1) …) or "contents" (title and text).
    between: the text between two documents.
    notice: whether a turn without a search or an answer gets a notice; otherwise it ends the episode.
    digests: whether the model reads documents in a separate conversation, and only its digest enters the main one. Such
      an agent is told when it repeats a query, or may not search any more.
  """

  around: tuple[str, str]
  documents: str = "heads"
  between: str = "\n"
  notice: bool = False
  digests: bool = False

  def block(self, inside: str) -> str:
    """The environment's text after a query."""
    return f"{self.around[0]}{inside}{self.around[1]}"

  def inside(self, text: str) -> str | None:
    """The contents of a block; None if the text is not a block."""
    before, after = (part.strip() for part in self.around)
    text = text.strip()
    found = text.startswith(before) and text.endswith(after)
    return text[len(before) : len(text) - len(after)] if found else None

  def shown(self, found: Sequence[Passage], tokenizer, limit: int | None) -> str:
    """The documents as text. Text that looks like a tag is broken up. Documents are cut to `limit` tokens."""
    if self.documents == "heads":
      whole = passages.block(found, tokenizer=tokenizer, max_passage_tokens=limit).strip()
      return whole.removeprefix(passages.OPEN).removesuffix(passages.CLOSE)
    whole = (f"{one.title}\n{one.text}".strip() for one in found)
    short = (beginnings.for_ids(line, limit, tokenizer.encode) if limit else line for line in whole)
    lines = [passages.neutral(line) for line in short]
    if self.documents == "counted":
      lines = [f"({number}){' '.join(line.split())}" for number, line in enumerate(lines, 1)]
    return self.between.join(passages.cut(line, tokenizer, limit) if limit else line for line in lines)


def _around(name: str, *spaces: str) -> tuple[str, str]:
  before, first, last, after = spaces
  opening, closing = AGENTS[name].results
  return f"{before}{opening}{first}", f"{last}{closing}{after}"


_BLANK, _TIGHT = "\n\n", ""
_O1 = Agent(_around("search_o1", _BLANK, _TIGHT, _TIGHT, _BLANK), digests=True)
PLAYED: Mapping[str, Agent] = {
  "search_r1": Agent(_around("search_r1", _BLANK, _TIGHT, _TIGHT, _BLANK), notice=True),
  "desa": Agent(_around("desa", _BLANK, _TIGHT, _TIGHT, _BLANK), notice=True),
  "autorefine": Agent(_around("autorefine", _BLANK, _TIGHT, _TIGHT, _BLANK), notice=True),
  "research": Agent(_around("research", " ", "\n", "\n", _TIGHT), documents="contents", between="\n\n"),
  "r1_searcher": Agent(_around("r1_searcher", _BLANK, "\n", "\n", _BLANK), documents="counted"),
  "search_o1": _O1,
  "simpledeepsearcher": _O1,
}
