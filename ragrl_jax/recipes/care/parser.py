"""Model text → thinking, quotes, answer. Written against `prompt.py`."""

import dataclasses

from ragrl_jax.core.rewards import quotes
from ragrl_jax.core.text import tags
from ragrl_jax.structs import Passage

OPEN, CLOSE, ANSWER = "<think>", "</think>", "Answer:"


@dataclasses.dataclass(frozen=True)
class Parser:
  """
  Attributes:
    which: "last": the answer is what follows the last "Answer:" behind the thinking. "first": what follows the first
      one anywhere, as the authors' code reads it: one inside the thinking takes the rest of the thinking along.
  """

  which: str = "last"

  def in_shape(self, text: str) -> bool:
    """`<think>` first of all, an "Answer:" after a `</think>`, and a complete quote in the first block of thinking.

    Source: the authors' code; the quote and the answer may be empty.
    """
    text = text.strip()
    end = text.find(CLOSE, len(OPEN))
    if not text.startswith(OPEN) or end < 0 or text.rfind(ANSWER) < end + len(CLOSE):
      return False
    return bool(tags.pairs(text[len(OPEN) : end], "retrieval", opening="first"))

  def quotes(self, text: str) -> list[str]:
    """What stands between retrieval tags, anywhere in the text, with single spaces; empty ones are left out.

    A closing tag ends the quote that the first open tag before it began: nothing hides behind a second opening tag.
    """
    found = (quotes.collapse(pair.body) for pair in tags.pairs(text, "retrieval", opening="first"))
    return [quote for quote in found if quote]

  def answer(self, text: str) -> str | None:
    """What stands behind "Answer:", stripped, as `which` chooses; None if it stands nowhere."""
    if self.which == "first":
      at = text.find(ANSWER)
    else:
      at = text.rfind(ANSWER, max(text.rfind(CLOSE), 0))
    return None if at < 0 else text[at + len(ANSWER) :].strip()

  def stop(self, text: str) -> str:
    """Always "eos": a reply ends by itself."""
    del text  # it ends by itself
    return "eos"

  def observed(self, said: str, text: str) -> tuple[str | None, tuple[Passage, ...] | None]:
    """Nothing is searched for here: whatever the environment says is a notice."""
    return None, None
