"""PPO's critic: a decoder with a linear value head. The decoder may be the policy itself: the trunk is then shared."""

import jax
import jax.numpy as jnp
from flax import nnx

from ragrl_jax.models.decoder import Decoder


class ValueParam(nnx.Param):
  """A parameter of the value head, which is trained whatever else of the model is frozen."""


class Critic(nnx.Module):
  """A value a token.

  Attributes:
    trunk: the decoder whose hidden states are read.
    value_head: [D], zeros at first, so that a fresh critic guesses nothing.
    value_bias: [1].
  """

  def __init__(self, trunk: Decoder):
    self.trunk = trunk
    self.value_head = ValueParam(jnp.zeros((trunk.config.d_model,), jnp.float32))
    self.value_bias = ValueParam(jnp.zeros((1,), jnp.float32))

  def values(self, hidden: jax.Array) -> jax.Array:
    """hidden [R, T, D] → float32 [R, T], aligned: entry t speaks of token t and comes from state t - 1."""
    guesses = jnp.einsum(
      "rtd,d->rt", hidden, self.value_head[...].astype(hidden.dtype), preferred_element_type=jnp.float32
    )
    return jnp.roll(guesses + self.value_bias[...][None], 1, axis=1)

  def __call__(
    self, tokens: jax.Array, positions: jax.Array, segment_ids: jax.Array, prefix_ids: jax.Array | None = None
  ) -> jax.Array:
    """Values float32 [R, T]. A sequence's first token has none: what stands there is no value."""
    return self.values(self.trunk.hidden(tokens, positions, segment_ids, prefix_ids))
