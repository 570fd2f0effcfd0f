"""A mixture of experts in place of the MLP: a router sends each token to some experts, and their outputs are summed.

Tokens are sorted by expert, and each expert's matrices multiply its own tokens (`jax.lax.ragged_dot`). So no token is
dropped, and only the router's logits have the size tokens × experts. The mesh axis of "expert" splits the experts: a
device computes its own experts for all tokens that it holds, and the devices' outputs are added up.

Source: Shazeer et al. (arXiv 1701.06538) sec. 2; transformers, modeling_qwen3_moe.py.
"""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ragrl_jax.models.layers import Layer, gated
from ragrl_jax.models.matmul import linear
from ragrl_jax.parallel import mesh as mesh_lib, rules

OWN = -1  # in place of an expert: the router chooses for this token


def mlp(
  layer: Layer, x: jax.Array, mesh: jax.sharding.Mesh | None, chosen: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
  """(what the experts add to the residual stream, [B, T, D], the experts of each token, int32 [B, T, k]).

  x [B, T, D] is normed first; for `mesh` and `chosen` see `mix` and `route`.
  """
  c = layer.config
  x = layer.norm(x, "mlp_norm")
  logits = linear(x, layer.router[...])
  experts, weights = route(logits, c.experts_per_token, normalize=c.normalize_experts, chosen=chosen)
  matrices = layer.experts_gate[...], layer.experts_up[...], layer.experts_down[...]
  return mix(x, experts, weights, matrices, c.traits.activation, mesh), experts


def route(
  logits: jax.Array, count: int, *, normalize: bool, chosen: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
  """(experts, weights) of each token, int32 and float32 [B, T, count].

  Args:
    logits: the router's, [B, T, E].
    count: number of experts per token; those with the largest logits are used.
    normalize: divide the weights, which are the experts' probabilities, by their sum.
    chosen: int [B, T, count], experts to use instead; OWN where the router chooses. The weights are still the router's,
      and differentiable.
  """
  probabilities = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
  experts = jax.lax.top_k(jax.lax.stop_gradient(probabilities), count)[1].astype(jnp.int32)
  if chosen is not None:
    experts = jnp.where(chosen == OWN, experts, chosen.astype(jnp.int32))
  weights = jnp.take_along_axis(probabilities, experts, axis=-1)
  return experts, weights / weights.sum(axis=-1, keepdims=True) if normalize else weights


def mix(
  x: jax.Array,
  experts: jax.Array,
  weights: jax.Array,
  matrices: tuple[jax.Array, jax.Array, jax.Array],
  activation: str,
  mesh: jax.sharding.Mesh | None,
) -> jax.Array:
  """The weighted sum of the outputs of each token's experts, [B, T, D] in x's dtype.

  Args:
    x: [B, T, D].
    experts, weights: [B, T, k], see `route`.
    matrices: gate and up [E, D, F], down [E, F, D].
    activation: of the gate, one of `layers.ACTIVATIONS`.
    mesh: the learner's mesh. None on one device, and inside a `shard_map` of the engine, whose mesh then splits the
      experts.
  """
  matrices = tuple(matrix.astype(x.dtype) for matrix in matrices)  # cast first, so that devices gather less
  if mesh is not None:
    rows = rules.activation(mesh, ("batch", "length", None), x.shape)
  else:
    mesh, rows = mesh_lib.around(), PartitionSpec()
  if mesh is None:
    return _local(x, experts, weights, matrices, activation=activation)
  axis = rules.MESH_AXES["expert"]
  return jax.shard_map(
    functools.partial(_local, activation=activation, axis=axis),
    mesh=mesh,
    in_specs=(rows, rows, rows, PartitionSpec(axis)),
    out_specs=rows,
    axis_names=mesh_lib.free(mesh),
    check_vma=False,
  )(x, experts, weights, matrices)


def _local(x, experts, weights, matrices, *, activation: str, axis: str | None = None):
  """`mix` on one device, which holds some of the experts."""
  (B, T, D), k = x.shape, experts.shape[-1]
  gate, up, down = matrices
  held = gate.shape[0]
  own = experts.reshape(-1)
  if axis is not None:
    own = own - jax.lax.axis_index(axis) * held
  own = jnp.where((own >= 0) & (own < held), own, held)  # other devices' experts come last, in no group
  order = jnp.argsort(own, stable=True)
  sizes = jnp.zeros(held + 1, jnp.int32).at[own].add(1)[:held]
  # [B · T · k, D]: each token once for each of its experts, in the experts' order.
  rows = _permute(jnp.broadcast_to(x.reshape(-1, 1, D), (B * T, k, D)).reshape(-1, D), order)
  narrow = lambda y: y.astype(x.dtype)
  wide = gated(narrow(_grouped(rows, gate, sizes)), narrow(_grouped(rows, up, sizes)), activation)
  out = _grouped(wide, down, sizes)
  out = jnp.where((jnp.arange(len(own)) < sizes.sum())[:, None], out, 0.0)  # rows in no group are undefined
  back = jnp.zeros_like(order).at[order].set(jnp.arange(len(order), dtype=order.dtype), unique_indices=True)
  out = (_permute(out, back).reshape(B, T, k, D) * weights[..., None]).sum(axis=2)
  return narrow(out if axis is None else jax.lax.psum(out, axis))


def _permute(x, order):
  return x.at[order].get(unique_indices=True, mode="promise_in_bounds")


@jax.custom_vjp
def _grouped(x, weight, sizes):
  """Multiplies each row of x [N, in], sorted by group, by its group's matrix of weight [E, in, out]: float32 [N, out].

  As for the other matmuls (`matmul.linear`), the gradient is rounded to x's dtype.
  """
  return jax.lax.ragged_dot(x, weight, sizes, preferred_element_type=jnp.float32)


_OVER_ROWS = jax.lax.RaggedDotDimensionNumbers(
  dot_dimension_numbers=(((0,), (0,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[]
)


def _grouped_backward(saved, gradient):
  x, weight, sizes = saved
  gradient = gradient.astype(x.dtype)
  of_x = jax.lax.ragged_dot(gradient, weight.transpose(0, 2, 1), sizes, preferred_element_type=jnp.float32)
  of_weight = jax.lax.ragged_dot_general(x, gradient, sizes, _OVER_ROWS, preferred_element_type=jnp.float32)
  inside = (jnp.arange(len(x)) < sizes.sum())[:, None]  # as above
  return jnp.where(inside, of_x, 0.0).astype(x.dtype), of_weight.astype(weight.dtype), None


_grouped.defvjp(lambda x, weight, sizes: (_grouped(x, weight, sizes), (x, weight, sizes)), _grouped_backward)
