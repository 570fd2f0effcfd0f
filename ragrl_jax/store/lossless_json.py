"""Encodes values as JSON and decodes them without loss: each value keeps its bits and its type.

Values that JSON has are written as they are. Any other value becomes an object with one key, the value's kind:

    {"tuple": […]}  {"mapping": [[key, value], …]}  {"array": [dtype, shape, numbers]}  {"float": "nan"}
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

KINDS = "fiub"  # NumPy's dtype kinds: floats, signed and unsigned integers, bools


def encode(value: Any) -> Any:
  """The value as JSON values; `decode` is the inverse.

  Raises:
    ValueError: a type other than None, bool, int, float, str, list, tuple, mapping, NumPy's numbers and arrays.
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
    # Python's int and float hold each of these numbers exactly.
    return {"array": [value.dtype.str, list(value.shape), [encode(item) for item in np.ravel(value).tolist()]]}
  raise ValueError(
    f"a {type(value).__name__} cannot be saved exactly: keep numbers, text, lists, tuples, mappings and "
    "NumPy arrays of numbers in an episode's facts."
  )


def decode(value: Any) -> Any:
  """The value that `encode` encoded. A NumPy scalar stays one; a mapping becomes a dict.

  Raises:
    ValueError: an unknown kind.
  """
  if isinstance(value, list):
    return [decode(item) for item in value]
  if not isinstance(value, dict):
    return value
  ((kind, content),) = value.items()
  if kind == "tuple":
    return tuple(decode(item) for item in content)
  if kind == "mapping":
    return {decode(key): decode(item) for key, item in content}
  if kind == "array":
    dtype, shape, numbers = content
    return np.asarray([decode(number) for number in numbers], np.dtype(dtype)).reshape(shape)[()]
  if kind == "float":
    return float(content)
  raise ValueError(f"{kind!r} is not a kind of saved value: the file was not written by this library.")
