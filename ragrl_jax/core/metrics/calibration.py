"""Calibration: whether answers given with confidence p are right in a share p of cases."""

from collections.abc import Sequence

import numpy as np

Values = Sequence | np.ndarray


def brier(confidences: Values, outcomes: Values) -> float:
  """Mean of (confidence - outcome)²; 0 is best, and .25 is what a constant .5 gets.

  Args:
    confidences: in [0, 1].
    outcomes: 0 or 1, of the same answers.

  Raises:
    ValueError: different lengths, no answers, or a value outside [0, 1].

  Source: Brier, "Verification of forecasts expressed in terms of probability" (1950).
  """
  said, right = _checked(confidences, outcomes)
  return float(np.square(said - right).mean())


def calibration_error(confidences: Values, outcomes: Values, *, bins: int = 10) -> float:
  """The expected calibration error: mean over the answers of |share right - mean confidence| of their bin.

  Bins are equally wide; an edge belongs to the bin below, and 0 to the first. Arguments and errors as in `brier`.

  Source: Guo et al., "On calibration of modern neural networks" (arXiv 1706.04599), eq. 3.
  """
  said, right = _checked(confidences, outcomes)
  places = np.clip(np.ceil(said * bins).astype(int) - 1, 0, bins - 1)
  gaps = np.bincount(places, weights=right - said, minlength=bins)
  return float(np.abs(gaps).sum() / said.size)


def _checked(confidences: Values, outcomes: Values) -> tuple[np.ndarray, np.ndarray]:
  said, right = np.asarray(confidences, np.float64), np.asarray(outcomes, np.float64)
  if said.shape != right.shape or said.ndim != 1 or not said.size:
    raise ValueError(f"a confidence and an outcome per answer are needed, these are {said.shape} and {right.shape}.")
  if np.any((said < 0) | (said > 1) | (right < 0) | (right > 1)):
    raise ValueError("confidences and outcomes must be between 0 and 1: pass probabilities, not log-probabilities.")
  return said, right
