"""What the model is told: reason about the passages, extract the evidence, answer."""

import dataclasses

from ragrl_jax.prompting import passages
from ragrl_jax.structs import Example

# What the model writes, by the kind of reply. The last but one is what a separate generator answers from.
SECTIONS = {
  "rational": ("reason", "extract", "answer"),
  "vanilla": ("extract", "answer"),
  "rationale": ("reason", "answer"),
  "direct": ("answer",),
}
_STEPS = {
  "reason": (
    "in <reason></reason>: say what the question looks for, with its key concepts, entities and relations; then go "
    "through the passages and name the sentences or phrases of each that help"
  ),
  "extract": (
    "in <extract></extract>: bring what is useful in the passages together, as one coherent and concise account"
  ),
  "answer": (
    "in <answer></answer>: give a short answer from the passages and what you have written; from your own knowledge "
    "where none of it helps"
  ),
}
INSTRUCTIONS = ("paper", "short", "none")


@dataclasses.dataclass(frozen=True)
class Prompt:
  """One user message.

  Attributes:
    instructions: one of INSTRUCTIONS; "none" shows question and passages alone.
    reply: a key of SECTIONS.
    titles: show each passage's title.
  """

  instructions: str = "paper"
  reply: str = "rational"
  titles: bool = True

  def messages(self, example: Example) -> list[dict[str, str]]:
    """The chat messages that open the episode: one user message with question and passages."""
    rest = f"Question: {example.question}\nPassages:\n{self.context(example)}"
    if self.instructions == "none":
      content = f"{example.question}\n{self.context(example)}"
    elif self.instructions == "short":
      content = " ".join(f"<{name}>…</{name}>" for name in SECTIONS[self.reply]) + f"\n{rest}"
    else:
      steps = "\n".join(
        f"{i}. {_STEPS[name][0].upper()}{_STEPS[name][1:]}." for i, name in enumerate(SECTIONS[self.reply], 1)
      )
      content = (
        "You are skilled at finding in passages what answers a question. Read the question and the passages below with "
        f"care and reply step by step, with nothing outside the tags:\n{steps}\n{rest}"
      )
    return [dict(role="user", content=content)]

  def context(self, example: Example) -> str:
    """The passages as they are shown, numbered; what looks like a tag in them is broken up."""
    return passages.numbered(example.passages, titles=self.titles)
