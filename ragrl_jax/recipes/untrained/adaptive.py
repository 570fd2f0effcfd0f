"""Adaptive-RAG: answers a question without documents, with one search or with several, depending on its complexity."""

import re
from collections.abc import Awaitable, Callable, Mapping

from ragrl_jax.core.text import tags
from ragrl_jax.recipes.untrained import asides
from ragrl_jax.recipes.untrained.prompt import Prompt
from ragrl_jax.structs import Episode, Example, Policy, ToolFailed, Tools

ROUTES = {"A": "closed_book", "B": "rag", "C": "ircot"}  # label of the paper's classifier → method
NEED = "</need>"
_CLAIMS = (
  "General knowledge is enough to answer the question; no document is needed.",
  "One search for documents is enough to answer the question.",
)


def labelled(text: str) -> str:
  """The label in a text: the text itself, or the last capital A, B or C that is a word; B without one."""
  if (whole := text.strip().upper()) in ROUTES:
    return whole
  return next(iter(re.findall(r"\b[ABC]\b", text)[::-1]), "B")


def build(
  prompt: Prompt, routes: Mapping[str, Callable[[Example, Policy, Tools], Awaitable[Episode]]], *, classifier: str
):
  """The coroutine. The fact `complexity` is A, B or C; a reply without a label counts as B.

  Args:
    prompt: asks the model for the label.
    routes: label → the coroutine that answers.
    classifier: "model": the policy gives the label; "judge": the judge is asked about two claims on the question. A
      question without its verdict fails, since no label is known.

  Source: Adaptive-RAG (arXiv 2403.14403) sec. 3.2. Its classifier is a T5 model that was trained for it.
  """

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    before = []
    if classifier == "judge":
      question = f"Question: {example.question.strip()}"
      alone, once = await tools.judge([(question, claim) for claim in _CLAIMS], "complexity")
      if alone is None or (once is None and alone < 0.5):
        raise ToolFailed("the judge gave no verdict on the complexity of the question")
      label = "A" if alone >= 0.5 else "B" if once and once >= 0.5 else "C"
    else:
      talk = policy.start(prompt.messages(example))
      said = await talk.generate(stop=(NEED,))
      before.append(talk.end())
      found = tags.last(said.text, "need")
      label = labelled(found.body if found else "")
    answered = await routes[label](example, policy, tools)
    return asides.joined(*before, answered, ended=answered.ended, complexity=label)

  return play
