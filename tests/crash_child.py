"""A training run for a parent process to kill: python tests/crash_child.py WORLD WORKDIR STEPS AHEAD"""

import pathlib
import sys

import conftest  # noqa: F401  (the tests' settings, the compilation cache among them)

from ragrl_jax import config as config_lib
from ragrl_jax import train
from ragrl_jax.run import player
from ragrl_jax.testing import tiny_world

ROOT = pathlib.Path(__file__).parents[1]

if __name__ == "__main__":
  world, workdir, steps = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
  config = tiny_world.config(world, lambda variant: config_lib.load(ROOT / "configs" / "quickstart.py", variant))
  config.steps, config.rollout.ahead = steps, int(sys.argv[4])
  config.loss.kl, config.loss.kl_coef = "k2", 0.01  # so that a reference policy is restored too
  recipe = player.recipe
  player.recipe = lambda config: tiny_world.rewarding(recipe(config))
  for metrics in train.train(config, workdir):
    print(metrics["step"], metrics["loss"], flush=True)
