"""Tools for the tests of a recipe, for recipes of this library and of its users.

`check_recipe` checks the contract of every recipe. `scripted` plays a recipe without a model. `TINY` are the settings
of a new model of bytes, which a CPU trains in seconds.
"""

from ragrl_jax.testing.contract import check_recipe

__all__ = ["TINY", "check_recipe"]
TINY = {
  "prompting.tokenizer": "bytes",
  "prompting.chat": False,
  **{f"model.shape.{name}": size for name, size in dict(num_layers=1, d_model=64, num_heads=2, d_ff=128).items()},
  **{f"rollout.{name}": size for name, size in dict(prompts_per_step=2, group_size=8, lanes=16, rows=16).items()},
  **{f"rollout.{name}": size for name, size in dict(context=1024, prefill=256, max_new_tokens=32).items()},
  "learner.logprob_chunk": 256,
  "optimizer.learning_rate": 1e-2,
}
