"""What the model is told: name the useful references, argue from them, answer."""

import dataclasses

from ragrl_jax.prompting import passages
from ragrl_jax.structs import Example

INSTRUCTIONS = {
  "paper": (
    "A user puts a question to an assistant, together with references; each of these starts with its number. "
    "The assistant replies in EXACTLY three sections and writes nothing outside them:\n"
    "<relevance>the numbers of the useful references, and of no others, in square brackets, e.g. [1,5]</relevance>\n"
    "<analysis>how the references, taken together, lead to the answer, with the number of the reference that supports "
    "each claim</analysis>\n"
    "<answer>the answer alone: a word or a short phrase, no explanation</answer>\n"
    "**User**:\n<question>{question}</question>\n<references>\n{references}\n</references>"),
  "short": (
    "Reply with <relevance>[numbers of the useful references]</relevance> <analysis>why</analysis> "
    "<answer>short answer</answer>.\n<question>{question}</question>\n<references>\n{references}\n</references>"),
  "none": "{question}\n{references}",
}


@dataclasses.dataclass(frozen=True)
class Prompt:
  """One user message. titles: show each reference's title, which the authors' prompt leaves out."""

  instructions: str = "paper"
  titles: bool = False

  def messages(self, example: Example) -> list[dict[str, str]]:
    head, rest = INSTRUCTIONS[self.instructions].split("{question}")
    middle, tail = rest.split("{references}")
    # Not str.format: questions and passages may hold braces.
    content = head + example.question + middle + passages.numbered(example.passages, titles=self.titles) + tail
    return [dict(role="user", content=content)]
