"""Reads the final turn. `agents.calls.turns` reads the calls, in the model's own format."""

import dataclasses

from ragrl_jax.agents.calls.turns import spoken
from ragrl_jax.core.text import tags
from ragrl_jax.recipes import parts


@dataclasses.dataclass(frozen=True)
class Parser(parts.Parser):
  """Model text → answer. stops: the stop strings of a turn."""

  stops: tuple[str, ...] = ()

  def answer(self, text: str) -> str | None:
    """The last `<answer>` of a turn, outside its thoughts; None if there is none."""
    found = tags.last(spoken(text), "answer")
    return None if found is None else found.body.strip()
