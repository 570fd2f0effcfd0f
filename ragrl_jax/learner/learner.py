"""The learner: sequences → optimiser steps and metrics. It has two halves, called one after the other:

  ready = learner.prepare(state, minibatches, pack)       # advantages, packed rows and their scores
  state, metrics = drain(learner.train(state, ready))     # optimiser steps; a generator, for work done beside it

Everything runs in a few compiled programs, one set per row length: `score`, `accumulate`, `apply`. After each length
has been used once, nothing is compiled. The host waits for the device once per step, for the metrics (twice if a critic
or a KL penalty in the reward must be computed before the advantages).
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Generator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils

from ragrl_jax.core import kl as kl_lib
from ragrl_jax.learner import (
  advantages as advantages_lib,
  blocks as blocks_lib,
  flops,
  forward,
  optimizer as optimizer_lib,
  packing,
  step,
)
from ragrl_jax.learner.settings import AdvantageSettings, OptimizerSettings, Settings
from ragrl_jax.learner.state import TrainState
from ragrl_jax.learner.teacher import Teacher
from ragrl_jax.learner.trained import Trained
from ragrl_jax.models import lora
from ragrl_jax.models.decoder import Critic, Decoder, ValueParam
from ragrl_jax.parallel import hosts, rules
from ragrl_jax.structs import Batch, TeacherRows

NOT_SHOWN = ("weight", "pairs", "places", "silent", "favoured", "scored")  # counts that are not reported
OF_CRITIC = ("value_loss", "critic_grad_norm", "critic_skipped")


class NonFinite(RuntimeError):
  """Too many steps in succession had a gradient that is not finite."""


@dataclasses.dataclass(frozen=True)
class Ready:
  """One batch of episodes, ready to be trained on.

  Attributes:
    minibatches: blocks on their devices, one list per optimiser step of an epoch.
    items: of all mini-batches, with their advantages; for logs.
    counts: the divisors of each mini-batch's sums.
    metrics: measured by `prepare`.
    teacher_rows: the blocks as the teacher reads them; None: as they are.
  """

  minibatches: list[list[Batch]]
  items: list[packing.Item]
  counts: list[dict[str, float]]
  metrics: dict[str, float]
  teacher_rows: list[list[TeacherRows | None]]


class Learner:
  """Trains one model, or only its LoRA adapters if it has any, and its critic if there is one.

  Attributes:
    trained: the policy's parameters and programs.
    critic: parameters and programs of a separate critic; None without one.
    adapters: number of LoRA's parameters. If there are any, no other parameters of the policy are trained.
    reference: trained parameters of the frozen policy of the KL term; None without one.
    rate: multiplies the policy's learning rate; a separate critic keeps its own.
    teacher: a frozen model that the policy is pulled to; None without one.
  """

  def __init__(
    self,
    model: Decoder,
    settings: Settings,
    optimizer: OptimizerSettings,
    *,
    mesh: jax.sharding.Mesh | None = None,
    reference: Any = None,
    teacher: Decoder | None = None,
  ):
    """Builds the programs; nothing is compiled yet.

    Args:
      model: a decoder with `hidden` and `unembedding`. It may consist of ShapeDtypeStructs if programs are only
        compiled; `reference` must then be given.
      mesh: devices that share rows and parameters; None: one device.
      reference: trained parameters of the reference policy, if the objective needs one. By default the model's present
        parameters, those arrays and not a copy; with settings.reference "base" the model without its adapters.
      teacher: the model of settings.teacher, see `Teacher`.
    """
    s = settings
    self.settings, self.mesh, self.model_config, self.rate = s, mesh, model.config, 1.0
    self.learning_rate = jax.jit(optimizer_lib.learning_rate(optimizer))
    # A shared critic wraps the policy: one tree with the head beside the trunk, and one gradient of both losses.
    self._shared = s.critic.kind == "shared"
    self.trained = Trained(
      _built(Critic, model) if self._shared else model,
      optimizer_lib.make(optimizer, head=s.critic.optimizer if self._shared else None),
      functools.partial(step.policy_objective, settings=s),
      names=step.SUMS,
      kl_coef=s.kl_coef,
      mesh=mesh,
      trainable=nnx.Any(lora.trainable(model), ValueParam),
    )
    self.critic = None
    if s.critic.kind == "own":
      # It starts as a copy of the policy with merged adapters. All its parameters are trained, so they are float32.
      self.critic = Trained(
        _built(lambda model: Critic(_as_float32(nnx.clone(lora.merged(model, jnp.float32)))), model),
        optimizer_lib.make(s.critic.optimizer),
        functools.partial(step.value_objective, settings=s),
        names=("loss",),
        mesh=mesh,
        trainable=nnx.Param,
      )
    self.teacher, self._teacher_config = None, model.config
    if teacher is not None:
      self.teacher, self._teacher_config = Teacher.of(teacher, s), teacher.config
    if s.teacher.itself:
      self.teacher = Teacher(lambda params: self._decoder(*params), None, s)
    self.adapters = lora.size(model)
    self.reference = reference
    # The initial parameters, of which the state gets a copy: stored adapters and merged ones have one reference.
    if s.needs_reference and reference is None:
      self.reference = lora.without(self.params) if s.reference == "base" else self.params
    self._score, self._values = jax.jit(self._scored), jax.jit(self._valued)

  def _decoder(self, params, frozen):
    """The policy alone, without a shared critic's head."""
    model = self.trained.model(params, frozen)
    return model.trunk if self._shared else model

  def _scored(self, params, frozen, batch):
    return forward.scores(
      self._decoder(params, frozen), batch, temperature=self.settings.temperature, chunk=self.settings.logprob_chunk
    )[0]

  def _valued(self, params, frozen, batch):
    critic = (self.critic or self.trained).model(params, frozen)  # a shared critic is part of the policy's tree
    # A shared critic's trunk is the policy, whose experts were recorded.
    return forward.values(critic, batch if self._shared else dataclasses.replace(batch, routes=None))

  @property
  def params(self) -> Any:
    """The initial trained parameters; only their shapes after `init(keep=False)` has handed them over."""
    return self.trained.params

  def init(self, seed: int, *, keep: bool = True) -> TrainState:
    """The state before the first step.

    Args:
      keep: copy the parameters, so that model and learner keep theirs, and `init` can be called again. Without copying,
        the state takes over the parameters themselves, except those of the reference. A run does this, because the
        initial parameters would otherwise occupy memory until its end.

    Raises:
      ValueError: the parameters were handed over to an earlier state.
    """
    params = (self.params, None if self.critic is None else self.critic.params)
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(params)):
      raise ValueError("the parameters were handed over to a state: `init` can be called again after keep=True only.")
    # The critic first, and from copies, because a new critic shares its trunk's arrays with the policy.
    critic = None if self.critic is None else self.critic.init(self.critic.params, seed)
    if self.critic is not None and not keep:
      self.critic.forget()
    keep = keep or self.reference is self.params
    state = self.trained.init(self.params, seed) if keep else self.trained.start(seed)
    return dataclasses.replace(state, critic=critic)

  def policy(self, params: Any) -> Any:
    """The policy's part of a state's parameters, without a shared critic's head: for engines and exports."""
    return params["trunk"] if self._shared else params

  def score(self, params: Any, batch: Batch) -> jax.Array:
    """Log-probabilities [R, T] of the tokens under the mask, at the sampler's temperature; zeros elsewhere."""
    return self._score(params, self.trained.frozen, self.place(batch))

  def scores(self, params: Any, packed: packing.Packed, items: Sequence[packing.Item]) -> list[np.ndarray]:
    """`score` of the tokens of each of the packed items, on the host."""
    scores_of_blocks = [self.score(params, block) for block in packed.blocks]
    return packed.of_items([_to_host(scores) for scores in scores_of_blocks], items)

  def values(self, state: TrainState, batch: Batch) -> jax.Array:
    """The critic's values [R, T]."""
    params, frozen = state.params, self.trained.frozen
    if self.critic is not None:  # otherwise the shared critic's, whose head is among the policy's parameters
      params, frozen = state.critic.params, self.critic.frozen
    return self._values(params, frozen, self.place(batch))

  def prepare(
    self,
    state: TrainState,
    minibatches: Sequence[Sequence[packing.Item]],
    pack: Callable[[Sequence[Sequence[packing.Item]]], Sequence[packing.Packed]],
  ) -> Ready:
    """Turns rewards into advantages, packs the items, and scores the rows with old policy, reference and critic.

    Args:
      state: before the update.
      minibatches: the items of each optimiser step. On several hosts every host passes all of them.
      pack: mini-batches → their rows.

    Raises:
      ValueError: no blocks, rows that the mesh does not divide, or a reward that is not finite.
    """
    s = self.settings
    advantage, items, metrics = s.advantage, [item for part in minibatches for item in part], {}
    if advantage is not None and not s.scores_first:  # None: the items have SFT's weights already
      items, _, metrics = advantages_lib.assign(items, advantage)
    parts = pack(blocks_lib.cut(items, [len(part) for part in minibatches]))
    if not parts or not all(part.blocks for part in parts):
      raise ValueError("the learner got no batches: it needs at least one block, which may have only empty rows.")
    packed = packing.join(parts)
    blocks, placed = packed.blocks, [self._with_scores(state, self.place(block)) for block in packed.blocks]
    at = None if self.mesh is None else rules.batch_sharding(self.mesh)
    teacher_rows = [hosts.put(rows, at) for rows in packed.teacher_rows] or [None] * len(blocks)
    if advantage is not None and s.scores_first:
      items, returns, metrics = self._advantages(advantage, state, items, packed, placed, teacher_rows)
      columns = [packed.column(x) for x in ([item.advantages for item in items], returns)]
      write = lambda batches: [dataclasses.replace(b, advantages=a, returns=r) for b, a, r in zip(batches, *columns)]
      blocks, placed = write(blocks), [self.place(block) for block in write(placed)]
    if not all(item.trained for item in items):
      on = packed.column([np.full(len(item.tokens), item.trained) for item in items])
      blocks = [dataclasses.replace(b, loss_mask=b.loss_mask & (trained > 0)) for b, trained in zip(blocks, on)]
      placed = [self.place(dataclasses.replace(p, loss_mask=b.loss_mask)) for p, b in zip(placed, blocks)]
    sizes = [len(part.blocks) for part in parts]
    counts = [blocks_lib.count(part, s) for part in blocks_lib.cut(blocks, sizes)]
    return Ready(blocks_lib.cut(placed, sizes), items, counts, metrics, blocks_lib.cut(teacher_rows, sizes))

  def _with_scores(self, state: TrainState, block: Batch) -> Batch:
    """The block with what the update needs; scores stay on the devices."""
    s, scores = self.settings, {}
    if s.scores_old:  # with a single step it is not needed: the current policy is the old one
      scores["old_logprobs"] = self.score(state.params, block)
    if s.needs_reference:
      scores["ref_logprobs"] = self.score(self.reference, block)
    if s.critic.kind != "none":
      scores["values"] = self.values(state, block)
    return dataclasses.replace(block, **scores)

  def _advantages(self, how: AdvantageSettings, state: TrainState, items, packed: packing.Packed, placed, teacher_rows):
    """See `advantages.assign`: with a critic's values, or a KL penalty in the reward, copied to the host."""
    s, penalties, values = self.settings, None, None
    of_items = lambda arrays: packed.of_items(arrays, items)
    # Penalties are subtracted at each token before returns are summed, as in PPO with a per-token KL in the reward.
    if s.kl != "none" and s.kl_in == "reward":
      coefficient = float(state.kl_coef)
      penalty = lambda block: _penalty(block.old_logprobs, block.ref_logprobs, s.kl, tangent=s.kl_tangent)
      penalties = of_items([coefficient * _to_host(penalty(block)) for block in placed])
    teacher_metrics: dict[str, float] = {}
    if s.teacher.in_reward:
      gaps = self._gaps(state, items, placed, teacher_rows, of_items)
      pulls = [item.teaching * gap for item, gap in zip(items, gaps)]
      penalties = pulls if penalties is None else [a + b for a, b in zip(penalties, pulls)]
      tokens = max(sum(item.loss_mask[1:].sum() for item in items), 1)
      taught_gaps = [gap[item.teaching > 0] for item, gap in zip(items, gaps)]
      teacher_metrics["teacher_kl"] = float(sum(gap.sum() for gap in taught_gaps) / tokens)
      teacher_metrics["taught"] = float(sum(gap.size for gap in taught_gaps) / tokens)
    if s.critic.kind != "none":
      values = of_items([_to_host(block.values) for block in placed])
    items, returns, metrics = advantages_lib.assign(items, how, values=values, penalties=penalties)
    return items, returns, metrics | teacher_metrics

  def _gaps(self, state: TrainState, items, placed, teacher_rows, of_items) -> list[np.ndarray]:
    """For each item's tokens the policy's log-probability minus its teacher's."""
    if self.teacher is None:  # behind a server, which has been asked
      old = of_items([_to_host(block.old_logprobs) for block in placed])
      return [logprobs - item.teacher_logprobs for logprobs, item in zip(old, items)]
    params = (state.params, self.trained.frozen) if self.settings.teacher.itself else None
    pairs = zip(placed, teacher_rows)
    return of_items([_to_host(block.old_logprobs - self.teacher.score(block, rows, params)) for block, rows in pairs])

  def train(
    self, state: TrainState, ready: Ready, *, checkpoint: str = ""
  ) -> Generator[Any, None, tuple[TrainState, dict[str, float]]]:
    """Trains on one batch of episodes: settings.epochs times one optimiser step per mini-batch.

    A generator. It yields after each program that it dispatches, so that other work can be done in between
    (rollout/dispatch.Work); `drain` runs it to its end.

    Args:
      state: donated, so use the returned one.
      ready: from `prepare`, with the same state.
      checkpoint: the last good checkpoint, for the message if the run has to stop.

    Returns:
      (state, metrics). Means are over the trained tokens of an optimiser step, and over the steps if there are several.
      Exceptions: skipped (a sum) and nonfinite_in_a_row (the last one). If no token is trained, the state is unchanged,
      `tokens` is 0, and measures of the policy are left out.

    Raises:
      NonFinite: settings.max_nonfinite steps in succession were skipped.
    """
    s = self.settings
    counts = blocks_lib.whole_batch(ready.counts)
    # Without trained tokens there is no step: AdamW would change parameters even for a gradient of zeros.
    if not counts["tokens"]:
      return state, ready.metrics | self._totals(counts) | self._numbers([], int(state.step))
    # The first optimiser steps train only the critic. Steps that it has taken in earlier updates count.
    critic_only = s.critic.alone_steps - int(state.critic.step) if s.critic.alone_steps else 0
    policy_metrics, critic_metrics, taken = [], [], []
    teacher, start = self.teacher if s.teacher.in_loss else None, None
    if teacher is not None and s.teacher.itself:  # a step donates the parameters that it begins with
      start = state.params if s.steps == 1 else jax.tree.map(jnp.copy, state.params), self.trained.frozen
    # 2 mini-batches A, B and 2 epochs: steps on A B A B. A mini-batch without scores takes no step.
    parts = [part for part in zip(ready.minibatches, ready.teacher_rows, ready.counts) if part[2]["tokens"]]
    for number, (blocks, teacher_rows, count) in enumerate(parts * s.epochs):
      # One denominator for all blocks of the step, so the loss does not depend on how the rows are divided.
      totals = np.asarray([count["weight"], count["sequences"]], np.float32)
      if self.critic is not None:
        critic, metrics = yield from self.critic.steps(state.critic, blocks, totals)
        state = dataclasses.replace(state, critic=critic)
        critic_metrics.append(metrics)
      if number >= critic_only:
        # The critic is removed, so that the policy's programs have the same arguments with and without one.
        critic, policy = state.critic, dataclasses.replace(state, critic=None)
        taught = None if teacher is None else (teacher(block, rows, start) for block, rows in zip(blocks, teacher_rows))
        policy, metrics = yield from self.trained.steps(policy, blocks, totals, self.rate, taught=taught)
        state = dataclasses.replace(policy, critic=critic)
        policy_metrics.append(metrics)
        taken.append(count)
    # The host waits for the device here, once. Everything above was only dispatched.
    policy_metrics, critic_metrics, steps_done = jax.device_get((policy_metrics, critic_metrics, state.step))
    _refuse_nonfinite(policy_metrics, self.trained.params, s, checkpoint)
    if self.critic is not None:
      _refuse_nonfinite(critic_metrics, self.critic.params, s, checkpoint, what="critic: ")
    metrics = self._numbers(policy_metrics, int(steps_done)) | _critic_numbers(critic_metrics)
    if "fallen_tokens" in metrics:  # the programs divide by all tokens of a step
      fallen = sum(float(m["fallen_tokens"]) * count["tokens"] for m, count in zip(policy_metrics, taken))
      metrics["fallen_tokens"] = fallen / max(sum(count["favoured"] for count in taken), 1)
    metrics |= ready.metrics | self._totals(counts) | dict(kl_coef=float(state.kl_coef))
    return self._steered(state, metrics), metrics

  def _numbers(self, metrics, done: int) -> dict[str, float]:
    """Means over the optimiser steps that the policy took; if it took none, no measure of the policy."""
    if not metrics:
      return dict(skipped=0.0, nonfinite_in_a_row=0.0)
    names = step.computed(self.settings) | {"grad_norm", "update_norm"}
    return {name: float(np.mean([m[name] for m in metrics])) for name in sorted(names)} | dict(
      skipped=float(sum(m["skipped"] for m in metrics)),
      nonfinite_in_a_row=float(metrics[-1]["nonfinite_in_a_row"]),
      optimizer_step=float(done),
      # of the last step, counted from 0
      learning_rate=self.rate * float(self.learning_rate(jax.device_put(max(done - 1, 0)))),
    )

  def _steered(self, state: TrainState, metrics: dict[str, float]) -> TrainState:
    """The state with the next KL coefficient of the adaptive controller."""
    s = self.settings
    # Without a measured KL the coefficient stays: the step was skipped, or only the critic learned.
    if not s.kl_target or not math.isfinite(metrics.get("kl", math.nan)):
      return state
    coefficient = kl_lib.adapted_coefficient(
      float(state.kl_coef), metrics["kl"], target=s.kl_target, num_sequences=int(metrics["sequences"])
    )
    return _weighed(state, coefficient)

  def resumed(self, state: TrainState) -> TrainState:
    """A restored state with the settings' KL coefficient, which may have changed since; an adaptive one is kept."""
    adaptive = self.settings.kl_target and float(state.kl_coef) > 0  # 0 is of a run that had no penalty, and would stay
    return state if adaptive else _weighed(state, self.settings.kl_coef)

  def place(self, batch: Batch) -> Batch:
    """The batch on the devices, rows spread over those of the mesh; arrays on devices stay where they are."""
    if self.mesh is None:
      return hosts.put(batch, None)
    rows, ways = batch.tokens.shape[0], rules.ways(self.mesh, rules.MESH_AXES["batch"])
    if rows % ways:
      raise ValueError(
        f"{rows} rows a block cannot be spread over {ways} devices: config.learner.micro_rows must be a multiple of "
        "config.mesh.data * config.mesh.fsdp."
      )
    if batch.tokens.shape[1] % self.mesh.shape["sequence"]:
      raise ValueError(
        f"{batch.tokens.shape[1]} tokens a row cannot be spread over {self.mesh.shape['sequence']} devices: "
        "config.learner.row_lengths must be multiples of config.mesh.sequence."
      )
    return hosts.put(batch, rules.batch_sharding(self.mesh))  # rows over data and fsdp, tokens over sequence

  def _totals(self, counts) -> dict[str, float]:
    """Reported totals, including FLOPs."""
    s = self.settings
    sizes = dict(tokens=counts["packed_tokens"], pairs=counts["pairs"], scored=counts["scored"])
    operations = flops.update(self.model_config, s, adapters=self.adapters, **sizes)
    operations += flops.teacher(self._teacher_config, s, **sizes)
    return {name: float(x) for name, x in counts.items() if name not in NOT_SHOWN} | dict(flops=operations)


def _weighed(state: TrainState, coefficient: float) -> TrainState:
  return dataclasses.replace(state, kl_coef=jax.device_put(np.float32(coefficient), state.kl_coef.sharding))


def drain(steps: Generator) -> Any:
  """Runs a generator to its end and returns its result."""
  while True:
    try:
      next(steps)
    except StopIteration as end:
      return end.value


def _critic_numbers(metrics) -> dict[str, float]:
  if not metrics:
    return {}
  mean = lambda name: float(np.mean([m[name] for m in metrics]))
  return dict(zip(OF_CRITIC, (mean("loss"), mean("grad_norm"), float(sum(m["skipped"] for m in metrics)))))


def _refuse_nonfinite(metrics, params, settings: Settings, checkpoint: str, what: str = "") -> None:
  """Stops the run if too many steps in succession were skipped."""
  bad = [m for m in metrics if m["nonfinite_in_a_row"] >= settings.max_nonfinite]
  if not bad:
    return
  last = bad[-1]
  # `bad_gradients` is in the order of the leaves, so the message can name the parameters to look at.
  names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
  where = [name for name, is_bad in zip(names, last["bad_gradients"]) if is_bad]
  kl = " or raise config.loss.kl_coef" if settings.needs_reference and settings.kl_in == "loss" and not what else ""
  raise NonFinite(
    f"{what}{last['nonfinite_in_a_row']:.0f} optimiser steps in a row had a gradient or an update that is not finite "
    f"(loss {float(last['loss'])}, {len(where)} of {len(names)} parameters, first {', '.join(where[:3]) or 'none'}). "
    f"None of them was applied. Last good checkpoint: {checkpoint or 'none yet'}. Lower "
    f"config.{'critic' if what else 'optimizer'}.learning_rate{kl}, and start again from it."
  )


_penalty = jax.jit(kl_lib.kl_penalty, static_argnums=2, static_argnames="tangent")


def _to_host(x: jax.Array) -> np.ndarray:
  """An array that may be distributed over several hosts."""
  return jax.device_get(x) if x.is_fully_addressable else multihost_utils.process_allgather(x, tiled=True)


def _as_float32(model: Decoder) -> Decoder:
  """The model with parameters of 32 bits; a base that only adapters change may have fewer."""
  nnx.update(model, jax.tree.map(lambda leaf: leaf.astype(jnp.float32), nnx.state(model, nnx.Param)))
  return model


def _built(make, model: nnx.Module) -> nnx.Module:
  """make(model). For a model of ShapeDtypeStructs (its programs are only compiled) the result has these too."""
  # The planner compiles models that do not fit into this machine's memory: their parameters have shapes but no values.
  abstract = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(nnx.state(model)))
  return nnx.eval_shape(make, model) if abstract else make(model)
