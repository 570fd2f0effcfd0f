"""Values → JSON and back, nothing lost: what is saved has to come back as it was, to the bit and to the type.

JSON's own values stand for themselves. What it does not have is an object with one key, which says what it is:

    {"tuple": […]}  {"mapping": [[key, value], …]}  {"array": [dtype, shape, numbers]}  {"float": "nan"}
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

KINDS = "fiub"  # of arrays: floats, integers with and without sign, bools


def encode(value: Any) -> Any:
  """What JSON can hold, and `decode` gives back.

  Raises:
    ValueError: a type that is none of None, bool, int, float, str, list, tuple, mapping, NumPy's numbers and arrays.
  """
  if value is None or type(value) in (bool, int, str):
    return value
  if type(value) is float:
    return value if math.isfinite(value) else {"float": repr(value)}
  if type(value) is list:
    return [encode(item) for item in value]
  if type(value) is tuple:
    return {"tuple": [encode(item) for item in value]}
  if isinstance(value, Mapping):
    return {"mapping": [[encode(key), encode(item)] for key, item in value.items()]}
  if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in KINDS and value.dtype.itemsize <= 8:
    # As float64 or an integer of 8 bytes each of these numbers is itself.
    return {"array": [value.dtype.str, list(value.shape), [encode(item) for item in np.ravel(value).tolist()]]}
  raise ValueError(
    f"a {type(value).__name__} cannot be saved exactly: keep numbers, text, lists, tuples, mappings and "
    "NumPy arrays of numbers in an episode's facts."
  )


def decode(value: Any) -> Any:
  """The value that `encode` was given. A NumPy scalar comes back as one; a mapping as a dict."""
  if isinstance(value, list):
    return [decode(item) for item in value]
  if not isinstance(value, dict):
    return value
  ((kind, held),) = value.items()
  if kind == "tuple":
    return tuple(decode(item) for item in held)
  if kind == "mapping":
    return {decode(key): decode(item) for key, item in held}
  if kind == "array":
    dtype, shape, numbers = held
    return np.asarray([decode(number) for number in numbers], np.dtype(dtype)).reshape(shape)[()]
  if kind == "float":
    return float(held)
  raise ValueError(f"{kind!r} is no kind of saved value: the file was not written by this library.")
