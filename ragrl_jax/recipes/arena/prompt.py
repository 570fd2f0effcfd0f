"""The prompt: it shows question and passages, and says which sections to reply in. Next: parser.py.

ARENA's sections are the numbers of the useful passages, the analysis, and the answer.
"""

import dataclasses

from ragrl_jax.prompting import passages
from ragrl_jax.structs import Example

# The sections of a reply, in order: ARENA's, and its baselines'.
SECTIONS = {"cited": ("relevance", "analysis", "answer"), "thought": ("think", "answer"), "direct": ("answer",)}
INSTRUCTIONS = ("paper", "short", "none")

_COUNT = {
  1: "one section and writes nothing outside it",
  2: "EXACTLY two sections and writes nothing outside them",
  3: "EXACTLY three sections and writes nothing outside them",
}
_TOLD = dict(
  relevance="the numbers of the useful references, and of no others, in square brackets, e.g. [1,5]",
  analysis="how the references, taken together, lead to the answer, with the number of the reference that supports "
  "each claim",
  think="how the references, taken together, lead to the answer",
  answer="the answer alone: a word or a short phrase, no explanation",
)
_SHORT = dict(relevance="[numbers of the useful references]", analysis="why", think="why", answer="short answer")


@dataclasses.dataclass(frozen=True)
class Prompt:
  """One user message.

  Attributes:
    instructions: one of INSTRUCTIONS; "none" is question and references alone.
    reply: a key of SECTIONS.
    titles: show each reference's title, which the authors' prompt leaves out.
  """

  instructions: str = "paper"
  reply: str = "cited"
  titles: bool = False

  def messages(self, example: Example) -> list[dict[str, str]]:
    """The chat messages that open the episode: one user message with question and numbered references."""
    references = passages.numbered(example.passages, titles=self.titles)
    asked = f"<question>{example.question}</question>\n<references>\n{references}\n</references>"
    if self.instructions == "none":
      content = f"{example.question}\n{references}"
    elif self.instructions == "short":
      content = f"Reply with {self._sections(_SHORT, ' ')}.\n{asked}"
    else:
      content = (
        "A user puts a question to an assistant, together with references; each of these starts with its number. The "
        f"assistant replies in {_COUNT[len(SECTIONS[self.reply])]}:\n"
        f"{self._sections(_TOLD, chr(10))}\n**User**:\n{asked}"
      )
    return [dict(role="user", content=content)]

  def _sections(self, told: dict[str, str], glue: str) -> str:
    return glue.join(f"<{name}>{told[name]}</{name}>" for name in SECTIONS[self.reply])
