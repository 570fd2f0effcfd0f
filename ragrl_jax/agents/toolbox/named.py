"""Finds the user's own Python functions by name: "FILE.py:FUNCTION" or "MODULE:FUNCTION"."""

import functools
import importlib
import importlib.util
import pathlib
import types
from collections.abc import Callable
from typing import Any


@functools.cache
def _module(path: str) -> types.ModuleType:
  """Imports a file as a module. The file is executed once, even if several recipes name it."""
  spec = importlib.util.spec_from_file_location(f"ragrl_program_{pathlib.Path(path).stem}", path)
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def function_of(name: str, setting: str) -> Callable[..., Any]:
  """The function with this name.

  Args:
    name: "FILE.py:FUNCTION" or "MODULE:FUNCTION".
    setting: the setting that has the name, for error messages.

  Raises:
    ValueError: the file, module or function does not exist. The message names the setting.
  """
  where, _, function = name.rpartition(":")
  if not where or not function.isidentifier():
    raise ValueError(f"{setting}={name!r}: it must be FILE.py:FUNCTION or MODULE:FUNCTION.")
  if where.endswith(".py"):
    if not pathlib.Path(where).is_file():
      raise ValueError(f"{setting}={name!r}: there is no file {where}.")
    module = _module(str(pathlib.Path(where).absolute()))
  else:
    try:
      module = importlib.import_module(where)
    except ModuleNotFoundError as error:
      raise ValueError(f"{setting}={name!r}: {error}.") from None
  found = getattr(module, function, None)
  if not callable(found):
    raise ValueError(f"{setting}={name!r}: {where} has no function {function}.")
  return found
