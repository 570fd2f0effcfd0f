"""Reads the final turn. `prompting.tool_turns` reads the calls, in the model's own format."""

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
    """The last `<answer>` of a turn, outside its thoughts; None if there is none."""
    found = tags.last(spoken(text), "answer")
    return None if found is None else found.body.strip()

  def observed(self, said: str, text: str) -> tuple[str | None, tuple[Passage, ...] | None]:
    """(None, None): the text alone does not show whether it is a search result."""
    del said, text
    return None, None
