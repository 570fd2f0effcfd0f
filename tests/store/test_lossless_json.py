import json
import math

import numpy as np
import pytest

from ragrl_jax.store import lossless_json


def through(value):
  return lossless_json.decode(json.loads(json.dumps(lossless_json.encode(value), allow_nan=False)))


def test_values_are_restored():
  for value in [
    None,
    True,
    False,
    0,
    -7,
    2**63 - 1,
    0.1 + 0.2,
    -0.0,
    5e-324,
    math.inf,
    -math.inf,
    "",
    "\ud800 ü",
    [],
    [1, [2.5, None]],
    (),
    (1, (2, [3])),
    {},
    {"a": (1,), "tuple": [2]},
    {"array": {"float": "x"}},
    {1: "x", (2, 3): 4},
  ]:
    back = through(value)
    assert back == value and repr(back) == repr(value)  # also 1 from True, a tuple from a list


def test_arrays_keep_dtype_shape_and_bits():
  for value in [
    np.float32([[0.1, np.nan], [np.inf, -0.0]]),
    np.float64([1 / 3]),
    np.float16([0.1]),
    np.int64([2**62 + 1]),
    np.uint64([2**64 - 1]),
    np.array([True, False]),
    np.zeros((0, 3), np.float32),
    np.float32(0.1),
    np.int32(-3),
  ]:
    back = through(value)
    assert (type(back), back.dtype, back.shape, back.tobytes()) == (
      type(value),
      value.dtype,
      value.shape,
      value.tobytes(),
    )


def test_nan_stays_nan():
  assert math.isnan(through(math.nan))


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", np.array([object()]), np.array(["x"]), [lambda: 0]])
def test_values_that_cannot_be_restored_are_refused(value):
  with pytest.raises(ValueError, match="cannot be saved exactly"):
    lossless_json.encode(value)


def test_another_kind_of_file_is_refused():
  with pytest.raises(ValueError, match="not a kind of saved value"):
    lossless_json.decode({"pickle": "x"})
