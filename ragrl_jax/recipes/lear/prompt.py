"""The prompt: reason about the passages, extract the evidence, answer."""

from ragrl_jax.prompting import passages, wording
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


class Prompt:
  """One user message, or the messages of a file with {question} and {passages}.

  Args:
    instructions: one of INSTRUCTIONS ("none" shows only question and passages), or file:PATH. For the reply "direct"
      the file may omit {passages}; the question is then closed book.
    reply: a key of SECTIONS.
    titles: show each passage's title.
  """

  def __init__(self, instructions: str = "paper", reply: str = "rational", titles: bool = True):
    self._titles = titles
    needs, direct = ("question", "passages"), reply == "direct"
    self._wording = wording.chosen(
      instructions,
      _known(reply),
      setting="config.switches.instructions",
      needs=needs[:1] if direct else needs,
      may=needs[1:] if direct else (),
    )
    closed = wording.chosen("paper", {"paper": _CLOSED_BOOK}, setting="config.switches.instructions")
    self._closed = closed if direct and instructions in ("paper", "short") else self._wording

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
  found = dict(paper=f"{_TOLD}{steps}\n{_ASKED}", short=f"{short}\n{_ASKED}", none="{question}\n{passages}")
  if not names:
    found |= dict(paper=f"{_THOUGHTS}{_ASKED}\nLet's think step by step.", short=f"{_ASKED}\nStep by step:")
  return found
