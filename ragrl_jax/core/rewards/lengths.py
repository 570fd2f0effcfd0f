"""Pay for a long rationale and short evidence, by their lengths in any one unit."""

import math


def rationale(reason: int, evidence: int, *, tau: float) -> float:
  """σ(x / tau) with x = reason/evidence − 1 where the reason is the longer, else 1 − evidence/reason.

  0 where either is empty: there is nothing to compare. Equal lengths give 0.5.

  Args:
    reason, evidence: lengths, at least 0.
    tau: the smaller, the steeper around equal lengths.

  Source: LEAR sec. 3.3.
  """
  if reason <= 0 or evidence <= 0:
    return 0.0
  ahead = reason / evidence - 1 if reason >= evidence else 1 - evidence / reason
  return 0.5 * (1.0 + math.tanh(0.5 * ahead / tau))  # σ, without an overflow


def evidence(evidence: int, passages: int, *, omega: float, gamma: float) -> float:
  """1 from a compression of `omega` on, else u^gamma, with u = 1 − evidence/passages, held within 0 and 1.

  0 for empty evidence, which the formula would pay in full, and without passages.

  Args:
    evidence, passages: lengths, at least 0; u is held at 0 for evidence longer than all passages.
    omega: the compression that is enough.
    gamma: above 0; the smaller, the milder below omega.

  Source: LEAR sec. 3.3.
  """
  if evidence <= 0 or passages <= 0:
    return 0.0
  share = max(0.0, 1.0 - evidence / passages)
  return 1.0 if share >= omega - 1e-9 else share**gamma
