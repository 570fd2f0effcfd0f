"""The prompt: reason about the passages, extract the evidence, answer; and the parser of the sections."""

import dataclasses

from ragrl_jax.core.text import tags
from ragrl_jax.prompting import passages, wording
from ragrl_jax.recipes import parts
from ragrl_jax.recipes.search_agent import says
from ragrl_jax.structs import Example

# The sections that the model writes, by the kind of reply.
SECTIONS = {
  "rational": ("reason", "extract", "answer"),
  "vanilla": ("extract", "answer"),
  "rationale": ("reason", "answer"),
  "direct": ("answer",),
  "reason_extract": ("reason", "extract"),
  "extract": ("extract",),
  "thoughts": (),  # free text, step by step: all of it is the evidence
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
_CLOSED_BOOK = (
  "You are a helpful assistant. Answer the question directly, from what you know yourself. Give a short answer in "
  "<answer></answer>, with nothing outside the tags.\nQuestion: {question}"
)
_THOUGHTS = "You are a helpful assistant. Read the passages, and answer the question.\n"
_TOLD = (
  "You are skilled at finding in passages what answers a question. Read the question and the passages below with care "
  "and reply step by step, with nothing outside the tags:\n"
)
_ASKED = "Question: {question}\nPassages:\n{passages}"
INSTRUCTIONS = ("paper", "short", "none")
NAMES = SECTIONS["rational"]
END, EXTRACTED = "</answer>", "</extract>"


class Prompt:
  """One user message, or the messages of a file with {question} and {passages}.

  Args:
    instructions: one of INSTRUCTIONS ("none" shows only question and passages), or file:PATH. For the reply "direct"
      the file may omit {passages}; the question is then closed book.
    reply: a key of SECTIONS.
  """

  def __init__(self, instructions: str = "paper", reply: str = "rational", titles: bool = True):
    self._titles, direct = titles, reply == "direct"
    setting = "config.switches.instructions"
    needs, may = (("question",), ("passages",)) if direct else (("question", "passages"), ())
    self._wording = wording.resolve(instructions, _known(reply), setting=setting, needs=needs, may=may)
    closed = direct and instructions in ("paper", "short")
    self._closed = wording.Wording((("user", _CLOSED_BOOK),)) if closed else self._wording

  def messages(self, example: Example) -> list[dict[str, str]]:
    """The chat messages that open the episode. A direct reply without passages has a prompt of its own."""
    words = self._wording if example.passages else self._closed
    return words.messages(question=example.question, passages=self.context(example))

  def context(self, example: Example) -> str:
    """The passages as they are shown: numbered, with the tags in them broken up."""
    return passages.numbered(example.passages, titles=self._titles)


def _known(reply: str) -> dict[str, str]:
  """The built-in wordings for this kind of reply."""
  names = SECTIONS[reply]
  steps = "\n".join(f"{i}. {_STEPS[name][0].upper()}{_STEPS[name][1:]}." for i, name in enumerate(names, 1))
  short = " ".join(f"<{name}>…</{name}>" for name in names)
  result = dict(paper=f"{_TOLD}{steps}\n{_ASKED}", short=f"{short}\n{_ASKED}", none="{question}\n{passages}")
  if not names:
    result |= dict(paper=f"{_THOUGHTS}{_ASKED}\nLet's think step by step.", short=f"{_ASKED}\nStep by step:")
  return result


@dataclasses.dataclass(frozen=True)
class Parser(parts.SectionParser):
  """Reads single sections as `parts.SectionParser` does: `section`, `answer`."""

  sections: tuple[str, ...] = NAMES
  stops: tuple[str, ...] = (END, EXTRACTED)

  @property
  def evidence(self) -> str:
    """The section that a separate generator answers from; "" for free text, all of which is evidence."""
    return "extract" if "extract" in self.sections else "reason" if "reason" in self.sections else ""

  def written(self, text: str) -> str:
    """The evidence: the body of its section, or the whole of a free text; "" if there is none."""
    return (self.section(text, self.evidence) or "") if self.evidence else self.reply(text, self.evidence).strip()

  def in_shape(self, text: str) -> bool:
    """Whether there is exactly one section of each name, in order, with only white space around them.

    No body may contain a tag of any section. Every body except the answer's must have a letter or a digit, and so must
    free text.
    """
    if not self.sections:
      return says(self.reply(text, self.evidence))
    parts = tags.sections(self.reply(text, self.evidence), NAMES) or []
    told = all(says(part.body) for part in parts if part.name != "answer")
    return told and tuple(part.name for part in parts) == self.sections

  def _pair(self, text: str, name: str) -> tags.Pair | None:
    """The first complete section of this name, anywhere in the text; an answer only outside of the other sections.

    A reason counts as missing if an extract begins before its end. The answer from the reason alone continues from all
    text up to that end, and must not see the evidence.
    """
    if name == "answer":  # a reason may speak of the tag
      read = text
      for other in tags.outer(text, NAMES[:2]):
        read = f"{read[: other.start]}{' ' * (other.end - other.start)}{read[other.end :]}"
      pair = super()._pair(read, name)
      body = slice(pair.start + len("<answer>"), pair.end - len(END)) if pair else slice(0)
      return dataclasses.replace(pair, body=text[body]) if pair else None
    pair = super()._pair(text, name)
    return None if pair and name == "reason" and "<extract>" in text[: pair.end] else pair
