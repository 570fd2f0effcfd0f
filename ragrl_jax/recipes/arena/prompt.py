"""The prompt: it shows question and passages, and says which sections to reply in. Next: parser.py."""

import dataclasses

from ragrl_jax.prompting import passages
from ragrl_jax.structs import Example

# The sections of a reply, in order: ARENA's, and its baselines'.
SECTIONS = {"cited": ("relevance", "analysis", "answer"), "thought": ("think", "answer"), "direct": ("answer",)}
INSTRUCTIONS = ("paper", "short", "none")  # "none" is question and references alone

_COUNT = {
  "cited": "EXACTLY three sections and writes nothing outside them",
  "thought": "EXACTLY two sections and writes nothing outside them",
  "direct": "one section and writes nothing outside it",
}
_THOUGHT = "how the references, taken together, lead to the answer"
_TOLD = dict(
  relevance="the numbers of the useful references, and of no others, in square brackets, e.g. [1,5]",
  analysis=f"{_THOUGHT}, with the number of the reference that supports each claim",
  think=_THOUGHT,
  answer="the answer alone: a word or a short phrase, no explanation",
)
_SHORT = dict(relevance="[numbers of the useful references]", analysis="why", think="why", answer="short answer")


@dataclasses.dataclass(frozen=True)
class Prompt:
  """One user message. The attributes are switches: see recipe.py."""

  instructions: str = "paper"
  reply: str = "cited"
  titles: bool = False

  def messages(self, example: Example) -> list[dict[str, str]]:
    """The chat messages that open the episode: one user message with question and numbered references."""
    references = passages.numbered(example.passages, titles=self.titles)
    asked = f"<question>{example.question}</question>\n<references>\n{references}\n</references>"
    told = lambda of, glue: glue.join(f"<{name}>{of[name]}</{name}>" for name in SECTIONS[self.reply])
    content = {
      "none": f"{example.question}\n{references}",
      "short": f"Reply with {told(_SHORT, ' ')}.\n{asked}",
      "paper": "A user puts a question to an assistant, together with references; each of these starts with its number."
      f" The assistant replies in {_COUNT[self.reply]}:\n{told(_TOLD, chr(10))}\n**User**:\n{asked}",
    }
    return [dict(role="user", content=content[self.instructions])]
