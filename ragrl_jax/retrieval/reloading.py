"""A retriever that can be reloaded while it is in use."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragrl_jax.retrieval import api


class Reloading:
  """Forwards to the retriever that `load` returned last. A search ends with the retriever that it started with.

  Attributes:
    retriever: the current one.
    loaded: when it was loaded, in Unix seconds.
  """

  def __init__(self, load: Callable[[], api.Retriever]):
    self._load, self._loading = load, threading.Lock()
    self.retriever, self.loaded = load(), time.time()

  def describe(self) -> Mapping[str, Any]:
    """The current retriever's settings."""
    return self.retriever.describe()

  def search(self, queries: Sequence[str], k: int) -> api.Answers:
    """The current retriever's answers. See `api.Retriever`."""
    return self.retriever.search(queries, k)

  def __getattr__(self, name: str) -> Any:
    return getattr(self.retriever, name)  # read, embed and model, if the current one has them

  def reload(self) -> str | None:
    """Loads a new retriever; if that fails, keeps the old one. Any thread may call it.

    Returns:
      The error's message; None if there was no error.
    """
    with self._loading:
      try:
        new = self._load()
      except (ValueError, OSError, api.RetrievalFailed) as error:  # the index is incomplete or missing
        logging.warning("the index was not reloaded, the old one stays: %s", error)
        return str(error)
      self.retriever, self.loaded = new, time.time()
      return None
