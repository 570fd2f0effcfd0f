"""What the tests of a recipe need, for recipes of this library and of its users.

`check_recipe` tests the promises of every recipe, `scripted` plays a recipe without a model, `small_engine` with a
small one, and `tiny_world` holds questions, an index and settings for a run of seconds.
"""

from ragrl_jax.testing.contract import check_recipe

__all__ = ["check_recipe"]
