import json
import math

import numpy as np
import pytest
from refusals import refused

from ragrl_jax.store import lossless_json

through = lambda value: lossless_json.decode(json.loads(json.dumps(lossless_json.encode(value), allow_nan=False)))
NUMBERS = [None, True, False, 0, -7, 2**63 - 1, 0.1 + 0.2, -0.0, 5e-324, math.inf, -math.inf]
NESTED = ["", "\ud800 ü", [], [1, [2.5, None]], (), (1, (2, [3])), {}, {"a": (1,), "tuple": [2]}]
LIKE_OURS = [{"array": {"float": "x"}}, {1: "x", (2, 3): 4}]
FLOATS = [np.float32([[0.1, np.nan], [np.inf, -0.0]]), np.float64([1 / 3]), np.float16([0.1]), np.float32(0.1)]
OTHERS = [np.int64([2**62 + 1]), np.uint64([2**64 - 1]), np.array([True, False]), np.zeros((0, 3), "f4"), np.int32(-3)]


def test_values_are_restored_and_arrays_keep_dtype_shape_and_bits():
  for value in NUMBERS + NESTED + LIKE_OURS:
    back = through(value)
    assert back == value and repr(back) == repr(value)  # also 1 from True, a tuple from a list
  assert math.isnan(through(math.nan))
  facts = lambda array: (type(array), array.dtype, array.shape, array.tobytes())
  for value in FLOATS + OTHERS:
    assert facts(through(value)) == facts(value)


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", np.array([object()]), np.array(["x"]), [lambda: 0]])
def test_values_that_cannot_be_restored_are_refused(value):
  refused("cannot be saved exactly", lossless_json.encode, value)
  refused("not a kind of saved value", lossless_json.decode, {"pickle": "x"})
