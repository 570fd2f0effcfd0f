"""What is asked of an agent: to think, search and answer in its own tags; and the parser of its turns."""

import dataclasses

from ragrl_jax.core.text import tags
from ragrl_jax.prompting import passages
from ragrl_jax.recipes import parts
from ragrl_jax.recipes.released.agents import ANSWER, Agent, boxed
from ragrl_jax.structs import Passage

END = ANSWER[1]
INSTRUCTIONS = ("paper", "short", "none")
_ANSWERS = {
  "tags": "the answer, short and without explanations, between <answer> and </answer>",
  "boxed": "the answer between <answer> and </answer>, and in it, as \\boxed{}, the short answer alone",
  "box": "the short answer, and nothing else, in \\boxed{}",
}


def wordings(agent: Agent) -> dict[str, str]:
  """The agent's wordings by the names of INSTRUCTIONS, for `parts.Prompt`."""
  answer = _ANSWERS[agent.answered]
  thinks = "" if agent.answered == "box" else "Reason first, between <think> and </think>. "
  refines = "After every search, write down between <refine> and </refine> what matters in the documents. "
  query, results = " your query ".join(agent.query), " and ".join(agent.results)
  told = (
    f"Answer the question below, step by step. {thinks}Whenever a piece of knowledge is missing, search for it: write "
    f"{query}, and results come between {results}. "
    f"Search as many times as it takes. {refines if '<refine>' in agent.others else ''}As soon as nothing is missing, "
    f"give {answer}.\nQuestion: {{question}}\n"
  )
  short = f"Search in {agent.query[0]} {agent.query[1]}; give {answer}.\nQuestion: {{question}}\n"
  return {"paper": told, "short": short, "none": "{question}"}


@dataclasses.dataclass(frozen=True)
class Parser(parts.Parser):
  """Reads the replies of an agent."""

  agent: Agent

  @property
  def stops(self) -> tuple[str, ...]:
    """The stop strings of a turn. An agent that answers in a box ends with its turn."""
    return (self.agent.query[1],) if self.agent.answered == "box" else (self.agent.query[1], END)

  def query(self, text: str) -> str | None:
    """The last query of a turn, with single spaces; None without a query.

    An empty one is a query for Search-R1 and the agents on its code, which search for it, and none for the others.
    """
    opening, closing = self.agent.query
    said, closed, _ = self.own(text).rpartition(closing)
    if not closed or opening not in said:
      return None
    query = " ".join(said.rpartition(opening)[2].split())
    return query if query or self.agent.notice else None

  def answer(self, text: str) -> str | None:
    """The last complete answer in a turn, or None. A box before a query does not count."""
    said = self.own(text)
    if self.agent.answered == "box":
      return boxed(said.rpartition(self.agent.query[1])[2])
    found = tags.last(said, "answer")
    if found is None:
      return None
    box = boxed(found.body) if self.agent.answered == "boxed" else None
    return found.body.strip() if box is None else box

  def own(self, text: str) -> str:
    """The text without result blocks that the model wrote itself. A tag that it never closes is a mention."""
    return tags.without(text, *self.agent.results)

  def observed(self, said: str, text: str) -> tuple[str | None, tuple[Passage, ...] | None]:
    """(query, passages) of a result block; (None, None) for a notice. A block in a foreign format is one passage."""
    inside = self.agent.inside(text)
    if inside is None:
      return None, None
    found = passages.parse_block(f"{passages.OPEN}{inside}{passages.CLOSE}")
    return self.query(said), (Passage("1", "", inside.strip()),) if found is None else found
