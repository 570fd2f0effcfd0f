"""What the model is told: think, search, read, answer, each in its tags."""

import dataclasses

from ragrl_jax.structs import Example

INSTRUCTIONS = {
  "paper": (
    "You will be asked a question. Whenever you have read something new, the question included, reason about it first, "
    "between <think> and </think>. If a piece of knowledge is missing, ask the search engine for it: write "
    "<search> your query </search>, and the best results come back between <information> and </information>. Search "
    "as many times as it takes. As soon as nothing more is needed, give the answer, short and without explanations, "
    "between <answer> and </answer>, like this: <answer> Lisbon </answer>.\nQuestion: {question}\n"
  ),
  "short": (
    "Reason in <think> </think>, search with <search> query </search>, answer in <answer> </answer>.\n"
    "Question: {question}\n"
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
