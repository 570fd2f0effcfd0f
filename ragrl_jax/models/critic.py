"""PPO's critic: a decoder with a linear value head. The decoder may be the policy itself; they then share the trunk."""

import jax
import jax.numpy as jnp
from flax import nnx

from ragrl_jax.models.decoder import Decoder


class ValueParam(nnx.Param):
  """A parameter of the value head. It is trained even if the rest of the model is frozen."""


class Critic(nnx.Module):
  """Predicts one value per token.

  Attributes:
    trunk: the decoder that computes the hidden states.
    value_head: [D]; zeros at first, so that a new critic predicts 0.
    value_bias: [1].
  """

  def __init__(self, trunk: Decoder):
    self.trunk = trunk
    self.value_head = ValueParam(jnp.zeros((trunk.config.d_model,), jnp.float32))
    self.value_bias = ValueParam(jnp.zeros((1,), jnp.float32))

  def values(self, hidden: jax.Array) -> jax.Array:
    """Values float32 [R, T] from hidden states [R, T, D]. Entry t belongs to token t and comes from state t - 1."""
    guesses = jnp.einsum(
      "rtd,d->rt", hidden, self.value_head[...].astype(hidden.dtype), preferred_element_type=jnp.float32
    )
    # Shifted by one: the state at t - 1 predicts the value before token t is sampled.
    return jnp.roll(guesses + self.value_bias[...][None], 1, axis=1)

  def __call__(
    self, tokens: jax.Array, positions: jax.Array, segment_ids: jax.Array, prefix_ids: jax.Array | None = None
  ) -> jax.Array:
    """Values float32 [R, T] of int arrays [R, T]. The entry of a sequence's first token has no meaning."""
    return self.values(self.trunk.hidden(tokens, positions, segment_ids, prefix_ids))
