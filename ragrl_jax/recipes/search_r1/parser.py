"""Model text → action, by the rules all search agents share. Written against `prompt.py`."""

from ragrl_jax.prompting.search_turns import STOPS, Parser

__all__ = ["STOPS", "Parser"]
