"""The contract of every judge: pairs (premise, claim) → verdicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ragrl_jax.structs import ToolFailed

Pair = tuple[str, str]
Verdicts = list[float | None]


@dataclasses.dataclass(frozen=True)
class Pace:
  """How a judge wants to be asked.

  Attributes:
    batch: pairs of one call.
    workers: calls at the same time.
    deadline_s: when a call that has not come back is given up; above the judge's own deadline, whose message says more.
  """

  batch: int = 512
  workers: int = 1
  deadline_s: float = 60.0


class Judge(Protocol):
  """Says whether a premise holds up a claim. `judge` may be called from several threads at once."""

  pace: Pace

  def judge(self, pairs: Sequence[Pair]) -> Verdicts:
    """One verdict in [0, 1] a pair, in order; None where the judge's answer cannot be read: unscorable, never 0.

    What premise and claim are is the prompt's matter (`prompts.py`): retrieved text and the reasoning after it, a
    thought and the query after it, or right answers (`references`) and the answer that was given. A blank claim is 0.

    Raises:
      ValueError: `pairs` is no sequence of pairs of strings.
      JudgeFailed: no answer for some of them within retries and deadline.
    """

  def describe(self) -> Mapping[str, Any]:
    """What decides on its verdicts (JSON): the key under which they are kept, and what stands beside a score."""


class JudgeFailed(ToolFailed):
  """A judge gave no answer for `queries` (pairs); `answered` holds the verdicts of the others."""

  def __init__(self, message: str, queries: Sequence[Pair] = (), answered: Mapping[Pair, float | None] | None = None):
    super().__init__(message)
    self.queries, self.answered = tuple(queries), dict(answered or {})


def each(pairs: Sequence[Pair], ask: Callable[[list[Pair]], Verdicts]) -> Verdicts:
  """Checks, gives blank claims a 0, and the others what one call of `ask` says; a pair that comes twice is asked once.

  Raises:
    ValueError: see `Judge.judge`.
  """
  pairs = checked(pairs)
  asked = list(dict.fromkeys(pair for pair in pairs if pair[1].strip()))
  verdicts = dict(zip(asked, ask(asked), strict=True)) if asked else {}
  return [verdicts.get(pair, 0.0) for pair in pairs]


def checked(pairs: Sequence[Pair]) -> list[Pair]:
  """The pairs as tuples.

  Raises:
    ValueError: one of them is no pair of strings.
  """
  if isinstance(pairs, str):
    raise ValueError(f"pairs={pairs[:80]!r} is one string: hand in a list of pairs (premise, claim).")
  found = []
  for i, pair in enumerate(pairs):
    if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
      raise ValueError(f"pair {i} is {pair!r:.120}: every pair must be two strings, (premise, claim).")
    found.append(tuple(pair))
  return found


def references(golds: Sequence[str]) -> str:
  """The premise of a judgement about an answer: the right answers, one a line."""
  return "\n".join(" ".join(gold.split()) for gold in golds)


def golds(premise: str) -> list[str]:
  """`references`, read back."""
  return [line for line in premise.split("\n") if line]


def graded(score: float, threshold: float) -> float:
  """1 or 0, whether the score reaches the threshold; the score itself where the threshold is 0."""
  return float(score >= threshold) if threshold else float(score)


def in_range(threshold: float) -> float:
  """The threshold.

  Raises:
    ValueError: it is not between 0 and 1.
  """
  if not 0.0 <= threshold <= 1.0:
    raise ValueError(f"threshold={threshold!r}: it must be 0 (the score itself) to 1 (config.judge.threshold).")
  return float(threshold)
