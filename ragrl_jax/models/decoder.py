"""The decoder: one model for all families, whose layers are stacked [L, …] and scanned; and PPO's critic over it.

A hybrid has a stack for each kind of layer, and the scan is over its periods: some delta layers, then one that attends.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.extend.backend import get_default_device

from ragrl_jax.core import logprobs
from ragrl_jax.models import attention, delta, experts, layers, residual
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.parallel import rules

# attend(layer, q [B, T, H, h], k [B, T, KV, h], v [B, T, KV, h], carry) -> (out [B, T, H, h], carry)
Attend = Callable[[jax.Array, jax.Array, jax.Array, jax.Array, Any], tuple[jax.Array, Any]]
# recur(layer, mix, carry) -> (out [B, T, D], carry), where mix(memory, counts) is `delta.mix` of the layer and its x
Recur = Callable[[jax.Array, Callable, Any], tuple[jax.Array, Any]]

STACKS = ("layers", "delta")  # the attributes of a decoder that hold stacked layers
STREAM = ("batch", "length", None)  # logical axes of the residual stream [B, T, D]
ALL = "all"  # nothing of a layer is computed twice


class Decoder(nnx.Module):
  """A causal language model. The caller passes attention as a function, so the model does not know the engine's cache.

  Attributes:
    embedding: [V, D].
    lm_head: [V, D]; only if the config is not tied.
    layers: one `Layer` whose parameters carry a leading axis of num_layers; in a hybrid, of the layers that attend.
    delta: likewise, a hybrid's delta layers.
    final_norm: [D].
    tokenless: ranges (first, end) of rows of the vocabulary without a token (`prompting.tokenizer.tokenless`): sampler
      and learner give them no probability. Whoever knows the tokenizer sets it.
    room: bytes for what remat keeps and for the head's logits. None: on one GPU half of what is free when a program is
      traced, elsewhere 0.
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
      rngs: its `params` stream draws the weights.
      param_dtype: dtype of the stored weights.
      dtype: dtype of the matmuls' inputs and of the residual stream; norms, softmax and sums are always float32.
      remat: recompute a layer's activations in the backward pass instead of storing them.
      mesh: shards activations by the rules of `parallel/rules.py`; None adds no sharding constraints.
    """
    self.config, self.dtype, self.remat, self.mesh = config, jnp.dtype(dtype), remat, mesh
    self.tokenless: logprobs.Ranges = ()
    self.room: int | None = None
    param_dtype = jnp.dtype(param_dtype)

    def rows(scale):
      values = jax.random.normal(rngs.params(), (config.vocab_size, config.d_model), jnp.float32) * scale
      return nnx.Param(values.astype(param_dtype))

    # The embedding has the size of a layer's output (0.02 √D, about 0.2 at D = 128). With a smaller one the first
    # layers' outputs would dominate it. A tied unembedding then gives large logits; the final norm's small initial gain
    # brings them near 0. A scaled embedding gets its size from the factor √D; the final norm's gain is then 1.
    scaled = config.traits.scaled_embedding
    self.embedding = rows(0.02 if scaled else 0.02 * config.d_model**0.5)
    if not config.tied:
      self.lm_head = rows(0.02)
    gain = layers.stored_gain(config.d_model**-0.5 if config.tied and not scaled else 1.0, config)
    self.final_norm = nnx.Param(jnp.full((config.d_model,), gain, param_dtype))

    def stack(number, delta):
      @nnx.split_rngs(splits=number)
      @nnx.vmap(in_axes=(0,), out_axes=0)
      def made(rngs):
        return layers.Layer(config, rngs=rngs, param_dtype=param_dtype, delta=delta)

      return made(rngs)

    self.layers = stack(config.attending, False)
    if config.traits.hybrid:
      self.delta = stack(config.num_layers - config.attending, True)

  def embed(self, tokens: jax.Array) -> jax.Array:
    """Embeds tokens: int [B, T] → [B, T, D] in the compute dtype."""
    # Each device looks up its own columns for all tokens. Then an all-to-all exchanges tokens for columns. So the
    # embedding table is never gathered.
    tokens = rules.constrain(tokens, self.mesh, ("replica", "length"))
    columns = rules.constrain(self.embedding[...][tokens], self.mesh, ("replica", "length", "embed"))
    x = rules.constrain(columns.astype(self.dtype), self.mesh, STREAM)
    # The factor is rounded to the compute dtype, as in transformers: 34 instead of 33.94 at 1152 in bfloat16.
    return x * jnp.asarray(self.config.d_model**0.5, self.dtype) if self.config.traits.scaled_embedding else x

  def unembedding(self) -> jax.Array:
    """The output matrix [V, D]: logits are hidden @ unembedding.T."""
    return (self.embedding if self.config.tied else self.lm_head)[...]

  def run(
    self,
    x: jax.Array,
    positions: jax.Array,
    attend: Attend,
    carry: Any,
    layers_of: Sequence[nnx.State] | None = None,
    routes: jax.Array | None = None,
    recur: Recur | None = None,
  ) -> tuple[jax.Array, Any, jax.Array | None]:
    """Runs all layers with the given attention function.

    Args:
      x: [B, T, D], embedded tokens.
      positions: int [B, T], for the rotary embedding.
      attend: called for each layer that attends with its number among them, q and k (normed and rotated) and v. The
        stacked layers are scanned, so it is traced once; separate layers come one after the other, with the number as
        an int.
      carry: state that `attend` receives and returns: a cache, or ().
      layers_of: the parameters of each layer, if they are separate arrays; None for the stacked ones of `layers`.
      routes: int [L, B, T, k], the experts to use in each layer; `experts.OWN` where the router chooses. None: the
        router chooses everywhere.
      recur: called for each delta layer with its number among them, and its mixer; a hybrid needs it.

    Returns:
      (hidden [B, T, D] after the final norm, carry, the experts of each token, int32 [L, B, T, k], or None for a model
      without experts).
    """
    angles = layers.Angles(positions, self.config)
    stacks = {name: nnx.split(getattr(self, name)) for name in STACKS if hasattr(self, name)}
    mixers = dict(
      layers=lambda layer, number, x, carry: layer.attention(
        x, *angles.for_layer(number), lambda q, k, v: attend(number, angles.scaled(q), k, v, carry)
      ),
      delta=lambda layer, number, x, carry: recur(number, functools.partial(delta.mix, layer, x, positions), carry),
    )
    together = self._on_one_gpu and layers_of is None  # an engine's layers are apart, and may be on several devices
    blocks = {name: functools.partial(self._block, stack[0], mixers[name], together) for name, stack in stacks.items()}
    remat, frozen = self.remat and layers_of is None, {}
    if remat and self._on_one_gpu:
      # A scan copies matrices, gradients and what is kept out of and into stacked arrays. On several GPUs it limits how
      # many layers' matrices are gathered.
      trained, frozen = _by_training(stacks)
      layers_of = _apart(trained, self.config.places)
    if layers_of is not None:
      chosen = []
      kept = self._kept(x.shape[0] * x.shape[1]) if remat else [[ALL]] * self.config.num_layers
      for at, (name, number) in enumerate(self.config.places):

        def block(state, params, own, name=name, number=number):
          if name in frozen:  # cut out here, so that no copy of them is kept for the backward pass
            cut = lambda matrix: jax.lax.index_in_dim(matrix, number, keepdims=False)
            params = nnx.merge_state(params, jax.tree.map(cut, frozen[name]))
          return blocks[name](state, (number, params, own))

        run = block if ALL in kept[at] and not frozen else jax.checkpoint(block, policy=_policy(kept[at]))
        (x, carry), taken = run((x, carry), layers_of[at], None if routes is None else routes[at])
        chosen.append(taken)
      return self._normed(x), carry, jnp.stack(chosen) if self.config.num_experts else None
    if remat or self._all_named:
      how = dict(prevent_cse=False, policy=_policy([] if remat else ["attention", "mlp"]))
      blocks = {name: jax.checkpoint(block, **how) for name, block in blocks.items()}
    period, inputs = blocks["layers"], (jnp.arange(self.config.attending, dtype=jnp.int32), stacks["layers"][1], routes)
    if "delta" in stacks:
      numbers = jnp.arange(self.config.num_layers - self.config.attending, dtype=jnp.int32)
      of_periods = lambda x: x.reshape(-1, self.config.attend_every - 1, *x.shape[1:])
      inputs = *inputs, jax.tree.map(of_periods, (numbers, stacks["delta"][1], None))

      def period(state, inputs):
        if attention.platform(self.mesh) != "cpu":
          return blocks["layers"](jax.lax.scan(blocks["delta"], state, inputs[3])[0], inputs[:3])
        # A loop, unrolled or not, copies matrices and what is kept out of and into stacked arrays.
        for layer in _split(inputs[3]):
          state, _ = blocks["delta"](state, layer)
        return blocks["layers"](state, inputs[:3])

    (x, carry), chosen = jax.lax.scan(period, (x, carry), inputs)
    return self._normed(x), carry, chosen

  @property
  def _on_one_gpu(self) -> bool:
    return attention.platform(self.mesh) == "gpu" and (self.mesh is None or self.mesh.size == 1)

  @property
  def _all_named(self) -> bool:
    """Whether a scan keeps what `_kept` names instead of all. On CPUs it then moves half as many bytes.

    Only where no matmul has to be computed again: of experts and delta layers nothing has a name, and norms of queries,
    keys and outputs need what is before them.
    """
    c = self.config
    others = c.num_experts or c.traits.hybrid or c.traits.post_norms or c.qk_norm
    return attention.platform(self.mesh) == "cpu" and not others

  def spare(self) -> int:
    """`room`, or what it is by default."""
    if self.room is not None or not self._on_one_gpu:
      return self.room or 0
    device = get_default_device() if self.mesh is None else self.mesh.devices.flat[0]
    found = device.memory_stats() or {}
    return max(0, found.get("bytes_limit", 0) - found.get("bytes_in_use", 0)) // 2

  def _kept(self, tokens: int) -> list[list[str]]:
    """What remat keeps of each layer for so many tokens, by name: what fits into three quarters of `spare`.

    Of what does not fit for all layers it keeps the last ones', which the backward pass needs first.
    """
    c, result = self.config, [[] for _ in range(self.config.num_layers)]
    numbers = dict(attention=2 * (c.num_heads + c.num_kv_heads) * c.head_dim + 2 * c.num_heads + c.d_model)
    if not c.num_experts and not c.traits.hybrid:  # of experts and delta layers nothing has a name
      numbers |= {"mlp": 2 * c.d_ff, ALL: c.d_ff + 2 * c.d_model}
    left = 0.75 * self.spare() / (tokens * self.dtype.itemsize)
    for name, size in numbers.items():
      fit = min(c.num_layers, int(left / size))
      for names in result[c.num_layers - fit :]:
        names.append(name)
      if fit < c.num_layers:
        break
      left -= fit * size
    return result

  def _normed(self, x):
    return layers.rms_norm(x, layers.true_gain(self.final_norm[...], self.config), self.config.norm_eps)

  def _block(self, graphdef, mixer, together, state, inputs):
    """One layer, as `lax.scan` calls it: state is (x, carry), inputs are (number, params, routes or None).

    `together`: see `layers.Layer.together`.
    """
    (x, carry), (number, params, routes) = state, inputs
    layer = nnx.merge(graphdef, params)
    layer.in_parts = isinstance(x, residual.Stream) and not self.config.traits.post_norms
    layer.together = together
    out, carry = mixer(layer, number, x, carry)
    x, chosen = checkpoint_name(x + out, "attention"), None
    if self.config.num_experts:
      out, chosen = experts.mlp(layer, x, self.mesh, routes)
    else:
      out = layer.mlp(x)
    return (rules.constrain(x + out, self.mesh, STREAM), carry), chosen

  def hidden(
    self,
    tokens: jax.Array,
    positions: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    until: jax.Array | None = None,
    routes: jax.Array | None = None,
  ) -> jax.Array:
    """Hidden states [B, T, D] after the final norm, in the compute dtype.

    Args:
      positions: int [B, T]; by default each segment counts from 0.
      segment_ids: int [B, T]; 0 is padding. By default a row is one segment.
      until: int [B, T]; the rows are trees (see `structs.Batch`), and segment_ids are not read; needs positions. A
        hybrid's are families with one shared beginning (`delta.Branches`).
      routes: int [B, T, L · k], the experts of each layer for the state before each token, see `structs.Batch`; by
        default the router chooses everywhere.
    """
    if segment_ids is None:
      segment_ids = jnp.ones(tokens.shape, jnp.int32)
    if positions is None:
      positions = attention.segment_positions(segment_ids)
    queries = jax.ShapeDtypeStruct((*tokens.shape, self.config.num_heads, self.config.head_dim), self.dtype)
    seen = attention.seen(queries, segment_ids, until, mesh=self.mesh)
    attend = functools.partial(attention.attend, segment_ids=segment_ids, until=until, mesh=self.mesh, seen=seen)
    windows = self.config.windows
    if min(windows) >= tokens.shape[1]:  # no text is longer than a window, so windows have no effect
      of_layer = lambda layer, q, k, v, carry: (attend(q, k, v), carry)
    else:
      sizes = jnp.asarray(windows, jnp.int32)
      of_layer = lambda layer, q, k, v, carry: (attend(q, k, v, positions=positions, window=sizes[layer]), carry)
    if routes is not None:
      # Entry t belongs to the state at t - 1. OWN where the next token does not continue the state's text.
      of_state = jnp.roll(routes, -1, axis=1).reshape(*tokens.shape, self.config.num_layers, -1)
      routes = of_state.transpose(2, 0, 1, 3)
    branches = delta.Branches.of(positions) if until is not None and self.config.traits.hybrid else None
    recur = lambda layer, mix, carry: (mix(branches=branches)[0], carry)
    return self.run(self.embed(tokens), positions, of_layer, (), routes=routes, recur=recur)[0]

  def __call__(
    self, tokens: jax.Array, positions: jax.Array | None = None, segment_ids: jax.Array | None = None
  ) -> jax.Array:
    """Logits, float32 [B, T, V]. For tests and small inputs: training uses `hidden` and never stores [B, T, V]."""
    x = self.hidden(tokens, positions, segment_ids)
    logits = jax.lax.dot_general(
      x, self.unembedding().astype(x.dtype), (((2,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )
    return logprobs.without(logits, self.tokenless)


def _policy(kept: Sequence[str]):
  """Of `jax.checkpoint`; None: keep nothing."""
  if not kept:
    return None
  if ALL in kept:
    return lambda primitive, *_, **__: primitive.name not in ("slice", "squeeze")  # but no copy of a frozen matrix
  by_name = jax.checkpoint_policies.save_only_these_names(*kept)
  # cuDNN's forward pass, which names nothing: its output and the softmax's sums.
  cudnns = lambda primitive, *_, **__: primitive.name.startswith("dot_product_attention_fwd")
  return jax.checkpoint_policies.save_from_both_policies(by_name, cudnns)


def _by_training(stacks: dict[str, tuple[Any, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
  """(stack → the parameters that are trained, stack → the frozen ones); without adapters all are trained."""
  adapters = {name: nnx.filter_state(state, layers.Adapter) for name, (_, state) in stacks.items()}
  if not jax.tree.leaves(adapters):
    return {name: state for name, (_, state) in stacks.items()}, {}
  return adapters, {name: nnx.filter_state(state, nnx.Not(layers.Adapter)) for name, (_, state) in stacks.items()}


def _apart(stacks: dict[str, Any], places: Sequence[tuple[str, int]]) -> list[Any]:
  """The parameters of each layer, in order, from the stacked ones; their gradients are joined once."""
  layers = {name: _split(stack) for name, stack in stacks.items()}
  # A hybrid whose adapters are all in one of the stacks has nothing in the other.
  return [layers[name][number] if layers[name] else stacks[name] for name, number in places]


def _split(stack: Any) -> list[Any]:
  """A tree of stacked arrays as a tree for each of the layers."""
  leaves, tree = jax.tree.flatten(stack)
  apart = [[part[0] for part in jax.lax.split(x, (1,) * len(x))] for x in leaves]
  return [jax.tree.unflatten(tree, layer) for layer in zip(*apart)]


class ValueParam(nnx.Param):
  """A parameter of the value head. It is trained even if the rest of the model is frozen."""


class Critic(nnx.Module):
  """PPO's critic: predicts one value per token, by a linear head. Its trunk may be the policy itself.

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
    """Values float32 [R, T] from hidden states [R, T, D]. Entry t comes from state t: the value before token t + 1."""
    guesses = jnp.einsum(
      "rtd,d->rt", hidden, self.value_head[...].astype(hidden.dtype), preferred_element_type=jnp.float32
    )
    return guesses + self.value_bias[...][None]
