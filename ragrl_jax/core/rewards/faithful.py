"""Rewards for faithful steps: turns verdicts on (premise, claim) pairs into a term."""

from collections.abc import Sequence

from ragrl_jax.core.masked import Number
from ragrl_jax.core.metrics import qa
from ragrl_jax.core.text import forms, tokens
from ragrl_jax.core.text.normalize import normalize

# (premise, claim): the text a step is based on, and the step. None if the episode has no such block.
Pair = tuple[str | None, str | None]


def whole(pairs: Sequence[Pair]) -> list[tuple[str, str]]:
  """The complete pairs, which a judge can be asked about."""
  return [(premise, claim) for premise, claim in pairs if premise is not None and claim is not None]


def share(pairs: Sequence[Pair], verdicts: Sequence[Number | None] | None) -> float | None:
  """The mean verdict over the pairs, 0 to 1. A mean, so that adding pairs does not raise the reward.

  Args:
    pairs: the pairs of one episode. An incomplete pair counts 0, since a missing block is a fault. No pairs give 0.
    verdicts: in [0, 1], one per complete pair, in order; None for a pair without a verdict, or if no judge was asked.

  Returns:
    The share; None if a complete pair has no verdict, because an unknown step must not count as a wrong one.

  Raises:
    ValueError: the number of verdicts is not that of the complete pairs, or a verdict is outside [0, 1].
  """
  complete = whole(pairs)
  if not complete:
    return 0.0
  if verdicts is None:
    return None
  if len(verdicts) != len(complete):
    raise ValueError(
      f"{len(verdicts)} verdicts for {len(complete)} (premise, claim) pairs: they are not of this episode."
    )
  scores = [verdict for verdict in verdicts if verdict is not None]
  if not all(0.0 <= verdict <= 1.0 for verdict in scores):
    raise ValueError(f"verdicts {scores}: each must be from 0 to 1.")
  return float(sum(scores)) / len(pairs) if len(scores) == len(verdicts) else None


def pooled(pairs: Sequence[Pair], verdicts: Sequence[Number | None] | None) -> tuple[float, int]:
  """(sum of the verdicts, number of pairs), for a mean over the pairs of many episodes: Σ sums / Σ numbers.

  An episode without a pair contributes nothing here, while `share` gives it 0: "no pair" is not "unfaithful". An
  incomplete pair counts 0, as in `share`. An episode with a missing verdict contributes nothing, as `share` gives it
  None: without its other pairs, the incomplete ones would lower the mean. `pairs, verdicts`: see `share`.

  Raises:
    ValueError: see `share`.
  """
  if share(pairs, verdicts) is None:
    return 0.0, 0
  return float(sum(verdict for verdict in verdicts or () if verdict is not None)), len(pairs)


def states(premise: str | None, claim: str | None, *, words: bool = False) -> float:
  """1 if the premise contains the claim, both normalised as in SQuAD, else 0; 0 if either is missing or empty.

  Args:
    premise, claim: a thought and an answer.
    words: only whole words count (`tokens.spaced`). Without, "Both are Norwegian, I know now." states "no".

  Source: VERITAS (sec. 3.3) calls it Sub-EM; whole words are ours.
  """
  if premise is None or claim is None or not (text := normalize(claim, "squad")):
    return 0.0
  if not words:
    return qa.cover_em(premise, (claim,))
  return float(f" {tokens.spaced(text)} " in f" {tokens.spaced(normalize(premise, 'squad'))} ")


def copied(premise: str | None, claim: str | None) -> bool:
  """Whether the claim is nothing but a run of the premise's words, both `forms.typed` and normalised as in SQuAD."""
  return states(forms.typed(premise or ""), forms.typed(claim or ""), words=True) == 1.0
