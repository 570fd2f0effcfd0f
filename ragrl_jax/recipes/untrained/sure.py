"""SuRe: two candidate answers, a summary of the documents for each, and a comparison of the summaries."""

import asyncio
import re

from ragrl_jax.core.text import tags
from ragrl_jax.prompting import passages
from ragrl_jax.recipes.untrained import asides
from ragrl_jax.recipes.untrained.prompt import Prompt
from ragrl_jax.structs import Episode, Example, Policy, Tools

CANDIDATES = 2
_SUMMARISE = (
  "Documents:\n{documents}\nWrite a short passage, from these documents alone, that supports the following answer to "
  "the question as well as they allow.\nQuestion: {question}\nAnswer: {answer}\nPassage:"
)
_VALID = (
  "Question: {question}\nAnswer: {answer}\nPassage: {summary}\n"
  "Does the passage support this answer to the question? Say True or False."
)
_COMPARE = (
  "Passage 1: {first}\nPassage 2: {second}\nQuestion: {question}\n"
  "Which of the two passages tells more that answers the question? Say Passage 1 or Passage 2."
)
_CHOICE = re.compile(r"passage\s*([12])", re.IGNORECASE)
_TRUTH = re.compile(r"\b(true|false)\b", re.IGNORECASE)


def build(prompt: Prompt, *, search: bool, max_passage_tokens: int | None):
  """The coroutine. The fact `answer` is one of the facts `candidates`, whose `points` are a fact, too.

  A candidate gets 1 point if its summary is judged valid. Against each other candidate it gets 1 point if its summary
  is preferred, and 0.5 if the two orders contradict each other or both replies name neither. The first of equal
  candidates wins.

  Source: SuRe (arXiv 2404.13081) sec. 3, with its two candidates.
  """

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    question = example.question.strip()
    first, found = await asides.ask_about_documents(
      prompt, example, policy, tools, stop=(), search=search, max_passage_tokens=max_passage_tokens
    )
    bodies = (pair.body.strip() for pair in tags.pairs(asides.spoken(first), "answer"))
    candidates = list(dict.fromkeys(body for body in bodies if body))[:CANDIDATES]
    if len(candidates) < CANDIDATES:  # nothing to choose from
      chosen = candidates[0] if candidates else None
      return asides.joined(first, ended="answer" if chosen else first.ended, answer=chosen, candidates=candidates)
    shown = passages.numbered(found, titles=True)
    told = [_SUMMARISE.format(documents=shown, question=question, answer=one) for one in candidates]
    written = await asyncio.gather(*(asides.ask(policy, text) for text in told))
    summaries = [passages.neutral(asides.spoken(one).strip()) for one in written]
    valid = [
      _VALID.format(question=question, answer=one, summary=text)
      for one, text in zip(candidates, summaries, strict=True)
    ]
    orders = [
      _COMPARE.format(first=one, second=other, question=question) for one, other in (summaries, summaries[::-1])
    ]
    verdicts = await asyncio.gather(*(asides.ask(policy, text) for text in (*valid, *orders)))
    said = [asides.spoken(verdict) for verdict in verdicts]
    points = [float((match := _TRUTH.search(text)) is not None and match[1].lower() == "true") for text in said[:2]]
    preferred = sum(_preferred(text) * sign for text, sign in zip(said[2:], (1, -1)))  # above 0: the first candidate
    points = [
      point + (0.5 if not preferred else float(wins)) for point, wins in zip(points, (preferred > 0, preferred < 0))
    ]
    best = candidates[max(range(CANDIDATES), key=lambda one: points[one])]
    return asides.joined(first, *written, *verdicts, ended="answer", answer=best, candidates=candidates, points=points)

  return play


def _preferred(text: str) -> int:
  """1 if the reply prefers passage 1, -1 for passage 2, 0 if it names neither."""
  choice = _CHOICE.search(text)
  return 0 if choice is None else 1 if choice[1] == "1" else -1
