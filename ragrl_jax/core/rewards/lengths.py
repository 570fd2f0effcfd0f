"""Rewards for lengths: a long rationale, short evidence (both in one unit), and DAPO's penalty of long responses."""

import math


def rationale(reason: int, evidence: int, *, tau: float) -> float:
  """σ(x / tau) with x = reason/evidence − 1 where the reason is the longer, else 1 − evidence/reason.

  0 if either is empty. Equal lengths give 0.5.

  Args:
    reason, evidence: lengths, at least 0.
    tau: above 0; a smaller tau makes the curve steeper around equal lengths.

  Source: LEAR sec. 3.2.
  """
  if reason <= 0 or evidence <= 0:
    return 0.0
  ahead = reason / evidence - 1 if reason >= evidence else 1 - evidence / reason
  return 0.5 * (1.0 + math.tanh(0.5 * ahead / tau))  # the sigmoid σ in a form that cannot overflow


def evidence(evidence: int, passages: int, *, omega: float, gamma: float) -> float:
  """1 if the compression u = 1 − evidence/passages is at least `omega`, else u^gamma; u is clipped to at least 0.

  0 for empty evidence, for which the formula would give 1, and 0 without passages.

  Args:
    evidence, passages: lengths, at least 0; u is 0 for evidence longer than all passages.
    omega: the compression that gets the full reward.
    gamma: at least 0; a smaller gamma lowers the reward less below omega, and 0 does not lower it.

  Source: LEAR sec. 3.2.
  """
  if evidence <= 0 or passages <= 0:
    return 0.0
  share = max(0.0, 1.0 - evidence / passages)
  return 1.0 if share >= omega - 1e-9 else share**gamma


def overlong_penalty(tokens: int, *, limit: int, buffer: int) -> float:
  """The penalty of a response of `tokens` tokens, to be added to its reward: between −1 and 0.

    0                                    tokens ≤ limit − buffer
    −(tokens − (limit − buffer)) / buffer    in the buffer
    −1                                   tokens ≥ limit

  Args:
    tokens: number of tokens that the policy sampled in the whole episode.
    limit: number of tokens from which the penalty is full.
    buffer: number of tokens before the limit over which the penalty grows, 1 to `limit`.

  Raises:
    ValueError: a buffer outside 1..limit.

  Source: DAPO (arXiv 2503.14476) eq. 13.
  """
  if not 1 <= buffer <= limit:
    raise ValueError(f"buffer={buffer}: it must lie between 1 and limit={limit} tokens.")
  beyond = min(max(tokens - (limit - buffer), 0), buffer)
  return -beyond / buffer if beyond else 0.0
