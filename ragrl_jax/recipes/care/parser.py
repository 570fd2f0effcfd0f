"""Model text → thinking, quotes, answer. Written against `prompt.py`."""

import dataclasses
import re

from ragrl_jax.core.rewards import quotes
from ragrl_jax.core.text import tags
from ragrl_jax.recipes import parts

OPEN, CLOSE, ANSWER = "<think>", "</think>", "Answer:"
READINGS = ("last", "first", "whole")
_QUOTE_TAG = re.compile("</?retrieval>")


@dataclasses.dataclass(frozen=True)
class Parser(parts.Parser):
  """
  Attributes:
    which: "last": the answer follows the last "Answer:" after the thinking. "first": it follows the first "Answer:"
      anywhere, as in the authors' code; if that is inside the thinking, the answer includes the rest of the thinking.
      "whole": it is the whole text, for models whose prompt does not mention "Answer:".
    unmarked: a text without "Answer:" is an answer as a whole, as in the authors' tests.
    quoting: the format requires a quote.
  """

  which: str = "last"
  unmarked: bool = False
  quoting: bool = True

  def in_shape(self, text: str) -> bool:
    """Whether the text begins with `<think>`, quotes in that first block, and has "Answer:" after a `</think>`.

    Without `quoting` no quote is required, as in DeepSeek-R1's format reward.

    Source: the authors' code; the quote and the answer may be empty.
    """
    text = text.strip()
    end = text.find(CLOSE, len(OPEN))
    if not text.startswith(OPEN) or end < 0 or text.rfind(ANSWER) < end + len(CLOSE):
      return False
    return not self.quoting or bool(tags.pairs(text[len(OPEN) : end], "retrieval", opening="first"))

  def thinking(self, text: str) -> str:
    """The body of the block of thinking at the beginning of the text; "" if there is none."""
    text = text.strip()
    end = text.find(CLOSE, len(OPEN))
    return text[len(OPEN) : end] if text.startswith(OPEN) and end >= 0 else ""

  def quotes(self, text: str) -> list[str]:
    """The non-empty texts between retrieval tags, anywhere in the reply, with single spaces.

    A quote begins at the first opening tag that is not closed yet. A second opening tag is therefore part of the quote.
    """
    found = (quotes.collapse(pair.body) for pair in tags.pairs(text, "retrieval", opening="first"))
    return [quote for quote in found if quote]

  def strays(self, text: str) -> bool:
    """Whether a retrieval tag belongs to no quote: it is never closed, or it opens inside another quote."""
    return len(_QUOTE_TAG.findall(text)) != 2 * len(tags.pairs(text, "retrieval", opening="first"))

  def answer(self, text: str) -> str | None:
    """The stripped text after "Answer:", as `which` says. Without one: the whole text if `unmarked`, else None."""
    if self.which == "whole":
      return text.strip() or None
    if self.which == "first":
      at = text.find(ANSWER)
    else:
      at = text.rfind(ANSWER, max(text.rfind(CLOSE), 0))
    if at < 0:
      return (text.strip() or None) if self.unmarked else None
    return text[at + len(ANSWER) :].strip()
