"""Finds steps that a verdict or Sub-EM rewards although they are not faithful: see "Unearned reward" in README.md.

With the switch `guarded` they earn nothing. Their shares are always logged.
"""

from collections.abc import Sequence

from ragrl_jax.core.rewards import faithful
from ragrl_jax.core.rewards.faithful import Pair
from ragrl_jax.core.text.normalize import normalize
from ragrl_jax.judging import lexical
from ragrl_jax.recipes.steps import Steps

OF_INFORMATION = ("copied", "unrelated")
OF_ANSWER = ("inside_word", "echoed", "copied")


def of_information(pair: Pair) -> str:
  """The trick of a (results, thought) pair; "" without one.

  "copied": the thought is a run of words from the results. "unrelated": it shares no content word with the results, for
  example if it addresses the judge.
  """
  results, thought = pair
  if results is None or thought is None:
    return ""
  if faithful.copied(results, thought):
    return "copied"
  return "" if lexical.overlap(results, thought) else "unrelated"


def of_answer(pair: Pair, results: Sequence[str]) -> str:
  """The trick of a (thought, answer) pair; "" without one.

  "inside_word": the thought contains the answer's letters, but not as words. "echoed": the thought consists of the
  answer. "copied": the thought is a run of words from some results.
  """
  thought, answer = pair
  if not faithful.states(thought, answer):
    return ""
  if not faithful.states(thought, answer, words=True):
    return "inside_word"
  if normalize(thought or "", "squad") == normalize(answer or "", "squad"):
    return "echoed"
  return "copied" if any(faithful.copied(block, thought) for block in results) else ""


def found(steps: Steps) -> dict[str, tuple[str, ...]]:
  """Term → the trick of each of its pairs, in order."""
  results = [block for block, _ in steps.information_think if block is not None]
  return dict(
    information_think=tuple(map(of_information, steps.information_think)),
    think_answer=tuple(of_answer(pair, results) for pair in steps.think_answer),
  )


def refused(pairs: Sequence[Pair], verdicts: Sequence[float | None] | None, tricks: Sequence[str]):
  """The verdicts of the complete pairs, with 0 for each pair with a trick, even if its verdict is missing."""
  if verdicts is None:
    return None
  asked = [trick for trick, pair in zip(tricks, pairs, strict=True) if None not in pair]
  return [0.0 if trick else verdict for trick, verdict in zip(asked, verdicts, strict=True)]
