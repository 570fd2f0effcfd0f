"""A training run in its own process, which the parent test kills."""

import os
import pathlib
import time

import conftest  # noqa: F401  (the tests' settings, the compilation cache among them)
import tiny_world
from huggingface_hub import constants

from ragrl_jax.jobs import train
from ragrl_jax.run import prepared
from ragrl_jax.store import episodes


def main(
  world: pathlib.Path, workdir: pathlib.Path, steps: int, ahead: int, errors: pathlib.Path, model="", hub=None
) -> None:
  """Runs the tiny world to its last step, or goes on with the run in `workdir`. Appends stderr to `errors`.

  `model` is config.model.path; it has the tokenizer, too. `hub` are huggingface_hub's constants (`hub.places`).
  """
  os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
  config = tiny_world.guarded(tiny_world.config(world))
  config.steps, config.rollout.ahead, config.checkpoint.every = steps, ahead, 2
  config.loss.kl, config.loss.kl_coef = "k2", 0.01  # so that a reference policy is restored too
  if model:
    config.model.path, config.prompting.tokenizer = model, ""
  for name, value in (hub or {}).items():
    setattr(constants, name, value)
  recipe, write = prepared.recipe, episodes.write_episodes
  # Steps 4 and 5 collapse, or 5 and 6 if they are sampled ahead: the run returns to the weights of step 2.
  prepared.recipe = lambda config: tiny_world.collapsing(tiny_world.rewarding(recipe(config)), (3, 4))
  episodes.write_episodes = lambda workdir, step, rows: write(workdir, step, map(slowly, rows))
  list(train.train(config, workdir))


def slowly(row):
  time.sleep(0.02)  # so that the next step begins while the rows are written
  return row
