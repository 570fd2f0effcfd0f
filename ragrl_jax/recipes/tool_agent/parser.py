"""Reads the final turn. Calls are read by the model's own format, in `prompting.tool_turns`."""

from collections.abc import Sequence

from ragrl_jax.core.text import tags
from ragrl_jax.prompting.tool_turns import spoken
from ragrl_jax.structs import Passage


class Parser:
  """Model text → answer.

  Args:
    stops: the stop strings of a turn.
  """

  def __init__(self, stops: Sequence[str] = ()):
    self.stops = tuple(stops)

  def stop(self, text: str) -> str:
    """The stop string that the text ends with, or "eos"."""
    return next((stop for stop in self.stops if text.endswith(stop)), "eos")

  def answer(self, text: str) -> str | None:
    """The last `<answer>` of a turn, its thoughts left out; None without one."""
    found = tags.last(spoken(text), "answer")
    return None if found is None else found.body.strip()

  def observed(self, said: str, text: str) -> tuple[str | None, tuple[Passage, ...] | None]:
    """(None, None): what a tool gave, its text alone does not say."""
    del said, text
    return None, None
