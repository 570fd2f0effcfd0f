"""The compiled programs of a trained model. The policy uses them, and so does a separate critic."""

import concurrent.futures
import functools
import itertools
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from ragrl_jax.learner import state as state_lib, step
from ragrl_jax.learner.state import TrainState
from ragrl_jax.models import attention
from ragrl_jax.parallel import cores, hosts, rules
from ragrl_jax.structs import Batch

# XLA's options for `accumulate`. Instead of multiplying with a sharded matrix piece by piece, it gathers whole matrices
# in bfloat16: two layers at 2,048 tokens then take .15 instead of .19 GiB, and compile in a fifth less
# (benchmarks/LOG.md).
COMPILER = dict(tpu=dict(xla_jf_spmd_threshold_for_windowed_einsum_mib="1000000"))
# On one CPU a program runs so many blocks in a loop. Each call takes new memory for its temporaries, several GB, which
# the system fills with zeros first.
TOGETHER = 8
# Two programs run side by side on one CPU, each with every other block, because much of a program runs on one core:
# attention's small matmuls, and what is between matmuls. JAX runs the calls of one thread one after the other, so a
# second thread makes those of the second half. On one core the halves take turns, with the same result.
_ASIDE = concurrent.futures.ThreadPoolExecutor(1, "aside")
_CORES = cores.count()


class Trained:
  """A model's parameters, and the programs that take optimiser steps on them.

  Attributes:
    graphdef: the model without its parameters.
    params: the initial trained parameters; only their shapes after `start` has handed them over.
    frozen: the model's other parameters.
  """

  def __init__(
    self,
    model: nnx.Module,
    optimizer: optax.GradientTransformation,
    objective: step.Objective,
    *,
    trainable: Any,
    mesh: jax.sharding.Mesh | None,
    names: tuple[str, ...],
    kl_coef: float = 0.0,
  ):
    """Builds the programs; nothing is compiled yet.

    Args:
      model: has the methods that `objective` calls; of ShapeDtypeStructs if programs are only compiled (on a mesh).
      trainable: an nnx filter.
      mesh: devices that share rows and parameters; None: one device.
    """
    self.optimizer, self.mesh = optimizer, mesh
    # Only `params` have gradients and moments; `frozen` have none, which makes LoRA cheap.
    self.graphdef, self.params, self.frozen = nnx.split(model, trainable, ...)
    # Also on one device they are bound to it, as a restored state is, which would else have programs of its own.
    place = _bound if mesh is None else functools.partial(rules.place, mesh)
    self.params, self.frozen = place(self.params), place(self.frozen)
    graphdef = self.graphdef

    def loss(params, frozen, *inputs):
      return objective(nnx.merge(graphdef, params, frozen), *inputs)

    # Named functions, not lambdas, because store/compile_cache.py reports these names during compilation.
    def init(params, seed):
      return state_lib.init(jax.tree.map(jnp.copy, params), optimizer, seed, kl_coef=kl_coef)

    def accumulate(grads, sums, params, frozen, *inputs):
      return step.accumulate(grads, sums, loss, params, frozen, *inputs)

    def accumulate_all(grads, sums, params, frozen, blocks, count, *inputs):
      stacked = jax.tree.map(lambda *found: jnp.stack(found), *blocks)
      at = lambda i: jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), stacked)
      more = lambda i, so_far: step.accumulate_in_place(*so_far, loss, params, frozen, at(i), *inputs)
      return jax.lax.fori_loop(0, count, more, (grads, sums))

    def apply(state, grads, sums, rate=None):
      return step.apply(state, grads, sums, optimizer, rate)

    # Results have the state's sharding. Otherwise the compiler might, for example, put whole gradients on every device.
    self._whole, outs, platform = None, {}, attention.platform(mesh)
    if mesh is not None:
      state_at = rules.shardings(mesh, jax.eval_shape(lambda p: init(p, 0), self.params))
      self._whole = whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
      outs = dict(
        init=state_at, zeros=(state_at.params, whole), accumulate=(state_at.params, whole), apply=(state_at, whole)
      )
    sharding = lambda name: dict(out_shardings=outs[name]) if name in outs else {}
    self.init = jax.jit(init, static_argnums=1, **sharding("init"))
    self._take = jax.jit(init, static_argnums=1, donate_argnums=0, **sharding("init"))
    self.zeros = jax.jit(lambda params: step.zeros(params, names), **sharding("zeros"))
    # Donated: the sum of gradients is updated in place, and a step never holds two states.
    self.accumulate = jax.jit(
      accumulate, donate_argnums=(0, 1), compiler_options=COMPILER.get(platform), **sharding("accumulate")
    )
    self._accumulate_all = jax.jit(accumulate_all, donate_argnums=(0, 1), **sharding("accumulate"))
    self._add = jax.jit(lambda *halves: jax.tree.map(jnp.add, *halves), donate_argnums=0)
    self._together = TOGETHER if platform == "cpu" and (mesh is None or mesh.size == 1) else 1
    self.apply = jax.jit(apply, donate_argnums=0, **sharding("apply"))

  def start(self, seed: int) -> TrainState:
    """The state before the first step, made of the parameters themselves; only their shapes remain here.

    Their arrays are donated, so other holders of them, such as the model, keep no memory.
    """
    state = self._take(self.params, seed)
    self.forget()
    return state

  def forget(self) -> None:
    """Releases the initial parameters; their shapes remain."""
    self.params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), self.params)

  def model(self, params: Any, frozen: Any) -> Any:
    """The model with these parameters, inside a program."""
    return nnx.merge(self.graphdef, params, frozen)

  def steps(
    self,
    state: TrainState,
    blocks: Sequence[Batch],
    totals: Any,
    rate: float = 1.0,
    *,
    taught: Iterator[Any] | None = None,
  ) -> Generator[Any, None, tuple[TrainState, dict[str, Any]]]:
    """One optimiser step over these blocks. Yields the result of each program after dispatching it.

    Args:
      state: donated.
      blocks: packed rows on their devices.
      totals: see `step.policy_objective`.
      rate: multiplies the learning rate.
      taught: for each block the objective's argument `teacher`, made when the block's turn has come.
    """
    grads, sums = yield from self.gradient(state.params, blocks, totals, state.kl_coef, taught=taught)
    return self.apply(state, grads, sums, *([] if rate == 1.0 else [hosts.put(np.float32(rate), self._whole)]))

  def gradient(
    self, params: Any, blocks: Sequence[Batch], totals: Any, kl_coef: Any, *, taught: Iterator[Any] | None = None
  ) -> Generator[Any, None, tuple[Any, dict[str, jax.Array]]]:
    """The gradient of a step, and the sums of its metrics; arguments as in `steps`."""
    # Zeros, then one block after the other: the gradient of the whole batch in the memory of one block.
    grads, sums = self.zeros(params)
    given = params, self.frozen
    step_numbers = hosts.put(totals, self._whole), kl_coef
    if taught is not None or self._together == 1:
      for block in blocks:
        more = () if taught is None else (next(taught),)
        grads, sums = self.accumulate(grads, sums, *given, block, *step_numbers, *more)
        yield sums
      return grads, sums
    halves = [half for half in (blocks[::2], blocks[1::2]) if half]
    chains = [(grads, sums), *(self.zeros(params) for _ in halves[1:])]
    calls = [[*_of_one_shape(half, self._together)] for half in halves]
    for together in itertools.zip_longest(*calls):
      for at, same in enumerate(together):
        if same is None:
          continue
        count = hosts.put(np.int32(len(same)), self._whole)
        same = same + same[:1] * (self._together - len(same))  # one program for any number
        call = functools.partial(self._accumulate_all, *chains[at], *given, same, count, *step_numbers)
        chains[at] = _ASIDE.submit(call).result() if at and _CORES > 1 else call()
      yield chains
    return chains[0] if len(chains) == 1 else self._add(*chains)


def _of_one_shape(blocks: Sequence[Batch], most: int) -> Iterator[list[Batch]]:
  """The blocks in order, at most `most` at a time, with rows of one shape."""
  for _, found in itertools.groupby(blocks, lambda block: [x.shape for x in jax.tree.leaves(block)]):
    same = list(found)
    yield from (same[at : at + most] for at in range(0, len(same), most))


def _bound(tree: Any) -> Any:
  """The arrays, bound to the devices that hold them; a ShapeDtypeStruct stays."""
  return jax.tree.map(lambda x: x if isinstance(x, jax.ShapeDtypeStruct) else jax.device_put(x, x.sharding), tree)
