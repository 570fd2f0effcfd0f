"""What an optimiser step changes, as one pytree."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
  """Params and everything that goes with them. What lives on the host (data cursor, curriculum, groups sampled but
  not yet trained on) is kept beside it in the checkpoint's JSON.

  Attributes:
    params: float32 masters of what is trained, as `nnx.split` gives them.
    opt_state: Optax's.
    step: int32, optimiser steps taken, skipped ones not counted.
    rng: uint32 key data; drawn from by (key, step), so that a restart goes on as if it had not happened.
    nonfinite: int32, steps skipped in a row because the gradient was not finite.
    skipped: int32, steps skipped in all.
    kl_coef: float32, the KL penalty's weight now; an adaptive controller moves it.
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


def init(
  params: Any,
  optimizer: optax.GradientTransformation,
  seed: int,
  *,
  kl_coef: float = 0.0,
  critic: TrainState | None = None,
) -> TrainState:
  """A state before the first step."""
  return TrainState(
    params=params,
    opt_state=optimizer.init(params),
    step=jnp.int32(0),
    # As key data: checkpoints hold plain arrays.
    rng=jax.random.key_data(jax.random.key(seed)),
    nonfinite=jnp.int32(0),
    skipped=jnp.int32(0),
    # In the state, not in the settings: the controller moves it, and a resumed run goes on with it.
    kl_coef=jnp.float32(kl_coef),
    critic=critic,
  )
