"""The prompt of each method: how to reason, how to get documents, where to put the answer."""

from ragrl_jax.prompting import wording
from ragrl_jax.structs import Example

_ANSWER = "Give the answer, a word or a short phrase without explanations, between <answer> and </answer>."
_SHOWN = "Documents that a search has found come between <information> and </information>; they may be of no use."
# method → the text before the question; "{answer}" and "{shown}" are the lines above
_TOLD = {
  "closed_book": "Answer the question. {answer}",
  "cot": "Answer the question. Let's think step by step: first reason between <think> and </think>. {answer}",
  "rag": "Answer the question with the help of documents. {shown} {answer}",
  "ircot": (
    "Answer the question by reasoning in steps. {shown} Write one sentence of reasoning at a time, between <thought> "
    "and </thought>; new documents are then searched for with it. As soon as the answer is certain, stop reasoning. "
    "{answer}"
  ),
  "iter_retgen": (
    "Answer the question with the help of documents. {shown} Whenever documents have come, reason about them between "
    "<think> and </think>, and answer as well as you can: better documents are then searched for with what you wrote. "
    "{answer}"
  ),
  "self_ask": (
    "Answer the question. If another, simpler question has to be answered first, ask it between <question> and "
    "</question>. {shown} Answer it for yourself, and ask the next one in the same way, as long as one is needed. "
    "{answer}"
  ),
  "skr": (
    "Answer the question. First say whether you need additional information for that, by <need> yes </need> or "
    "<need> no </need>. If you do, it is searched for. {shown} {answer}"
  ),
}
_SHORT = {
  "closed_book": "<answer> short answer </answer>",
  "rag": "<answer> short answer </answer>",
  "cot": "<think> thoughts </think><answer> short answer </answer>",
  "ircot": "<thought> one sentence </thought>, several times, then <answer> short answer </answer>",
  "iter_retgen": "<think> thoughts </think><answer> short answer </answer>",
  "self_ask": "<question> simpler question </question>, several times, then <answer> short answer </answer>",
  "skr": "<need> yes or no </need><answer> short answer </answer>",
}
METHODS = tuple(_TOLD)
INSTRUCTIONS = ("paper", "short", "none")


class Prompt:
  """One user message, or those of a file with {question}.

  Args:
    method: one of METHODS.
    instructions: one of INSTRUCTIONS ("none" is the bare question), or file:PATH.
  """

  def __init__(self, method: str = "rag", instructions: str = "paper"):
    told = _TOLD[method].replace("{answer}", _ANSWER).replace("{shown}", _SHOWN)
    known = {
      "paper": f"{told}\nQuestion: {{question}}\n",
      "short": f"Reply with {_SHORT[method]}\nQuestion: {{question}}\n",
      "none": "{question}",
    }
    setting = "config.switches.instructions"
    self._wording = wording.chosen(instructions, known, setting=setting, needs=("question",))

  def messages(self, example: Example) -> list[dict[str, str]]:
    """The chat messages that open the episode."""
    return self._wording.messages(question=example.question.strip())
