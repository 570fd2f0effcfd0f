"""Imports of libraries that would start JAX."""

import importlib
import sys
import threading
import types

import jax.lax

_ONE = threading.Lock()


def without_jax(name: str) -> types.ModuleType:
  """The module of this name, imported as where JAX is not installed.

  bm25s starts JAX when it is imported. Hosts could no longer join each other, and a process that only searches would
  reserve three quarters of a GPU's memory.
  """
  with _ONE:
    if name not in sys.modules:
      held, sys.modules["jax.lax"] = jax.lax, None  # what `import jax.lax` then raises is what bm25s expects
      try:
        importlib.import_module(name)
      finally:
        sys.modules["jax.lax"] = held
    return sys.modules[name]
