"""Pay for steps that follow from what stands before them: verdicts on (premise, claim) pairs → a term."""

from collections.abc import Sequence

from ragrl_jax.core.masked import Number
from ragrl_jax.core.metrics import qa
from ragrl_jax.core.text.normalize import normalize

# What a step rests on, and the step. None: no such block stands there.
Pair = tuple[str | None, str | None]


def whole(pairs: Sequence[Pair]) -> list[tuple[str, str]]:
  """The pairs that have both sides: those a judge can be asked about."""
  return [(premise, claim) for premise, claim in pairs if premise is not None and claim is not None]


def share(pairs: Sequence[Pair], verdicts: Sequence[Number | None] | None) -> float | None:
  """The mean verdict over the pairs, 0 to 1. A mean, so that more pairs earn no more than good ones.

  Args:
    pairs: of one episode. One that lacks a side counts 0: that is the fault looked for. No pairs at all are 0, too.
    verdicts: in [0, 1], one a whole pair, in order; None where the judge did not answer, or was not asked at all.

  Returns:
    None as soon as one whole pair has no verdict: what is not known is not wrong.

  Raises:
    ValueError: the verdicts are not as many as the whole pairs, or outside [0, 1].
  """
  asked = whole(pairs)
  if not asked:
    return 0.0
  if verdicts is None:
    return None
  if len(verdicts) != len(asked):
    raise ValueError(f"{len(verdicts)} verdicts for {len(asked)} (premise, claim) pairs: they are not of this episode.")
  if any(verdict is None for verdict in verdicts):
    return None
  if not all(0.0 <= verdict <= 1.0 for verdict in verdicts):
    raise ValueError(f"verdicts {list(verdicts)}: each must be from 0 to 1.")
  return float(sum(verdicts)) / len(pairs)


def states(premise: str | None, claim: str | None) -> float:
  """1 if the claim, normalised as SQuAD does, is part of the premise, else 0; also where either is missing or empty.

  Source: VERITAS (sec. 3.3) calls it Sub-EM.
  """
  if premise is None or claim is None or not normalize(claim, "squad"):
    return 0.0
  return qa.cover_em(premise, (claim,))
