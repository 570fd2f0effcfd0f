"""The prompt: the question, and how to answer. The tools are shown by the model's own chat template."""

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
  """One user message, or those of a file of the user's own.

  Args:
    instructions: which of INSTRUCTIONS ("none" is the bare question), or file:PATH.
  """

  def __init__(self, instructions: str = "paper"):
    setting = "config.switches.instructions"
    self._wording = wording.chosen(instructions, INSTRUCTIONS, setting=setting, needs=("question",))

  def messages(self, example: Example) -> list[dict[str, str]]:
    """The chat messages that open the episode."""
    return self._wording.messages(question=example.question.strip())
