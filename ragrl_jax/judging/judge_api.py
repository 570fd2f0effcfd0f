"""The interface of every judge, pairs (premise, claim) → verdicts; and a judge whose verdicts are stored on disk."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ragrl_jax.store import disk_cache
from ragrl_jax.structs import ToolFailed

Pair = tuple[str, str]
Verdicts = list[float | None]


@dataclasses.dataclass(frozen=True)
class Pace:
  """Limits for the calls of a judge.

  Attributes:
    batch: most pairs in one call.
    workers: most calls at the same time.
    deadline_s: seconds after which a call is given up. It exceeds the judge's own deadline, whose error says more.
  """

  batch: int = 512
  workers: int = 1
  deadline_s: float = 60.0


class Judge(Protocol):
  """Judges whether a premise supports a claim. Several threads may call `judge` at the same time."""

  pace: Pace

  def judge(self, pairs: Sequence[Pair]) -> Verdicts:
    """One verdict in [0, 1] per pair, in order; None (unscorable, never 0) if the judge's answer cannot be read.

    The prompt defines the meaning of premise and claim (`prompts.py`): retrieved text and the reasoning after it, a
    thought and the query after it, or right answers (`references`) and the given answer. A blank claim gets 0.

    Raises:
      ValueError: `pairs` is not a sequence of pairs of strings.
      JudgeFailed: some pairs got no answer within retries and deadline.
    """

  def describe(self) -> Mapping[str, Any]:
    """Everything that its verdicts depend on (JSON). It is part of the cache's key and stored with scores."""


class JudgeFailed(ToolFailed):
  """A judge did not answer `queries` (pairs); `answered` holds the verdicts of the other pairs.

  Attributes:
    down: no verdict came from the judge. Verdicts that need no judge may be in `answered`.
  """

  def __init__(self, message: str, queries: Sequence[Pair] = (), answered: Mapping[Pair, float | None] | None = None):
    super().__init__(message)
    self.queries, self.answered = tuple(queries), dict(answered or {})
    self.down = not self.answered


class OfPairs(Judge):
  """A judge whose subclass has `_verdicts`: it gets the distinct pairs that `each` asks about."""

  pace: Pace = Pace()

  def judge(self, pairs: Sequence[Pair]) -> Verdicts:
    return each(pairs, self._verdicts)

  def _verdicts(self, pairs: list[Pair]) -> Verdicts:
    raise NotImplementedError


def each(pairs: Sequence[Pair], ask: Callable[[list[Pair]], Verdicts]) -> Verdicts:
  """Checks the pairs, gives blank claims 0, and gets all other verdicts by one call of `ask`, equal pairs once.

  Raises:
    ValueError: see `Judge.judge`.
  """
  pairs = checked(pairs)
  unique = list(dict.fromkeys(pair for pair in pairs if pair[1].strip()))
  verdicts = dict(zip(unique, ask(unique), strict=True)) if unique else {}
  return [verdicts.get(pair, 0.0) for pair in pairs]


def checked(pairs: Sequence[Pair]) -> list[Pair]:
  """The pairs as tuples.

  Raises:
    ValueError: one of them is not a pair of strings.
  """
  if isinstance(pairs, str):
    raise ValueError(f"pairs={pairs[:80]!r} is one string: pass a list of pairs (premise, claim).")
  result = []
  for i, pair in enumerate(pairs):
    if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
      raise ValueError(f"pair {i} is {pair!r:.120}: every pair must be two strings, (premise, claim).")
    result.append(tuple(pair))
  return result


def references(golds: Sequence[str]) -> str:
  """The premise for judging an answer: the right answers, one per line."""
  return "\n".join(" ".join(gold.split()) for gold in golds)


def golds(premise: str) -> list[str]:
  """The right answers of a premise made by `references`."""
  return [line for line in premise.split("\n") if line]


def graded(score: float, threshold: float) -> float:
  """1 if the score reaches the threshold, else 0; the score itself if the threshold is 0."""
  return float(score >= threshold) if threshold else float(score)


def verdicts(
  judge: Judge,
  pairs: Sequence[tuple[str, str]],
  *,
  at_once: int = 256,
  progress: Callable[[int], Any] = lambda done: None,
) -> list[float | None]:
  """The judge's verdicts on (premise, claim) pairs, in batches of `at_once`; None without an answer.

  With a cache the verdicts of each batch are stored, so a kill loses at most one batch. Pairs without an answer are
  asked once more at the end. `progress`: called after each batch with the number of finished pairs.

  Raises:
    JudgeFailed: the judge is down: it gave no answer on a whole batch, or on any pair so far.
  """
  result: list[float | None] = []
  unanswered: list[int] = []
  for start in range(0, len(pairs), at_once):
    part = pairs[start : start + at_once]
    try:
      result += judge.judge(part)
    except JudgeFailed as error:
      if error.down and (len(part) == at_once or not start):
        raise
      result += _answered(error, part)
      unanswered += [number for number in range(start, len(result)) if result[number] is None]
    progress(len(result))
  for start in range(0, len(unanswered), at_once):
    numbers = unanswered[start : start + at_once]
    part = [pairs[number] for number in numbers]
    try:
      again = judge.judge(part)
    except JudgeFailed as error:
      again = _answered(error, part)
    for number, verdict in zip(numbers, again, strict=True):
      result[number] = verdict
  return result


def _answered(error: JudgeFailed, part: Sequence[tuple[str, str]]) -> list[float | None]:
  """The verdicts that were given despite a failure; None for the other pairs."""
  return each(part, lambda asked: [error.answered.get(pair) for pair in asked])


class Cached(OfPairs):
  """A judge with its verdicts in a file (`store.disk_cache`), by its description and the pair. None is not stored.

  Args:
    judge: judges the pairs that are not in the file.
    path: the file; it is created if needed. Several runs may share it.
    **how: what else decides the judge's verdicts, such as the dtype in which it is computed.

  Raises:
    ValueError: `path` cannot be written, or is a database of another kind.
  """

  def __init__(self, judge: Judge, path: str | os.PathLike, **how: str):
    self._judge, self.pace, self._identity = judge, judge.pace, {**judge.describe(), **how}
    self._cache = disk_cache.Cache(path, "config.judge.cache")

  def describe(self) -> Mapping[str, Any]:
    return self._judge.describe()

  def _verdicts(self, pairs: list[Pair]) -> Verdicts:
    keys = {pair: disk_cache.key(self._identity, *pair) for pair in pairs}
    stored = self._cache.get(keys.values())
    if new := [pair for pair in pairs if keys[pair] not in stored]:
      try:
        verdicts = dict(zip(new, self._judge.judge(new), strict=True))
      except JudgeFailed as error:  # keep the verdicts that were given
        stored |= self._keep(keys, error.answered)
        error.answered |= {pair: stored[key] for pair, key in keys.items() if key in stored}
        error.down = not error.answered
        raise
      stored |= self._keep(keys, verdicts)
    return [stored.get(key) for key in keys.values()]

  def _keep(self, keys: Mapping[Pair, str], verdicts: Mapping[Pair, float | None]) -> dict[str, float]:
    return self._cache.add({keys[pair]: verdict for pair, verdict in verdicts.items() if verdict is not None})
