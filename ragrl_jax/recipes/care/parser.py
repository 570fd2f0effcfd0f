"""Model text → thinking, quotes, answer. Written against `prompt.py`."""

import dataclasses
import re

from ragrl_jax.core.rewards import quotes
from ragrl_jax.core.text import tags
from ragrl_jax.structs import Passage

OPEN, CLOSE, ANSWER = "<think>", "</think>", "Answer:"
READINGS = ("last", "first", "whole")
_QUOTE_TAG = re.compile("</?retrieval>")


@dataclasses.dataclass(frozen=True)
class Parser:
  """
  Attributes:
    which: "last": the answer is what follows the last "Answer:" behind the thinking. "first": what follows the first
      one anywhere, as the authors' code reads it: one inside the thinking takes the rest of the thinking along.
      "whole": the whole text, for models that were told of no "Answer:".
    unmarked: a text without an "Answer:" is the answer as a whole, as in the authors' tests.
    quoting: the shape needs a quote.
  """

  which: str = "last"
  unmarked: bool = False
  quoting: bool = True

  def in_shape(self, text: str) -> bool:
    """`<think>` first of all, an "Answer:" after a `</think>`, and a complete quote in the first block of thinking.

    Without `quoting` the block of thinking needs none: DeepSeek-R1's format reward.

    Source: the authors' code; the quote and the answer may be empty.
    """
    text = text.strip()
    end = text.find(CLOSE, len(OPEN))
    if not text.startswith(OPEN) or end < 0 or text.rfind(ANSWER) < end + len(CLOSE):
      return False
    return not self.quoting or bool(tags.pairs(text[len(OPEN) : end], "retrieval", opening="first"))

  def thinking(self, text: str) -> str:
    """What stands in the block of thinking that begins the text; "" if none does."""
    text = text.strip()
    end = text.find(CLOSE, len(OPEN))
    return text[len(OPEN) : end] if text.startswith(OPEN) and end >= 0 else ""

  def quotes(self, text: str) -> list[str]:
    """The texts between retrieval tags, anywhere in the reply, with single spaces; without empty ones.

    A closing tag ends the quote that began at the first open tag before it, so a second opening tag hides nothing.
    """
    found = (quotes.collapse(pair.body) for pair in tags.pairs(text, "retrieval", opening="first"))
    return [quote for quote in found if quote]

  def strays(self, text: str) -> bool:
    """Whether a retrieval tag belongs to no quote: an unclosed one, or one that opens inside another."""
    return len(_QUOTE_TAG.findall(text)) != 2 * len(tags.pairs(text, "retrieval", opening="first"))

  def answer(self, text: str) -> str | None:
    """What stands behind "Answer:", stripped, as `which` chooses; None if it stands nowhere and is not `unmarked`."""
    if self.which == "whole":
      return text.strip() or None
    if self.which == "first":
      at = text.find(ANSWER)
    else:
      at = text.rfind(ANSWER, max(text.rfind(CLOSE), 0))
    if at < 0:
      return (text.strip() or None) if self.unmarked else None
    return text[at + len(ANSWER) :].strip()

  def stop(self, text: str) -> str:
    """Always "eos", because a reply ends by itself."""
    del text  # it ends by itself
    return "eos"

  def observed(self, said: str, text: str) -> tuple[str | None, tuple[Passage, ...] | None]:
    """The recipe never searches, so all text of the environment is a notice."""
    return None, None
