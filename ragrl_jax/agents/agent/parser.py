"""Reads transcripts. In a run, the program itself returns its answer."""

import dataclasses

from ragrl_jax.recipes import parts


@dataclasses.dataclass(frozen=True)
class Parser(parts.Parser):
  """Reads model text. stops: the stop strings that requests may use."""

  stops: tuple[str, ...] = ()

  def stop(self, text: str) -> str:
    """The longest stop string that the text ends with, or "eos"."""
    return max((stop for stop in self.stops if text.endswith(stop)), key=len, default="eos")

  def answer(self, text: str) -> str | None:
    """The whole text; None if it is empty."""
    return text.strip() or None
