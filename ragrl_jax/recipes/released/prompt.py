"""The prompt: think, search and answer in an agent's own tags, in our words or those of the user's file."""

from ragrl_jax.prompting import wording
from ragrl_jax.recipes.parts import asked
from ragrl_jax.recipes.released.tags import AGENTS, AgentTags
from ragrl_jax.structs import Example

INSTRUCTIONS = ("paper", "short", "none")
_ANSWERS = {
  "tags": "the answer, short and without explanations, between <answer> and </answer>",
  "boxed": "the answer between <answer> and </answer>, and in it, as \\boxed{}, the short answer alone",
  "box": "the short answer, and nothing else, in \\boxed{}",
}


class Prompt:
  """One user message, or the messages of a file with {question}.

  Args:
    agent: a name in `tags.AGENTS`.
    instructions: one of INSTRUCTIONS ("none" shows only the question), or file:PATH.
  """

  def __init__(self, agent: str = "search_r1", instructions: str = "paper"):
    tags = AGENTS[agent]
    self._asks = tags.asks
    known = {"paper": _told(agent, tags), "short": _short(tags), "none": "{question}"}
    setting = "config.switches.instructions"
    self._wording = wording.chosen(instructions, known, setting=setting, needs=("question",))

  def messages(self, example: Example) -> list[dict[str, str]]:
    """The chat messages that open the episode."""
    return self._wording.messages(question=asked(example.question) if self._asks else example.question.strip())


def _told(agent: str, tags: AgentTags) -> str:
  thinks = "" if tags.answered == "box" else "Reason first, between <think> and </think>. "
  refines = (
    "After every search, write down between <refine> and </refine> what matters in the documents. "
    if agent == "autorefine"
    else ""
  )
  return (
    f"Answer the question below, step by step. {thinks}Whenever a piece of knowledge is missing, search for it: write "
    f"{tags.query[0]} your query {tags.query[1]}, and results come between {tags.results[0]} and {tags.results[1]}. "
    f"Search as many times as it takes. {refines}As soon as nothing is missing, give {_ANSWERS[tags.answered]}.\n"
    "Question: {question}\n"
  )


def _short(tags: AgentTags) -> str:
  return f"Search in {tags.query[0]} {tags.query[1]}; give {_ANSWERS[tags.answered]}.\nQuestion: {{question}}\n"
