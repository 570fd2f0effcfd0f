"""The prompt: shows question and passages, and names the sections of the reply; and their parser. Next: reward.py."""

import dataclasses
import re

from ragrl_jax.core.text import tags
from ragrl_jax.prompting import passages, wording
from ragrl_jax.recipes import parts
from ragrl_jax.structs import Example

# The sections of a reply, in order: ARENA's, and its baselines'.
SECTIONS = {"cited": ("relevance", "analysis", "answer"), "thought": ("think", "answer"), "direct": ("answer",)}
INSTRUCTIONS = ("paper", "short", "none")  # "none": only question and references

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
_ASKED = "<question>{question}</question>\n<references>\n{references}\n</references>"


class Prompt:
  """One user message, or a file's with {question} and {references}. The arguments are switches: see recipe.py."""

  def __init__(self, instructions: str = "paper", reply: str = "cited", titles: bool = False):
    instructions_of = lambda of, glue: glue.join(f"<{name}>{of[name]}</{name}>" for name in SECTIONS[reply])
    known = {
      "none": "{question}\n{references}",
      "short": f"Reply with {instructions_of(_SHORT, ' ')}.\n{_ASKED}",
      "paper": "A user puts a question to an assistant, together with references; each of these starts with its number."
      f" The assistant replies in {_COUNT[reply]}:\n{instructions_of(_TOLD, chr(10))}\n**User**:\n{_ASKED}",
    }
    placeholders, self._titles = ("question", "references"), titles
    self._wording = wording.resolve(instructions, known, setting="config.switches.instructions", needs=placeholders)

  def messages(self, example: Example) -> list[dict[str, str]]:
    """The chat messages that open the episode: question and numbered references."""
    references = passages.numbered(example.passages, titles=self._titles)
    return self._wording.messages(question=example.question, references=references)


@dataclasses.dataclass(frozen=True)
class Parser(parts.SectionParser):
  """Reads single sections as `parts.SectionParser` does: `section`, `answer`.

  Attributes:
    shape: "strict": the text begins with the first section, has only white space after each, and no body contains one
      of their tags. "repo": as in the authors' code, which allows further lines at the end and forbids "a < b".
  """

  shape: str = "strict"

  def in_shape(self, text: str) -> bool:
    """Whether the text has every section, in order, as `shape` requires."""
    text = self.reply(text, self.sections[0])
    if self.shape == "repo":  # no "<" in a body; after the answer only the line must end, not the text
      pattern = r"\s*".join(f"<{name}>[^<]*</{name}>" for name in self.sections)
      return re.match(f"{pattern}$", text, re.MULTILINE) is not None
    sections = tags.sections(text, self.sections) if text.startswith(f"<{self.sections[0]}>") else None
    return sections is not None and tuple(part.name for part in sections) == self.sections
