"""Asks a checkpoint questions from Python. `ragrl ask` also shows its thoughts and searches as they are generated."""

import pathlib
from collections.abc import Iterable
from typing import cast

from ragrl_jax import settings, structs
from ragrl_jax.evaluation import harness
from ragrl_jax.jobs import checkpoints, evaluate
from ragrl_jax.rollout import collect
from ragrl_jax.run import player as player_lib
from ragrl_jax.run import prepared
from ragrl_jax.run import questions as questions_lib


def ask(
  checkpoint: str | pathlib.Path, questions: Iterable[str | structs.Example], *, config=None
) -> list[tuple[str | None, structs.Episode]]:
  """Asks each question once, in its own episode; returns [(answer or None, episode)] in order. Decoding is greedy.

  Args:
    checkpoint: as in `evaluate`.
    questions: texts; or Examples, with passages for a recipe that needs them.
    config: as in `evaluate`; None: the settings of the checkpoint's run.

  Raises:
    ValueError, FileNotFoundError: as in `evaluate`; or a recipe that needs passages got none.
  """
  examples = [one if isinstance(one, structs.Example) else structs.Example("", one, ()) for one in questions]
  config = settings.of(evaluate.config_of(checkpoint) if config is None else config)
  # Questions are refused before weights and index are read.
  questions_lib.check_passages(config, prepared.recipe(config), examples, "questions")
  player = cast(player_lib.Player, checkpoints.opened(config, checkpoint))
  requests = [collect.Request(example, number) for number, example in enumerate(examples)]
  episodes = player.rollout.run(requests, step=0, greedy=True)
  return [(harness.answer(player.recipe, episode), episode) for episode in episodes]
