"""One of several hosts that train the tiny world:

    python tests/hosts_child.py NUMBER COUNT PORT WORLD WORKDIR STEPS DEVICES MESH AHEAD ENGINE

DEVICES are this host's own, MESH is JSON, AHEAD is config.rollout.ahead, ENGINE is config.rollout.mesh.tensor.
"""

import json
import pathlib
import sys

import conftest  # noqa: F401  (the tests' settings, the compilation cache among them)
import jax
import tiny_world

from ragrl_jax.jobs import evaluate, train
from ragrl_jax.parallel import hosts
from ragrl_jax.run import prepared


def settings(world, steps, ahead=0, engine=1, **mesh):
  """Dynamic sampling, too: its surplus and its cursor go into the checkpoint."""
  config = tiny_world.guarded(tiny_world.config(world))
  config.steps, config.checkpoint.keep = steps, 9
  config.evaluate.update(dict(every=2, examples=3))
  config.rollout.prompts_per_step = 3  # unequal shares
  config.rollout.filter.update(dict(metric="total", max_draws=2, surplus="discard" if ahead else "keep"))
  config.rollout.ahead, config.rollout.mesh.tensor = ahead, engine
  config.mesh.update(mesh)
  return config


def run(world, workdir, steps, ahead=0, engine=1, **mesh):
  config = settings(world, steps, ahead, engine, **mesh)
  recipe = prepared.recipe
  # Steps 3 and 4 collapse: step 4 returns to the weights of step 1, or of step 0 if they are sampled ahead.
  prepared.recipe = lambda config: tiny_world.collapsing(tiny_world.rewarding(recipe(config)), (2, 3))
  try:
    # With `ahead`, a resumed run may not have more steps unasked: its last step starts no next one.
    yield from train.train(config, workdir, evaluate=evaluate.evaluator(config), accept_changes=bool(ahead))
  finally:
    prepared.recipe = recipe


if __name__ == "__main__":
  number, count, port, steps, devices, ahead, engine = (int(sys.argv[place]) for place in (1, 2, 3, 6, 7, 9, 10))
  world, workdir, mesh = pathlib.Path(sys.argv[4]), pathlib.Path(sys.argv[5]), json.loads(sys.argv[8])
  jax.config.update("jax_num_cpu_devices", devices)
  with hosts.Joined(f"127.0.0.1:{port}", count, number, wait_s=120, heartbeat_s=10):
    for metrics in run(world, workdir, steps, ahead, engine, **mesh):
      print(metrics["step"], metrics.get("loss"), flush=True)
