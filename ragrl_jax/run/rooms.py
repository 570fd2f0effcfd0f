"""What a training run is made of: player, group sampler, learner and the settings of a step."""

import contextlib
import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

from ragrl_jax.learner import learner as learner_lib
from ragrl_jax.learner import settings as settings_lib
from ragrl_jax.parallel import hosts
from ragrl_jax.rollout import groups as groups_lib
from ragrl_jax.run import player as player_lib
from ragrl_jax.run import questions, rewards
from ragrl_jax.store import workdir as run_lib

SAMPLER = "supply"  # the group sampler's key in checkpoints; older checkpoints have it, so it stays


@dataclasses.dataclass
class Rooms:
  """What a run is made of, and the settings of a step."""

  player: player_lib.Player  # recipe, engine and tools: questions → episodes
  sampler: groups_lib.GroupSampler  # draws the questions
  learner: learner_lib.Learner  # packed episodes → weights
  penalty: rewards.Penalty | None
  minibatches: int  # optimiser steps in one pass, each on its share of the prompts
  packing: dict[str, Any]  # how rows are packed, see packing.pack_items
  ahead: bool  # whether two steps are sampled by one version of the weights, the second one beside the update
  stale: Any = None  # those weights, where a tool failed meanwhile: the step is sampled with them when the run goes on

  def saved(self) -> dict[str, Any]:
    """What a checkpoint holds beside the train state."""
    return {SAMPLER: self.sampler.saved()}


def build(config) -> Rooms:
  """The rooms, and the settings of a step. All settings and questions are checked before weights and index are read."""
  player_lib.check(config)
  objective, optimizer = settings_lib.from_config(config), settings_lib.optimizer_from_config(config)
  examples, draws = questions.training(config, player_lib.recipe(config), player_lib.tokenizer(config))
  rollout, rows, limits = config.rollout, config.learner, config.reward
  penalty = rewards.overlong(limit=limits.overlong_limit, buffer=limits.overlong_buffer, factor=limits.overlong_factor)
  player = player_lib.build(config)
  sampler = groups_lib.GroupSampler(
    player.rollout,
    examples,
    draws.draw,
    # By player.recipe, not by a copy: a recipe that follows the run is replaced there.
    lambda *given: rewards.measure(player.recipe, rollout.filter.metric, *given, penalty=penalty),
    prompts_per_step=rollout.prompts_per_step,
    group_size=rollout.group_size,
    filter=groups_lib.Filter(**rollout.filter),
    max_failed_share=config.retrieval.max_failed_share,
    max_unjudged_share=config.judge.max_failed_share,
  )
  return Rooms(
    player,
    sampler,
    learner_lib.Learner(player.model, objective, optimizer, mesh=player.mesh),
    penalty=penalty,
    minibatches=objective.minibatches,
    packing=dict(rows=rows.micro_rows, lengths=rows.row_lengths, share_prefix=rows.share_prompts),
    ahead=rollout.ahead > 0,
  )


@contextlib.contextmanager
def saving_what_is_done(run: run_lib.Run, step: int, state: Any, sampler: groups_lib.GroupSampler) -> Iterator[None]:
  """Saves the last finished step before an error ends the run, unless its checkpoint is there already.

  On several hosts only what all of them raise: the others would wait for the one that fails alone.
  """
  before = copy.copy(sampler)
  try:
    yield
  except BaseException as error:
    sampler.close()
    if step and isinstance(error, Exception if hosts.count() == 1 else groups_lib.TooManyFailures):
      run.leave(step, state, {SAMPLER: before.saved()})
    raise
