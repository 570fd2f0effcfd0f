"""Tools for the tests of a recipe, for recipes of this library and of its users.

`check_recipe` checks the contract of every recipe. `scripted` plays a recipe without a model, and `small_engine` with a
small one. `played` makes an evaluation from given episodes. `tiny_world` has questions, an index and settings for a run
of a few seconds.
"""

from ragrl_jax.testing.contract import check_recipe

__all__ = ["check_recipe"]
