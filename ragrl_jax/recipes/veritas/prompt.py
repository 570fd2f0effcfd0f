"""What the model is told: reason about all that is new, search for what is missing, then answer, each in its tags."""

import dataclasses

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


@dataclasses.dataclass(frozen=True)
class Prompt:
  """One user message. instructions: which of INSTRUCTIONS; "none" is the bare question, for models taught by SFT."""

  instructions: str = "paper"

  def messages(self, example: Example) -> list[dict[str, str]]:
    """The chat messages that open the episode: one user message."""
    question = example.question.strip()
    if not question.endswith("?"):
      question += "?"
    # Not str.format: a question may hold braces.
    return [dict(role="user", content=INSTRUCTIONS[self.instructions].replace("{question}", question))]
