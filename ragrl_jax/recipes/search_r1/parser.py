"""Model text → action, by the rules of all search agents. Written against `prompt.py`."""

from ragrl_jax.recipes.search_agent import Parser

__all__ = ["BROWSING", "Parser"]

BROWSING = ("search", "open", "find")  # actions that return passages
