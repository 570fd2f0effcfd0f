"""Tools for the tests of a recipe, for recipes of this library and of its users.

`check_recipe` checks the contract of every recipe. `scripted` plays a recipe without a model.
"""

from ragrl_jax.testing.contract import check_recipe

__all__ = ["check_recipe"]
