"""A training run that something else kills: python tests/crash_child.py WORLD WORKDIR STEPS AHEAD"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "configs"), str(ROOT / "tests")]

import conftest  # noqa: E402, F401  (the tests' settings, the compilation cache among them)
import quickstart  # noqa: E402
import tiny_world  # noqa: E402

from ragrl_jax import train  # noqa: E402
from ragrl_jax.run import player  # noqa: E402

if __name__ == "__main__":
  world, workdir, steps = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
  config = tiny_world.config(world, quickstart.get_config)
  config.steps, config.rollout.ahead = steps, int(sys.argv[4])
  config.loss.kl, config.loss.kl_coef = "k2", 0.01  # a reference policy has to come back, too
  recipe = player.recipe
  player.recipe = lambda config: tiny_world.rewarding(recipe(config))
  for metrics in train.train(config, workdir):
    print(metrics["step"], metrics["loss"], flush=True)
