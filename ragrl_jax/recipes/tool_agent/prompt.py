"""The prompt: the question, and how to answer it. The model's own chat template shows the tools."""

from ragrl_jax.prompting import wording
from ragrl_jax.structs import Example

INSTRUCTIONS = {
  "paper": (
    "Answer the question below. Whatever you do not know for certain, look up or work out with the tools that you "
    "have, as often as it takes; several calls may stand in one turn. As soon as nothing more is needed, call no tool "
    "and give the answer, short and without explanations, between <answer> and </answer>, like this: "
    "<answer> Lisbon </answer>.\nQuestion: {question}"
  ),
  "short": "Use your tools, then answer in <answer> </answer>.\nQuestion: {question}",
  "none": "{question}",
}


class Prompt:
  """One user message, or the messages of the user's own file.

  Args:
    instructions: a key of INSTRUCTIONS ("none" is the question alone), or file:PATH.

  Raises:
    ValueError: there is no such key, or the file is missing or has wrong placeholders.
  """

  def __init__(self, instructions: str = "paper"):
    setting = "config.switches.instructions"
    self._wording = wording.chosen(instructions, INSTRUCTIONS, setting=setting, needs=("question",))

  def messages(self, example: Example) -> list[dict[str, str]]:
    """The chat messages with which the episode begins."""
    return self._wording.messages(question=example.question.strip())
