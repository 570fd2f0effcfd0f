"""Reads transcripts. In a run, the program itself returns its answer."""

from collections.abc import Sequence

from ragrl_jax.structs import Passage


class Parser:
  """Reads model text.

  Args:
    stops: the stop strings that requests may use.
  """

  def __init__(self, stops: Sequence[str] = ()):
    self.stops = tuple(stops)

  def stop(self, text: str) -> str:
    """The stop string that the text ends with, or "eos"."""
    return next((stop for stop in sorted(self.stops, key=len, reverse=True) if text.endswith(stop)), "eos")

  def answer(self, text: str) -> str | None:
    """The whole text; None if it is empty."""
    return text.strip() or None

  def observed(self, said: str, text: str) -> tuple[str | None, tuple[Passage, ...] | None]:
    """(None, None): only the program knows which texts are search results."""
    del said, text
    return None, None
