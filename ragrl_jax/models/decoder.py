"""The decoder: one model for Qwen2/2.5, Qwen3 and Llama 3. Its layers are stacked [L, …] and scanned."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ragrl_jax.models import attention, layers
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.parallel import rules

# attend(layer, q [B, T, H, h], k [B, T, KV, h], v [B, T, KV, h], carry) -> (out [B, T, H, h], carry)
Attend = Callable[[jax.Array, jax.Array, jax.Array, jax.Array, Any], tuple[jax.Array, Any]]

STREAM = ("batch", "length", None)  # logical axes of the residual stream [B, T, D]


class Decoder(nnx.Module):
  """A causal language model. The caller passes attention as a function, so the model does not know the engine's cache.

  Attributes:
    embedding: [V, D].
    lm_head: [V, D]; only if the config is not tied.
    layers: one `Layer` whose parameters carry a leading axis of num_layers.
    final_norm: [D].
  """

  def __init__(
    self,
    config: DecoderConfig,
    *,
    rngs: nnx.Rngs,
    param_dtype=jnp.float32,
    dtype=jnp.float32,
    remat: bool = False,
    mesh: jax.sharding.Mesh | None = None,
  ):
    """Initialises random weights.

    Args:
      config: the shape.
      rngs: its `params` stream draws the weights.
      param_dtype: dtype of the stored weights.
      dtype: dtype of the matmuls' inputs and of the residual stream; norms, softmax and sums are always float32.
      remat: recompute a layer's activations in the backward pass instead of storing them.
      mesh: shards activations by the rules of `parallel/rules.py`; None adds no sharding constraints.
    """
    self.config, self.dtype, self.remat, self.mesh = config, jnp.dtype(dtype), remat, mesh
    param_dtype = jnp.dtype(param_dtype)

    def rows(scale):
      values = jax.random.normal(rngs.params(), (config.vocab_size, config.d_model), jnp.float32) * scale
      return nnx.Param(values.astype(param_dtype))

    # The embedding has the size of a layer's output (0.02 √D, about 0.2 at D = 128). With a smaller one the first
    # layers' outputs would dominate it. A tied unembedding then gives large logits; the final norm's small initial gain
    # brings them near 0.
    self.embedding = rows(0.02 * config.d_model**0.5)
    if not config.tied:
      self.lm_head = rows(0.02)
    gain = config.d_model**-0.5 if config.tied else 1.0
    self.final_norm = nnx.Param(jnp.full((config.d_model,), gain, param_dtype))

    @nnx.split_rngs(splits=config.num_layers)
    @nnx.vmap(in_axes=(0,), out_axes=0)
    def stack(rngs):
      return layers.Layer(config, rngs=rngs, param_dtype=param_dtype)

    self.layers = stack(rngs)

  def embed(self, tokens: jax.Array) -> jax.Array:
    """Embeds tokens: int [B, T] → [B, T, D] in the compute dtype."""
    # Each device looks up its own columns for all tokens. Then an all-to-all exchanges tokens for columns. So the
    # embedding table is never gathered.
    tokens = rules.constrain(tokens, self.mesh, ("replica", "length"))
    columns = rules.constrain(self.embedding[...][tokens], self.mesh, ("replica", "length", "embed"))
    return rules.constrain(columns.astype(self.dtype), self.mesh, STREAM)

  def unembedding(self) -> jax.Array:
    """The output matrix [V, D]: logits are hidden @ unembedding.T."""
    return (self.embedding if self.config.tied else self.lm_head)[...]

  def run(
    self, x: jax.Array, positions: jax.Array, attend: Attend, carry: Any, layers_of: Sequence[nnx.State] | None = None
  ) -> tuple[jax.Array, Any]:
    """Runs all layers with the given attention function.

    Args:
      x: [B, T, D], embedded tokens.
      positions: int [B, T], for the rotary embedding.
      attend: called for each layer with the layer's number, q and k (normed and rotated) and v. The stacked layers are
        scanned, so it is traced once; separate layers come one after the other, with the number as an int.
      carry: state that `attend` receives and returns: a cache, or ().
      layers_of: the parameters of each layer, where they are separate arrays; None for the stacked ones of `layers`.

    Returns:
      (hidden [B, T, D] after the final norm, carry).
    """
    cos, sin = layers.rope_angles(positions, self.config)
    graphdef, stacked = nnx.split(self.layers)
    if layers_of is not None:
      for number, params in enumerate(layers_of):
        (x, carry), _ = self._block(graphdef, cos, sin, attend, (x, carry), (number, params))
      return layers.rms_norm(x, self.final_norm[...], self.config.norm_eps), carry
    block = functools.partial(self._block, graphdef, cos, sin, attend)
    if self.remat:
      block = jax.checkpoint(block, prevent_cse=False)
    numbers = jnp.arange(self.config.num_layers, dtype=jnp.int32)
    (x, carry), _ = jax.lax.scan(block, (x, carry), (numbers, stacked))
    return layers.rms_norm(x, self.final_norm[...], self.config.norm_eps), carry

  def _block(self, graphdef, cos, sin, attend: Attend, state, inputs):
    """One layer, as `lax.scan` calls it: state is (x, carry), inputs are (number, params)."""
    (x, carry), (number, params) = state, inputs
    layer = nnx.merge(graphdef, params)
    out, carry = attend(number, *layer.queries_keys_values(x, cos, sin), carry)
    x = x + layer.merge_heads(out)
    return (rules.constrain(x + layer.mlp(x), self.mesh, STREAM), carry), None

  def hidden(
    self,
    tokens: jax.Array,
    positions: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    prefix_ids: jax.Array | None = None,
  ) -> jax.Array:
    """Hidden states [B, T, D] after the final norm, in the compute dtype.

    Args:
      tokens: int [B, T].
      positions: int [B, T]; by default each segment counts from 0.
      segment_ids: int [B, T]; 0 is padding. By default a row is one segment.
      prefix_ids: int [B, T], the segment that each token attends to besides its own; by default none.
    """
    if segment_ids is None:
      segment_ids = jnp.ones(tokens.shape, jnp.int32)
    if positions is None:
      positions = attention.segment_positions(segment_ids)
    attend = lambda layer, q, k, v, carry: (attention.attend(q, k, v, segment_ids, prefix_ids, mesh=self.mesh), carry)
    return self.run(self.embed(tokens), positions, attend, ())[0]

  def __call__(
    self, tokens: jax.Array, positions: jax.Array | None = None, segment_ids: jax.Array | None = None
  ) -> jax.Array:
    """Logits, float32 [B, T, V]. For tests and small inputs: training uses `hidden` and never stores [B, T, V]."""
    x = self.hidden(tokens, positions, segment_ids)
    return jax.lax.dot_general(
      x, self.unembedding().astype(x.dtype), (((2,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )
