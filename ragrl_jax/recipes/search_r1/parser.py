"""Model text → action, by the rules all search agents share. Written against `prompt.py`."""

from ragrl_jax.recipes.search_agent import STOPS, Parser

__all__ = ["STOPS", "Parser"]
