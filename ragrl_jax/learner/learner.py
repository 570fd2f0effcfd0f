"""The learner: packed batches in, one optimiser step done, numbers out.

Everything runs in a handful of compiled programs, one set a row length: `score`, `accumulate`, `apply`. Nothing is
compiled after each length was seen once, and the host waits for the device once a step, for the numbers.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils

from ragrl_jax.learner import flops, scoring, step
from ragrl_jax.learner import optimizer as optimizer_lib
from ragrl_jax.learner import state as state_lib
from ragrl_jax.learner.settings import OptimizerSettings, Settings
from ragrl_jax.learner.state import TrainState
from ragrl_jax.parallel import rules
from ragrl_jax.structs import Batch


class NonFinite(RuntimeError):
  """Too many steps in a row had a gradient that is not finite."""


class Learner:
  """Trains one model.

  Attributes:
    graphdef: the model without its parameters.
    params: those it came with; `init` copies them, for an update donates its state.
    reference: the frozen policy of the KL term, None if there is none.
  """

  def __init__(
    self, model: nnx.Module, settings: Settings, optimizer: OptimizerSettings, *, mesh: jax.sharding.Mesh | None = None,
    reference: Any = None,
  ):
    """Builds the programs; nothing is compiled yet.

    Args:
      model: a decoder with `hidden` and `unembedding`.
      settings: the objective.
      optimizer: its settings.
      mesh: devices that share rows and parameters; None: one device.
      reference: parameters of the reference policy; the model's own, as they are now, if the objective needs one.
    """
    self.settings, self.optimizer_settings, self.mesh = settings, optimizer, mesh
    self.model_config = model.config
    self.graphdef, self.params = nnx.split(model)
    self.optimizer = optimizer_lib.make(optimizer)
    self.learning_rate = optimizer_lib.learning_rate(optimizer)
    if mesh is not None:
      _check_hosts(mesh)
      self.params = jax.device_put(self.params, rules.shardings(mesh, self.params))
    self.reference = reference
    if settings.needs_reference and reference is None:
      self.reference = jax.tree.map(jnp.copy, self.params)
    self._build()

  def _build(self):
    s, graphdef = self.settings, self.graphdef
    make = lambda params, seed: state_lib.init(params, self.optimizer, seed)
    params_at = state_at = None
    if self.mesh is not None:
      state = jax.eval_shape(lambda p: make(p, 0), self.params)
      params_at, state_at = rules.shardings(self.mesh, self.params), self._state_shardings(state)
    sums_at = None if self.mesh is None else jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())
    out = lambda *shardings: {} if self.mesh is None else dict(out_shardings=shardings)
    copied = lambda p, seed: make(jax.tree.map(jnp.copy, p), seed)
    self._init = jax.jit(copied, static_argnums=1, **({} if state_at is None else dict(out_shardings=state_at)))
    self._zeros = jax.jit(step.zeros, **out(params_at, sums_at))
    self._accumulate = jax.jit(
      lambda grads, sums, params, batch, totals: step.accumulate(grads, sums, params, batch, totals, graphdef, s),
      donate_argnums=(0, 1), **out(params_at, sums_at))
    self._apply = jax.jit(
      lambda state, grads, sums: step.apply(state, grads, sums, self.optimizer), donate_argnums=0,
      **out(state_at, sums_at))
    self._score = jax.jit(lambda params, batch: scoring.scores(
      nnx.merge(graphdef, params), batch, temperature=s.temperature, chunk=s.logprob_chunk)[0])

  def _state_shardings(self, state: TrainState) -> TrainState:
    whole = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())
    return TrainState(
      params=rules.shardings(self.mesh, state.params), opt_state=rules.shardings(self.mesh, state.opt_state),
      step=whole, rng=whole, nonfinite=whole, skipped=whole)

  def init(self, seed: int) -> TrainState:
    """The state before the first step, from a copy of the model's parameters."""
    return self._init(self.params, seed)

  def score(self, params: Any, batch: Batch) -> jax.Array:
    """Log-probabilities [R, T] of the tokens under the mask, at the sampler's temperature; zeros elsewhere."""
    return self._score(params, self.place(batch))

  def update(
    self, state: TrainState, batches: Sequence[Batch], *, checkpoint: str = "",
  ) -> tuple[TrainState, dict[str, float]]:
    """Trains on one batch of episodes, cut into blocks: settings.updates_per_batch optimiser steps.

    Args:
      state: donated: use the one that comes back.
      batches: blocks of packed rows, of this host's episodes.
      checkpoint: where the last good checkpoint lies, for the message if the run has to stop.

    Returns:
      (state, metrics). Means are over trained tokens of the whole step, over all hosts. Where there are several
      optimiser steps they are the last one's, but for skipped (a sum) and mismatch (the first's). If no token at all
      is trained the state comes back as it was, and `tokens` is 0.

    Raises:
      ValueError: no batches, or rows that the mesh does not divide.
      NonFinite: settings.max_nonfinite steps in a row were skipped.
    """
    if not batches:
      raise ValueError("update was given no batches: it needs at least one block, if only of empty rows.")
    counts = count(batches, self.settings)
    if not counts["tokens"]:
      return state, dict.fromkeys(step.SUMS, 0.0) | self._counted(counts)
    totals = np.asarray([counts["weight"], counts["sequences"]], np.float32)
    blocks = [self._prepare(state.params, batch) for batch in fill_up(batches)]
    found = []
    for _ in range(self.settings.updates_per_batch):
      grads, sums = self._zeros(state.params)
      for block in blocks:
        grads, sums = self._accumulate(grads, sums, state.params, block, totals)
      state, metrics = self._apply(state, grads, sums)
      found.append(metrics)
    return state, self._numbers(jax.device_get((found, state.step)), counts, checkpoint)

  def _prepare(self, params: Any, batch: Batch) -> Batch:
    """The block on its devices, with the old and the reference policy's log-probabilities where they are needed."""
    batch = self.place(batch)
    if self.settings.objective == "policy" and not self.settings.on_policy:
      batch = dataclasses.replace(batch, old_logprobs=self._score(params, batch))
    if self.settings.needs_reference:
      batch = dataclasses.replace(batch, ref_logprobs=self._score(self.reference, batch))
    return batch

  def place(self, batch: Batch) -> Batch:
    """The batch on the mesh's devices, rows spread over them; each host brings its own rows."""
    if self.mesh is None:
      return batch
    spec = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec(
      rules.MESH_AXES["batch"], rules.MESH_AXES["length"]))
    rows, ways = batch.tokens.shape[0] * jax.process_count(), rules.ways(self.mesh, rules.MESH_AXES["batch"])
    if rows % ways:
      raise ValueError(
        f"{rows} rows a block cannot be spread over {ways} devices: config.learner.micro_rows, times the hosts, must "
        "be a multiple of config.mesh.data * config.mesh.fsdp.")
    one = lambda x: x if isinstance(x, jax.Array) else jax.make_array_from_process_local_data(spec, x)
    return jax.tree.map(one, batch)

  def _numbers(self, fetched, counts, checkpoint) -> dict[str, float]:
    found, steps = fetched
    bad = found[-1]["bad_gradients"]
    metrics = {name: float(x) for name, x in found[-1].items() if name != "bad_gradients"}
    metrics |= dict(
      mismatch=float(found[0]["mismatch"]),  # only the first step's policy is the one that sampled
      skipped=float(sum(m["skipped"] for m in found)), optimizer_step=float(steps),
      learning_rate=float(self.learning_rate(max(int(steps) - 1, 0)))) | self._counted(counts)
    if metrics["nonfinite_in_a_row"] >= self.settings.max_nonfinite:
      names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(self.params)]
      where = [name for name, is_bad in zip(names, bad) if is_bad]
      raise NonFinite(
        f"{metrics['nonfinite_in_a_row']:.0f} optimiser steps in a row had a gradient that is not finite (loss "
        f"{metrics['loss']}, {len(where)} of {len(names)} parameters, first {', '.join(where[:3]) or 'none'}). "
        f"None of them was applied. Last good checkpoint: {checkpoint or 'none yet'}. Lower "
        "config.optimizer.learning_rate or raise config.loss.kl_coef, and start again from it.")
    return metrics


  def _counted(self, counts) -> dict[str, float]:
    """What the report shows of the totals, the operations they need among them."""
    s = self.settings
    passes = s.needs_reference + (s.objective == "policy" and not s.on_policy)
    needed = flops.train(
      self.model_config, tokens=counts["packed_tokens"], pairs=counts["pairs"], scored=counts["tokens"],
      passes=passes, steps=s.updates_per_batch)
    return {name: float(x) for name, x in counts.items() if name not in ("weight", "pairs")} | dict(flops=needed)


def _check_hosts(mesh: jax.sharding.Mesh) -> None:
  """Each host brings its own rows, so the devices that share rows must all be one host's.

  Raises:
    ValueError: tensor or sequence parallelism that reaches over hosts.
  """
  grid = mesh.devices.reshape(rules.ways(mesh, rules.MESH_AXES["batch"]), -1)  # data and fsdp come first
  for sharing in grid:
    if len({device.process_index for device in sharing}) > 1:
      raise ValueError(
        f"mesh {dict(mesh.shape)}: devices of several hosts would share the same rows. Keep config.mesh.tensor * "
        "config.mesh.sequence within a host's devices.")


def count(batches: Sequence[Batch], settings: Settings) -> dict[str, float]:
  """The step's totals over all blocks and hosts: what the loss is divided by, and what the report shows."""
  trained = real = places = sequences = weight = silent = pairs = 0.0
  for b in batches:
    mask = np.asarray(b.loss_mask).astype(bool)
    ids = np.asarray(b.segment_ids)
    trained += mask.sum()
    real += (ids > 0).sum()
    places += ids.size
    sequences += sum(len(np.unique(row[on])) for row, on in zip(ids, mask))
    weight += np.asarray(b.advantages, np.float64)[mask].sum() if settings.objective == "sft" else mask.sum()
    silent += (mask & (np.asarray(b.advantages) == 0)).sum()
    pairs += (np.asarray(b.positions, np.int64) + 1)[ids > 0].sum()
  sums = np.asarray([trained, real, places, sequences, weight, silent, pairs], np.float64)
  if jax.process_count() > 1:
    sums = np.asarray(multihost_utils.process_allgather(sums)).sum(axis=0)
  trained, real, places, sequences, weight, silent, pairs = sums.tolist()
  return dict(
    tokens=trained, pairs=pairs, packed_tokens=real, sequences=sequences, weight=weight,
    mask_coverage=trained / max(real, 1), packing=real / places, zero_advantage_share=silent / max(trained, 1))


def fill_up(batches: Sequence[Batch]) -> list[Batch]:
  """Longest rows first, with empty blocks added until every host has as many of each length as the busiest."""
  batches = sorted(batches, key=lambda b: -b.tokens.shape[1])
  if jax.process_count() == 1:
    return batches
  lengths = sorted({b.tokens.shape[1] for b in batches}, reverse=True)
  mine = np.zeros((3, 2), np.int64)
  mine[:len(lengths)] = [(t, sum(b.tokens.shape[1] == t for b in batches)) for t in lengths]
  everyone = np.asarray(multihost_utils.process_allgather(mine)).reshape(-1, 2)
  out = []
  for length in sorted({int(t) for t, n in everyone if n}, reverse=True):
    have = [b for b in batches if b.tokens.shape[1] == length]
    need = max(int(n) for t, n in everyone if t == length)
    out += have + [empty(batches[0].tokens.shape[0], length)] * (need - len(have))
  return out


def empty(rows: int, length: int) -> Batch:
  """A block of padding."""
  ints, floats = np.zeros((rows, length), np.int32), np.zeros((rows, length), np.float32)
  return Batch(
    tokens=ints, segment_ids=ints, positions=ints, loss_mask=np.zeros((rows, length), bool), advantages=floats,
    sampler_logprobs=floats, old_logprobs=floats, ref_logprobs=floats, values=floats, returns=floats,
    group_ids=ints - 1)
