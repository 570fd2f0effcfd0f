"""Model text → the next query, and the answer. Written against `prompt.py`."""

import dataclasses
import re

from ragrl_jax.core.text import tags
from ragrl_jax.prompting import passages
from ragrl_jax.recipes import parts
from ragrl_jax.recipes.search_agent import own
from ragrl_jax.structs import Passage

END = "</answer>"
# method → the tag after which it may search
ASKS = {"ircot": "thought", "self_ask": "question", "skr": "need", "adaptive": "thought"}
_ENDS = {
  "adaptive": ("</need>",),
  "recomp": ("</summary>",),
  "filco": ("</extract>",),
}  # stop strings of its other turns
_TAG = re.compile(r"</?\w+>")
_YES_NO = re.compile(r"\b(?:yes|no)\b")


@dataclasses.dataclass(frozen=True)
class Parser(parts.Parser):
  """Reads the replies of a method of `prompt.METHODS`."""

  method: str = "rag"

  @property
  def stops(self) -> tuple[str, ...]:
    """The stop strings of a turn while searches are left."""
    asks = (f"</{ASKS[self.method]}>",) if self.method in ASKS else ()
    return (*_ENDS.get(self.method, ()), *asks, END)

  def query(self, text: str, question: str) -> str | None:
    """The query after a turn with this text, or None."""
    if self.method == "iter_retgen":
      said = " ".join(_TAG.sub(" ", text).split())
      return f"{question} {said}".strip() if said else None
    if self.method not in ASKS:
      return None
    found = tags.last(text, (ASKS[self.method], "answer"))
    if found is None or found.name == "answer" or not found.body.strip():
      return None
    if self.method == "skr":
      said = _YES_NO.search(found.body.lower())  # its first word of the two
      return question if said and said[0] == "yes" else None
    return found.body.strip()

  def answer(self, text: str) -> str | None:
    """The last complete answer in the text outside of `search_agent.own`'s blocks, or None."""
    found = tags.last(own(text), ("answer",))
    return None if found is None else found.body.strip()

  def observed(self, said: str, text: str) -> tuple[str | None, tuple[Passage, ...] | None]:
    """(the model's query, or None if the question itself was the query; passages) of a result block."""
    found = passages.parse_block(text)
    return (None, None) if found is None else (self.query(said, "") or None, found)
