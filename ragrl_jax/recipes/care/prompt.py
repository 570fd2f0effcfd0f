"""The prompt: think, quote the context inside the thinking, answer at the end; and the parser of the replies."""

import dataclasses
import functools
import re

from ragrl_jax.core.rewards import quotes
from ragrl_jax.core.text import tags
from ragrl_jax.prompting import passages, wording
from ragrl_jax.recipes import parts
from ragrl_jax.structs import Example, Passage

INSTRUCTIONS = {
  "paper": (
    "Think first, as an inner monologue, and then give the final answer. The thinking stands between <think> and "
    "</think>. While you think, quote the texts of the prompt that carry the reasoning forward, word for word, each "
    "between <retrieval> and </retrieval>, and quote nowhere else. The final answer stands at the very end, after "
    '"Answer:".'
  ),
  "short": (
    "Reply with <think> thoughts, with <retrieval>quotes of the context</retrieval> </think> Answer: short answer"
  ),
  "none": "",
}
ASKED = {"paper": "{context}\n\nQuestion: {question}"}
OPEN, CLOSE, ANSWER = "<think>", "</think>", "Answer:"
READINGS = ("last", "first", "whole")
_QUOTE_TAG = re.compile("</?retrieval>")


class Prompt:
  """A system message and a user message with context and question.

  Args:
    instructions: a key of INSTRUCTIONS ("none" omits the system message), or file:PATH.
    system: text before the instructions: the model's default system prompt, as in the paper.
    titles: show each passage's title above its text.
    asked: the user message: a key of ASKED, or file:PATH with {context} and {question}.
  """

  def __init__(self, instructions: str = "paper", system: str = "", titles: bool = True, asked: str = "paper"):
    told = wording.resolve(instructions, INSTRUCTIONS, setting="config.switches.instructions", roles=False).text()
    self._system = " ".join(part for part in (system, told) if part)
    self._asked = wording.resolve(
      asked, ASKED, setting="config.switches.asked", needs=("context", "question"), roles=False
    )
    self._titles = titles

  def messages(self, example: Example) -> list[dict[str, str]]:
    """The chat messages that open the episode: instructions (system), context and question (user)."""
    context = "\n\n".join(self.context(example))
    if example.meta.get("prompt") is True:  # a row of the authors' data, whose text contains the question
      user = context
    else:
      user = self._asked.text(context=context, question=example.question) if context else example.question
    return [dict(role="system", content=self._system)] * bool(self._system) + [dict(role="user", content=user)]

  def context(self, example: Example) -> tuple[str, ...]:
    """The passages as they are shown. Tags in them are broken up, so a quote of a passage never contains a tag."""
    return tuple(_shown(passage, self._titles) for passage in example.passages)


@functools.lru_cache(maxsize=4096)  # the samples of a group show the same passages
def _shown(passage: Passage, titles: bool) -> str:
  head = f"{passages.neutral(passage.title)}\n" if titles and passage.title else ""
  return head + passages.neutral(passage.text)


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
    texts = (quotes.collapse(pair.body) for pair in tags.pairs(text, "retrieval", opening="first"))
    return [quote for quote in texts if quote]

  def strays(self, text: str) -> bool:
    """Whether a retrieval tag belongs to no quote: it is never closed, or it opens inside another quote."""
    return len(_QUOTE_TAG.findall(text)) != 2 * len(tags.pairs(text, "retrieval", opening="first"))

  def answer(self, text: str) -> str | None:
    """The stripped text after "Answer:", as `which` says. Without one: the whole text if `unmarked`, else None."""
    if self.which == "whole":
      return parts.spoken(text).strip() or None
    at = text.find(ANSWER) if self.which == "first" else text.rfind(ANSWER, max(text.rfind(CLOSE), 0))
    if at < 0:
      return (text.strip() or None) if self.unmarked else None
    return text[at + len(ANSWER) :].strip()
