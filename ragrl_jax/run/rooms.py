"""The parts of a training run: player, group sampler, learner and the settings of a step."""

import contextlib
import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ragrl_jax.learner import learner as learner_lib, packing, row_layout, settings as settings_lib
from ragrl_jax.learner.state import TrainState
from ragrl_jax.parallel import hosts
from ragrl_jax.recipes.recipe import Recipe
from ragrl_jax.rollout import dispatch, group_sampler
from ragrl_jax.run import contents, information, player as player_lib, questions, rewards, rollback, teaching
from ragrl_jax.run.prepared import Prepared
from ragrl_jax.store import checkpoint, workdir as run_lib

SAMPLER, ROWS = "group_sampler", "row_lengths"  # keys in checkpoints


@dataclasses.dataclass
class Rooms:
  """The parts of a training run, and the settings of a step."""

  recipe: Recipe  # of the first step; the player's may be that of a later stage
  player: player_lib.Player  # recipe, engine and tools: questions → episodes
  sampler: group_sampler.GroupSampler  # draws the questions
  learner: learner_lib.Learner  # packed episodes → weights
  scorer: rewards.Scorer  # episodes → rewards
  minibatches: int  # optimiser steps in one pass, each on its share of the prompts
  packing: dict[str, Any]  # how rows are packed, see packing.pack_items
  given: bool  # whether the settings have the rows' lengths
  unmeasured: dict[str, int] | None  # what row_layout.choose needs besides items; None: given lengths are checked
  remote: teaching.RemoteTeacher | None  # a teacher behind a server

  def load(self, step: int, state: TrainState) -> None:
    """Loads the weights that sample this step, unless its groups have been sampled."""
    if self.sampler.next.weights is not None:
      self.player.engine.load(self.sampler.next.weights, version=step - 2)
    elif self.sampler.next.groups is None:
      self._load(state, version=step - 1)

  def _load(self, state: TrainState, version: int) -> Any:
    self.player.engine.load(self.learner.policy(state.params), version=version)
    return self.player.engine.weights

  def sample_next(self, step: int, learning: dispatch.Work) -> group_sampler.TooManyFailures | None:
    """Samples the groups of this coming step beside the update. An error is returned: the update is finished first."""
    try:
      self.sampler.sample_next(step, learning)
    except group_sampler.TooManyFailures as error:
      if hosts.count() == 1:  # several hosts have weights of their own each, which are not saved
        self.sampler.next = dataclasses.replace(self.sampler.next, weights=self.player.engine.weights)
      return error
    return None

  def saved(self) -> dict[str, Any]:
    """The host's part of a checkpoint; the train state is the other part."""
    return {SAMPLER: self.sampler.saved(), ROWS: [*self.packing["lengths"]]}

  def items(self, scored: Sequence[rewards.Scored], step: int, state: TrainState) -> list[packing.Item]:
    """The items to pack; with a teacher, with the weights of its term at this step; or with the gains of turns."""
    player = self.player
    items = teaching.items(scored, player.settings, step, player.recipe, player.tokenizer)
    if self.remote is not None:
      items = teaching.ask_teacher(items, self.remote)
    if not player.settings.advantage.informs:
      return items

    def score(forks: Sequence[packing.Item]) -> list[np.ndarray]:
      return self.learner.scores(state.params, self._packed(forks, routes=0, teacher_prompts=False), forks)

    return information.gained(items, scored, player.settings, player.tokenizer, score)

  def pack(self, parts: Sequence[Sequence[packing.Item]]) -> list[packing.Packed]:
    """The rows of each optimiser step's items. Their lengths are chosen as these need, or checked at the first call."""
    if self.unmeasured is not None and any(parts):
      options = dict(rows=self.packing["rows"], sharing=self.packing["sharing"], **self.unmeasured)
      lengths = self.packing["lengths"]
      choose = row_layout.extend if lengths and not self.given else row_layout.choose
      self.packing["lengths"] = choose(parts, lengths=lengths, **options)
      if self.given:
        self.unmeasured = None
    return [self._packed(part) for part in parts]

  def _packed(self, items: Sequence[packing.Item], **options: Any) -> packing.Packed:
    """The rows of these items; the longest ones, until lengths are chosen."""
    lengths: Any = self.packing["lengths"] or (row_layout.longest(**self.unmeasured or {}),)
    return packing.pack_items(items, **self.packing | dict(lengths=lengths) | options)

  def restore(self, host: Mapping[str, Any], state: TrainState, checkpoints: checkpoint.Checkpoints) -> TrainState:
    """Goes on from a checkpoint's two parts, and its older weights if it has any. Returns the state to train."""
    state = self.learner.resumed(state)
    self.sampler.restore(host[SAMPLER])
    if self.sampler.ahead:
      weights = checkpoints.older_weights(host["step"], lambda: self._load(state, host["step"]))
      self.sampler.next = dataclasses.replace(self.sampler.next, weights=weights)
    self._restore_lengths(host)
    return state

  def _restore_lengths(self, host: Mapping[str, Any]) -> None:
    if not self.given:
      self.packing["lengths"] = tuple(host.get(ROWS, ()))  # checkpoints of 0.2 have none

  def rewind(self, run: run_lib.Run, state: TrainState, guard: rollback.Guard, found: Mapping[str, Any]) -> TrainState:
    """The state of an older checkpoint, to be trained on with the guard's rate and with questions not yet asked.

    The arrays of the present state are freed. `found` has the metrics of the guard's decision.
    """
    state, host = run.rewind(found[rollback.TO], state, found[rollback.WHY])
    self.sampler.forget(host[SAMPLER])
    self._restore_lengths(host)
    self.learner.rate, self.player.recipe = guard.rate, self.recipe
    return self.learner.resumed(state)


def build(prepared: Prepared, run: run_lib.Run | None = None) -> Rooms:
  """The rooms and the settings of a step. All questions are checked before weights and index are read.

  The run compares the contents of questions, models and index with those of its last start, and has the thread in which
  episodes are measured when they end.
  """
  config, recipe = prepared.settings, prepared.recipe
  objective, optimizer = settings_lib.from_config(config), settings_lib.optimizer_from_config(config)
  examples, draws = questions.training(config, recipe, prepared.tokenizer)
  teaching.check_tokens(config, prepared.tokenizer)
  teaching.check_prompts(config, examples)
  question_digests = "" if run is None else contents.of_questions(examples)
  hosts.refuse_different("config.data.train, or hard,", question_digests)
  if run is not None and hosts.is_first():
    found = contents.of_folders(config, recipe.judged)
    found |= {"reward.function": prepared.reward, "recipe.program": contents.of_recipe(config.recipe)}
    run.compare(found | {f"data.{name}": question_digests for name in ("train", "hard") if getattr(config.data, name)})
  rollout, rows, limits = config.rollout, config.learner, config.reward
  penalty = rewards.overlong(limit=limits.overlong_limit, buffer=limits.overlong_buffer)
  scorer = rewards.Scorer(penalty, rollout.filter.metric, prepared.tokenizer)
  taught = config.loss.teacher
  remote = teaching.RemoteTeacher(taught, prepared.tokenizer) if taught.remote else None
  player = player_lib.build(prepared)
  if run is not None and hosts.is_first() and player.retriever is not None:
    run.compare({"retrieval.index": contents.of_retriever(player.retriever)})
  if recipe.paced is not None:
    player.recipe = recipe.paced(len(examples) / rollout.prompts_per_step)
  # Several hosts score copies of the episodes, which they get when all have ended.
  beside = None if run is None or hosts.count() > 1 else run.thread
  measured = lambda episode: scorer.begin(beside, player.recipe, sampler.example(episode), episode)
  sampler = group_sampler.GroupSampler(
    player.rollout,
    examples,
    draws.draw,
    # player.recipe is read at each call, because a recipe whose schedule depends on the run is replaced there.
    lambda *args: scorer.measure(player.recipe, *args),
    prompts_per_step=rollout.prompts_per_step,
    group_size=rollout.group_size,
    filter=group_sampler.Filter(**vars(rollout.filter)),
    max_failed_share=config.retrieval.max_failed_share,
    max_unjudged_share=config.judge.max_failed_share,
    ahead=rollout.ahead > 0,
    on_episode=None if beside is None else measured,
  )
  teacher = teaching.load(config, player.model)
  return Rooms(
    player.recipe,
    player,
    sampler,
    learner_lib.Learner(player.model, objective, optimizer, mesh=player.mesh, teacher=teacher),
    scorer=scorer,
    minibatches=objective.minibatches,
    packing=dict(
      rows=rows.micro_rows,
      lengths=tuple(rows.row_lengths),
      sharing=settings_lib.sharing(prepared.settings, player.config, player.mesh),
      routes=player.config.num_layers * player.config.experts_per_token,
      teacher_prompts=taught.itself,
    ),
    given=bool(rows.row_lengths),
    unmeasured=dict(context=rollout.context, multiple=1 if player.mesh is None else player.mesh.shape["sequence"]),
    remote=remote,
  )


@contextlib.contextmanager
def saving_what_is_done(run: run_lib.Run, step: int, state: Any, rooms: Rooms) -> Iterator[None]:
  """Saves the last finished step before an error ends the run, unless it has a checkpoint already.

  On several hosts it does so only for errors that all hosts raise. For other errors, saving would wait for ever.
  """
  before = copy.copy(rooms.sampler)
  try:
    yield
  except BaseException as error:
    rooms.sampler.close()
    if step and isinstance(error, Exception if hosts.count() == 1 else group_sampler.TooManyFailures):
      run.leave(step, state, rooms.saved() | {SAMPLER: before.saved()})
    raise
