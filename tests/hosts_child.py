"""One of several hosts that train the tiny world: python tests/hosts_child.py NUMBER COUNT PORT WORLD WORKDIR STEPS"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "configs"), str(ROOT / "tests")]

import conftest  # noqa: E402, F401  (the tests' settings, the compilation cache among them)
import jax  # noqa: E402
import tiny_world  # noqa: E402

from ragrl_jax import config as config_lib  # noqa: E402
from ragrl_jax import evaluate, train  # noqa: E402
from ragrl_jax.evaluation import player  # noqa: E402
from ragrl_jax.parallel import hosts  # noqa: E402

DEVICES = 4


def settings(world, steps, **mesh):
  """Dynamic sampling, too: its surplus and its cursor go into the checkpoint."""
  config = tiny_world.config(world, lambda variant: config_lib.load(ROOT / "configs" / "quickstart.py", variant))
  config.steps, config.checkpoint.keep = steps, 9
  config.evaluate.update(dict(every=2, examples=3))
  config.rollout.prompts_per_step = 3  # unequal shares
  config.rollout.filter.update(dict(metric="total", max_draws=2, surplus="keep"))
  config.mesh.update(mesh)
  return config


def run(world, workdir, steps, **mesh):
  config = settings(world, steps, **mesh)
  recipe = player.recipe
  player.recipe = lambda config: tiny_world.rewarding(recipe(config))
  try:
    yield from train.train(config, workdir, observe=evaluate.observer(config))
  finally:
    player.recipe = recipe


if __name__ == "__main__":
  number, count, port, world, workdir, steps = *map(int, sys.argv[1:4]), *map(pathlib.Path, sys.argv[4:6]), sys.argv[6]
  jax.config.update("jax_num_cpu_devices", DEVICES // count)
  with hosts.Joined(f"127.0.0.1:{port}", count, number, wait_s=120, heartbeat_s=10):
    mesh = dict(data=2, fsdp=2) if count == 2 else dict(data=1, fsdp=2, tensor=2)
    for metrics in run(world, workdir, int(steps), **mesh):
      print(metrics["step"], metrics.get("loss"), flush=True)
