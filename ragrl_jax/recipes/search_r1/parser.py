"""Model text → action, by the rules of all search agents. It belongs to `prompt.py`."""

from ragrl_jax.recipes.search_agent import STOPS, Parser

__all__ = ["STOPS", "Parser"]
