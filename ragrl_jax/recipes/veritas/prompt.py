"""The prompt: reason about new information, search for what is missing, then answer, each in its tags."""

from ragrl_jax.prompting import wording
from ragrl_jax.prompting.agent_tags import asked
from ragrl_jax.structs import Example

INSTRUCTIONS = {
  "paper": (
    "Answer the question below. Reason between <think> and </think> first, and again every time new information has "
    "come in. If you find that you lack knowledge, call a search engine with <search> your query </search>; its best "
    "results come back between <information> and </information>. You may search as often as you like. Once no more "
    "knowledge is needed, put the answer between <answer> and </answer>, without any detail around it. For example, "
    "<answer> Lisbon </answer>. Question: {question}\n"
  ),
  "short": (
    "Reason in <think> </think> about everything new, search with <search> query </search>, answer in "
    "<answer> </answer>.\nQuestion: {question}\n"
  ),
  "none": "{question}",
}


class Prompt:
  """One user message, or the messages of the user's file.

  Args:
    instructions: a key of INSTRUCTIONS ("none" shows only the question, for models that learn by SFT), or file:PATH.
  """

  def __init__(self, instructions: str = "paper"):
    setting = "config.switches.instructions"
    self._wording = wording.chosen(instructions, INSTRUCTIONS, setting=setting, needs=("question",))

  def messages(self, example: Example) -> list[dict[str, str]]:
    """The chat messages that open the episode."""
    return self._wording.messages(question=asked(example.question))
