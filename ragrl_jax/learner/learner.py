"""The learner: packed batches in, optimiser steps done, numbers out.

Everything runs in a handful of compiled programs, one set a row length: `score`, `accumulate`, `apply`. Nothing is
compiled after each length was seen once, and the host waits for the device once a step, for the numbers (twice where
a critic or a KL penalty in the reward has to be known before the advantages).
"""

import dataclasses
import functools
from collections.abc import Generator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils

from ragrl_jax.core import kl as kl_lib
from ragrl_jax.learner import advantages as advantages_lib
from ragrl_jax.learner import blocks as blocks_lib
from ragrl_jax.learner import flops, forward, step
from ragrl_jax.learner import optimizer as optimizer_lib
from ragrl_jax.learner.settings import OptimizerSettings, Settings
from ragrl_jax.learner.state import TrainState
from ragrl_jax.learner.trained import Trained
from ragrl_jax.models import lora
from ragrl_jax.models.critic import Critic, ValueParam
from ragrl_jax.parallel import rules
from ragrl_jax.structs import Batch

NOT_SHOWN = ("weight", "pairs", "places", "silent")  # counts that the report leaves out
OF_CRITIC = ("value_loss", "critic_grad_norm", "critic_skipped")


class NonFinite(RuntimeError):
  """Too many steps in a row had a gradient that is not finite."""


@dataclasses.dataclass(frozen=True)
class Ready:
  """One batch of episodes, ready to be trained on.

  Attributes:
    minibatches: blocks on their devices, a list an optimiser step of one epoch.
    host: the same blocks on the host, with their advantages; for logs.
    counts: what each mini-batch's sums are divided by.
    metrics: what was found on the way.
  """

  minibatches: list[list[Batch]]
  host: list[list[Batch]]
  counts: list[dict[str, float]]
  metrics: dict[str, float]


class Learner:
  """Trains one model, or its LoRA adapters if it has any, and its critic if there is one.

  Attributes:
    trained: the model's parameters and programs.
    critic: the same of a critic of its own, None without one.
    params: the model's trained parameters as they came.
    adapters: how many of them are LoRA's; then no others of the policy are trained.
    reference: trained parameters of the frozen policy of the KL term, None if there is none.
  """

  def __init__(
    self,
    model: nnx.Module,
    settings: Settings,
    optimizer: OptimizerSettings,
    *,
    mesh: jax.sharding.Mesh | None = None,
    reference: Any = None,
  ):
    """Builds the programs; nothing is compiled yet.

    Args:
      model: a decoder with `hidden` and `unembedding`; of ShapeDtypeStructs where programs are only compiled: then
        `reference` must be given.
      settings: the objective.
      optimizer: its settings.
      mesh: devices that share rows and parameters; None: one device.
      reference: trained parameters of the reference policy, if the objective needs one; by default the model without
        its adapters, which costs no memory, or, if it has none, a copy of its parameters as they are now.
    """
    s = settings
    self.settings, self.mesh, self.model_config = s, mesh, model.config
    self.learning_rate = optimizer_lib.learning_rate(optimizer)
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
      self.critic = Trained(
        _built(lambda model: Critic(nnx.clone(lora.merged(model))), model),
        optimizer_lib.make(s.critic.optimizer),
        functools.partial(step.value_objective, settings=s),
        names=("loss",),
        mesh=mesh,
        trainable=nnx.Param,
      )
    self.params, self.adapters = self.trained.params, lora.size(model)
    self.reference = reference
    if s.needs_reference and reference is None:
      self.reference = (lora.without if lora.has(model) else functools.partial(jax.tree.map, jnp.copy))(self.params)
    self._score, self._values = jax.jit(self._scored), jax.jit(self._valued)

  def _scored(self, params, frozen, batch):
    model = self.trained.model(params, frozen)
    return forward.scores(
      model.trunk if self._shared else model,
      batch,
      temperature=self.settings.temperature,
      chunk=self.settings.logprob_chunk,
    )[0]

  def _valued(self, params, frozen, batch):
    critic = (self.trained if self._shared else self.critic).model(params, frozen)
    return critic(batch.tokens, batch.positions, batch.segment_ids, batch.prefix_ids)

  def init(self, seed: int) -> TrainState:
    """The state before the first step, from copies of the parameters."""
    state = self.trained.init(self.params, seed)
    if self.critic is None:
      return state
    return dataclasses.replace(state, critic=self.critic.init(self.critic.params, seed))

  def policy(self, params: Any) -> Any:
    """The policy's part of a state's parameters, without a shared critic's head: what engines and exports take."""
    return params["trunk"] if self._shared else params

  def score(self, params: Any, batch: Batch) -> jax.Array:
    """Log-probabilities [R, T] of the tokens under the mask, at the sampler's temperature; zeros elsewhere."""
    return self._score(params, self.trained.frozen, self.place(batch))

  def values(self, state: TrainState, batch: Batch) -> jax.Array:
    """The critic's values [R, T]."""
    params, frozen = state.params, self.trained.frozen
    if self.critic is not None:
      params, frozen = state.critic.params, self.critic.frozen
    return self._values(params, frozen, self.place(batch))

  def update(
    self, state: TrainState, *minibatches: Sequence[Batch], checkpoint: str = ""
  ) -> tuple[TrainState, dict[str, float]]:
    """Trains on one batch of episodes: settings.epochs times one optimiser step a mini-batch.

    Args:
      state: donated: use the one that comes back.
      minibatches: each a list of blocks of packed rows; on several hosts all bring all of them.
      checkpoint: where the last good checkpoint lies, for the message if the run has to stop.

    Returns:
      (state, metrics). Means are over trained tokens of a whole optimiser step; where there are
      several steps, over those too, but for skipped (a sum), nonfinite_in_a_row (the last) and mismatch (the first
      epoch's: later policies are not the one that sampled). If no token at all is trained the state comes back as it
      was, and `tokens` is 0.

    Raises:
      ValueError: no batches, or rows that the mesh does not divide.
      NonFinite: settings.max_nonfinite steps in a row were skipped.
    """
    return drain(self.updating(state, *minibatches, checkpoint=checkpoint))

  def updating(self, state: TrainState, *minibatches: Sequence[Batch], checkpoint: str = "") -> Generator:
    """`update` as a generator that yields after each program it dispatches, for work that is done beside it."""
    ready = yield from self._preparing(state, minibatches)
    return (yield from self.training(state, ready, checkpoint))

  def prepare(self, state: TrainState, *minibatches: Sequence[Batch]) -> Ready:
    """The first half of `update`: the old policy's, the reference's and the critic's numbers, then advantages."""
    return drain(self._preparing(state, minibatches))

  def train(self, state: TrainState, ready: Ready, *, checkpoint: str = "") -> tuple[TrainState, dict[str, float]]:
    """The second half of `update`."""
    return drain(self.training(state, ready, checkpoint))

  def _preparing(self, state, minibatches):
    s = self.settings
    if not minibatches or not all(minibatches):
      raise ValueError("update was given no batches: it needs at least one block, if only of empty rows.")
    filled = [sorted(batches, key=lambda b: -b.tokens.shape[1]) for batches in minibatches]  # longest rows first
    host, found = [batch for batches in filled for batch in batches], []
    for batch in host:
      placed, scored = self.place(batch), {}
      if s.scores_old:
        scored["old_logprobs"] = self.score(state.params, placed)
        yield
      if s.needs_reference:
        scored["ref_logprobs"] = self.score(self.reference, placed)
        yield
      if s.critic.kind != "none":
        scored["values"] = self.values(state, placed)
        yield
      found.append(scored)
    metrics: dict[str, float] = {}
    if s.advantage is not None:
      host, metrics = self._advantages(state, host, found)
    placed = [dataclasses.replace(self.place(batch), **scored) for batch, scored in zip(host, found)]
    sizes = [len(batches) for batches in filled]
    host = blocks_lib.cut(host, sizes)
    return Ready(blocks_lib.cut(placed, sizes), host, [blocks_lib.count(part, s) for part in host], metrics)

  def _advantages(self, state, host, found):
    """The blocks with advantages, from their rewards and from what the device found."""
    s, penalties, values = self.settings, None, None
    fetch = lambda name: [_whole(scored[name]) for scored in found]
    if s.kl != "none" and s.kl_in == "reward":
      coefficient = float(state.kl_coef)
      penalties = [
        coefficient * np.asarray(kl_lib.kl_penalty(old, reference, s.kl, tangent=s.kl_tangent))
        for old, reference in zip(fetch("old_logprobs"), fetch("ref_logprobs"))
      ]
    if s.critic.kind != "none":
      values = fetch("values")
    return advantages_lib.assign(host, s.advantage, values=values, penalties=penalties)

  def training(self, state: TrainState, ready: Ready, checkpoint: str = "") -> Generator:
    """`train` as a generator that yields after each program it dispatches, for work that is done beside it."""
    s = self.settings
    counts = blocks_lib.whole_batch(ready.counts)
    if not counts["tokens"]:
      return state, dict.fromkeys(step.SUMS, 0.0) | ready.metrics | self._counted(counts)
    alone = s.critic.alone_steps - int(state.critic.step) if s.critic.alone_steps else 0
    found, of_critic = [], []
    parts = [(blocks, count) for blocks, count in zip(ready.minibatches, ready.counts) if count["tokens"]]
    for number, (blocks, count) in enumerate(parts * s.epochs):
      totals = np.asarray([count["weight"], count["sequences"]], np.float32)
      if self.critic is not None:
        critic, metrics = yield from self.critic.steps(state.critic, blocks, totals)
        state = dataclasses.replace(state, critic=critic)
        of_critic.append(metrics)
      if number >= alone:
        critic, policy = state.critic, dataclasses.replace(state, critic=None)
        policy, metrics = yield from self.trained.steps(policy, blocks, totals)
        state = dataclasses.replace(policy, critic=critic)
        found.append(metrics)
    found, of_critic, done = jax.device_get((found, of_critic, state.step))
    _refuse_nonfinite(found, self.trained.params, s, checkpoint)
    if self.critic is not None:
      _refuse_nonfinite(of_critic, self.critic.params, s, checkpoint, what="critic: ")
    metrics = self._numbers(found, len(parts), int(done)) | _critic_numbers(of_critic)
    metrics |= ready.metrics | self._counted(counts) | dict(kl_coef=float(state.kl_coef))
    return self._steered(state, metrics), metrics

  def _numbers(self, found, per_epoch: int, done: int) -> dict[str, float]:
    """Means over the optimiser steps that the policy took."""
    if not found:
      return dict.fromkeys((*step.SUMS, "grad_norm", "update_norm", "skipped", "nonfinite_in_a_row"), 0.0)
    mean = lambda name, part=found: float(np.mean([m[name] for m in part]))
    metrics = {name: mean(name) for name in found[0] if name != "bad_gradients"}
    return metrics | dict(
      mismatch=mean("mismatch", found[:per_epoch]),
      skipped=float(sum(m["skipped"] for m in found)),
      nonfinite_in_a_row=float(found[-1]["nonfinite_in_a_row"]),
      optimizer_step=float(done),
      learning_rate=float(self.learning_rate(max(done - 1, 0))),
    )

  def _steered(self, state: TrainState, metrics: dict[str, float]) -> TrainState:
    """The state with the KL coefficient that the adaptive controller wants next."""
    s = self.settings
    if not s.kl_target:
      return state
    coefficient = kl_lib.adapted_coefficient(
      float(state.kl_coef),
      metrics["kl"],
      target=s.kl_target,
      horizon=s.kl_horizon,
      num_sequences=int(metrics["sequences"]),
    )
    return dataclasses.replace(state, kl_coef=jax.device_put(np.float32(coefficient), state.kl_coef.sharding))

  def place(self, batch: Batch) -> Batch:
    """The batch on the mesh's devices, rows spread over them."""
    if self.mesh is None:
      return batch
    rows, ways = batch.tokens.shape[0], rules.ways(self.mesh, rules.MESH_AXES["batch"])
    if rows % ways:
      raise ValueError(
        f"{rows} rows a block cannot be spread over {ways} devices: config.learner.micro_rows must be a multiple of "
        "config.mesh.data * config.mesh.fsdp."
      )
    at = rules.batch_sharding(self.mesh)
    # By global index: devices of several hosts may share rows.
    one = lambda x: x if isinstance(x, jax.Array) else jax.make_array_from_callback(x.shape, at, lambda i: x[i])
    return jax.tree.map(one, batch)

  def _counted(self, counts) -> dict[str, float]:
    """What the report shows of the totals, the operations they need among them."""
    s = self.settings
    needed = flops.update(
      self.model_config,
      s,
      tokens=counts["packed_tokens"],
      pairs=counts["pairs"],
      scored=counts["tokens"],
      adapters=self.adapters,
    )
    return {name: float(x) for name, x in counts.items() if name not in NOT_SHOWN} | dict(flops=needed)


def drain(steps: Generator) -> Any:
  """Runs a generator to its end; what it returns."""
  while True:
    try:
      next(steps)
    except StopIteration as end:
      return end.value


def _critic_numbers(found) -> dict[str, float]:
  if not found:
    return {}
  mean = lambda name: float(np.mean([m[name] for m in found]))
  return dict(zip(OF_CRITIC, (mean("loss"), mean("grad_norm"), float(sum(m["skipped"] for m in found)))))


def _refuse_nonfinite(found, params, settings: Settings, checkpoint: str, what: str = "") -> None:
  """Stops the run when too many steps in a row were skipped."""
  bad = [m for m in found if m["nonfinite_in_a_row"] >= settings.max_nonfinite]
  if not bad:
    return
  last = bad[-1]
  names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
  where = [name for name, is_bad in zip(names, last["bad_gradients"]) if is_bad]
  raise NonFinite(
    f"{what}{last['nonfinite_in_a_row']:.0f} optimiser steps in a row had a gradient that is not finite (loss "
    f"{float(last['loss'])}, {len(where)} of {len(names)} parameters, first {', '.join(where[:3]) or 'none'}). "
    f"None of them was applied. Last good checkpoint: {checkpoint or 'none yet'}. Lower "
    "config.optimizer.learning_rate or raise config.loss.kl_coef, and start again from it."
  )


def _whole(x: jax.Array) -> np.ndarray:
  """An array that may be spread over several hosts."""
  return np.asarray(x if x.is_fully_addressable else multihost_utils.process_allgather(x, tiled=True))


def _built(make, model: nnx.Module) -> nnx.Module:
  """make(model); of a model of ShapeDtypeStructs, whose programs are only compiled, one of ShapeDtypeStructs."""
  abstract = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(nnx.state(model)))
  return nnx.eval_shape(make, model) if abstract else make(model)
