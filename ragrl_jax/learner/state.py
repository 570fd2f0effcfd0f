"""The state that optimiser steps change, as one pytree."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
  """Params and everything that belongs to them. The host's state (data cursor, curriculum, groups sampled but not yet
  trained on) is in the checkpoint's JSON.

  Attributes:
    params: float32 masters of the trained parameters, as `nnx.split` returns them.
    opt_state: Optax's.
    step: int32, optimiser steps taken, without skipped ones.
    rng: uint32 key data; random numbers depend on (key, step), so a restart draws the same.
    nonfinite: int32, number of steps skipped in succession because the gradient was not finite.
    skipped: int32, number of all skipped steps.
    kl_coef: float32, the present weight of the KL penalty; an adaptive controller changes it.
    critic: the critic's own state, None without one.
  """

  params: Any
  opt_state: Any
  step: jax.Array
  rng: jax.Array
  nonfinite: jax.Array
  skipped: jax.Array
  kl_coef: jax.Array
  critic: Any = None


def init(params: Any, optimizer: optax.GradientTransformation, seed: int, *, kl_coef: float = 0.0) -> TrainState:
  """A state before the first step."""
  return TrainState(
    params=params,
    opt_state=optimizer.init(params),
    step=jnp.int32(0),
    # As key data, because checkpoints contain plain arrays.
    rng=jax.random.key_data(jax.random.key(seed)),
    nonfinite=jnp.int32(0),
    skipped=jnp.int32(0),
    # In the state and not in the settings, because the controller changes it, and a resumed run continues with it.
    kl_coef=jnp.float32(kl_coef),
  )
