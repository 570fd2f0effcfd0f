"""The prompt: think, quote the context inside the thinking, answer at the end."""

import functools

from ragrl_jax.prompting import passages, wording
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


class Prompt:
  """A system message and a user message with context and question.

  Args:
    instructions: a key of INSTRUCTIONS ("none" omits the system message), or file:PATH.
    system: text before the instructions: the model's default system prompt, as in the paper.
    titles: show each passage's title above its text.
    asked: the user message: a key of ASKED, or file:PATH with {context} and {question}.
  """

  def __init__(self, instructions: str = "paper", system: str = "", titles: bool = True, asked: str = "paper"):
    told = wording.chosen(instructions, INSTRUCTIONS, setting="config.switches.instructions", roles=False).text()
    self._system = " ".join(part for part in (system, told) if part)
    self._asked = wording.chosen(
      asked, ASKED, setting="config.switches.asked", needs=("context", "question"), roles=False
    )
    self._titles = titles

  def messages(self, example: Example) -> list[dict[str, str]]:
    """The chat messages that open the episode: instructions (system), context and question (user)."""
    context = "\n\n".join(self.context(example))
    if example.meta.get("prompt"):  # a row of the authors' data, whose text contains the question
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
