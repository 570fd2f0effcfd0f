"""States S₀, S₁, … of a linear recurrence S ← K S - E S + W from chunk to chunk, as in `models/delta.py`.

K mixes n states of dk rows, K = keep ⊗ 1, and stays apart from E, so that matmuls which round do not round what is
kept. On NVIDIA GPUs a loop over 64 chunks would launch a thousand small kernels: there, √C groups of √C chunks advance
side by side, each as one recurrence with unknown first state (Blelloch's scan in two levels, CMU-CS-90-190 sec. 1).
The gradient is the recurrence of the transposed matrices, backwards.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Step(NamedTuple):
  """What a chunk, or several, do to a state: S ← (keep ⊗ 1 - erases) S + written.

  Attributes:
    keep: [..., n, n].
    erases: [..., n · dk, n · dk].
    written: [..., n · dk, dv].
  """

  keep: jax.Array
  erases: jax.Array
  written: jax.Array

  def __call__(self, state: jax.Array) -> jax.Array:
    """The state after the step."""
    return _mixed(self.keep, state) - self.erases @ state + self.written

  def after(self, first: "Step") -> "Step":
    """This step after the `first` one, as one step."""
    turned = lambda x: x.swapaxes(-1, -2)
    kept = _mixed(self.keep, first.erases) + turned(_mixed(turned(first.keep), turned(self.erases)))
    keep = jnp.matmul(self.keep, first.keep, precision="highest")
    return Step(keep, kept - self.erases @ first.erases, self(first.written))


@jax.custom_vjp
def states(chunks: Step, state: jax.Array) -> tuple[jax.Array, jax.Array]:
  """(the states [C, ..., n · dk, dv] before each of the C chunks, the state after the last one).

  Args:
    chunks: with a first axis of C.
    state: [..., n · dk, dv], before the first chunk.
  """
  return jax.lax.platform_dependent(chunks, state, cuda=by_groups, default=by_scan)


def _forward(chunks, state):
  before, last = states(chunks, state)
  return (before, last), (chunks, before)


def _backward(saved, gradients):
  chunks, before = saved
  of_before, of_last = gradients
  back = lambda x: x[::-1].swapaxes(-1, -2)
  after, of_state = states(Step(back(chunks.keep), back(chunks.erases), of_before[::-1]), of_last)
  after = after[::-1]  # the gradients of the states after the chunks
  n = chunks.keep.shape[-1]
  blocks = lambda x: x.reshape(*x.shape[:-2], n, -1)
  of_keep = jnp.einsum("...nx,...mx->...nm", blocks(after), blocks(before), precision="highest")
  return Step(of_keep, -after @ before.swapaxes(-1, -2), after), of_state


states.defvjp(_forward, _backward)


def by_scan(chunks: Step, state: jax.Array) -> tuple[jax.Array, jax.Array]:
  """`states`, one chunk after the other."""
  last, before = jax.lax.scan(lambda state, chunk: (chunk(state), state), state, chunks)
  return before, last


def by_groups(chunks: Step, state: jax.Array) -> tuple[jax.Array, jax.Array]:
  """`states`, with groups of chunks side by side."""
  count = len(chunks.written)
  size = math.isqrt(count - 1) + 1
  groups = -(-count // size)
  more = groups * size - count
  cut = lambda x: jnp.pad(x, ((0, more), *((0, 0),) * (x.ndim - 1))).reshape(groups, size, *x.shape[1:])
  # Chunks of padding forget the state, so the state after the last chunk is taken before them.
  chunks = jax.tree.map(cut, chunks)
  at = lambda number: jax.tree.map(lambda x: x[:, number], chunks)
  so_far = [at(0)]  # of each group's first 1, 2, … chunks
  for number in range(1, size):
    so_far.append(at(number).after(so_far[-1]))
  starts = [state]
  for number in range(groups - 1):
    starts.append(jax.tree.map(lambda x, number=number: x[number], so_far[-1])(starts[-1]))
  start = jnp.stack(starts)
  ends = [step(start) for step in so_far]
  before = jnp.stack([start, *ends[:-1]], axis=1).reshape(-1, *state.shape)[:count]
  last = divmod(count - 1, size)
  return before, ends[last[1]][last[0]]


def _mixed(keep, x):
  """(keep ⊗ 1) x."""
  n = keep.shape[-1]
  if n == 1:
    return keep * x
  blocks = x.reshape(*x.shape[:-2], 1, n, -1, x.shape[-1])
  return (blocks * keep[..., None, None]).sum(axis=-3).reshape(x.shape)
