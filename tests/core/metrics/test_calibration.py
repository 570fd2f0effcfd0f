import numpy as np
import pytest

from ragrl_jax.core.metrics import calibration


def test_brier_by_hand():
  assert calibration.brier([0.9, 0.6, 0.2], [1, 0, 0]) == pytest.approx((0.01 + 0.36 + 0.04) / 3)
  assert calibration.brier([1.0, 0.0], [1, 0]) == 0.0


def test_calibration_error_by_hand():
  # Two bins: {.2, .4} with none right, gap .3; {.6, .8, 1} with two right, gap .8 - 2/3. Weights 2/5 and 3/5.
  found = calibration.calibration_error([0.2, 0.4, 0.6, 0.8, 1.0], [0, 0, 1, 0, 1], bins=2)
  assert found == pytest.approx(2 / 5 * 0.3 + 3 / 5 * (0.8 - 2 / 3))
  # An edge belongs to the bin below: .5 and 0 are in the first.
  assert calibration.calibration_error([0.5, 0.0, 0.9], [1, 0, 1], bins=2) == pytest.approx((0.5 + 0.1) / 3)
  assert calibration.calibration_error([0.7] * 10, [1] * 7 + [0] * 3) == pytest.approx(0.0)


def test_sure_answers_of_a_known_chance_are_calibrated():
  rng = np.random.default_rng(0)
  said = rng.random(50_000)
  right = rng.random(50_000) < said
  assert calibration.calibration_error(said, right) < 0.01
  assert calibration.brier(said, right) == pytest.approx(1 / 6, abs=0.005)  # the mean of p (1 - p)


def test_what_is_no_probability_is_refused():
  for wrong in (([], []), ([0.5], [1, 0]), ([-0.1], [1]), ([0.5], [2])):
    with pytest.raises(ValueError, match="are needed|between 0 and 1"):
      calibration.brier(*wrong)
