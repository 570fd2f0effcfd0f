"""Log-probabilities and entropies of sampled tokens, in float32, and without ever holding [B, T, V]."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ragrl_jax.core import masked
from ragrl_jax.core.masked import AnyArray, Mask


def from_logits(logits: Float[AnyArray, "*s V"], tokens: Int[AnyArray, "*s"]) -> Float[Array, "*s"]:
  """log softmax(logits)[tokens], in nats."""
  logits = jnp.asarray(logits).astype(jnp.float32)
  at = jnp.take_along_axis(logits, jnp.asarray(tokens)[..., None], axis=-1)[..., 0]
  return at - jax.nn.logsumexp(logits, axis=-1)


def entropy(logits: Float[AnyArray, "*s V"]) -> Float[Array, "*s"]:
  """-sum_v p_v log p_v, in nats."""
  logp = jax.nn.log_softmax(jnp.asarray(logits).astype(jnp.float32), axis=-1)
  # 0 log 0 is 0: an excluded token has logp = -inf.
  return -jnp.where(logp > -jnp.inf, jnp.exp(logp) * logp, 0.0).sum(axis=-1)


def chunked(
    hidden: Float[AnyArray, "R T D"], unembedding: Float[AnyArray, "V D"], targets: Int[AnyArray, "R T"], mask: Mask, *,
    chunk: int, temperature: float = 1.0,
) -> tuple[Float[Array, "R T"], Float[Array, "R T"]]:
  """Log-probability of each target and the entropy it was drawn with, from hidden states; differentiable.

  Logits exist for about `chunk` tokens at a time, in the backward pass too, where they are computed again. Only the
  tokens under the mask are computed: each row's are moved to its front, and slabs of columns in which no row has one
  left are skipped. Rows never mix, so that rows may be sharded.

  Args:
    hidden: states that predict the targets, after the final norm. Its dtype is that of the matmuls; sums are float32.
    unembedding: one row a token of the vocabulary.
    targets: ids in 0..V.
    mask: where anything is wanted.
    chunk: how many tokens' logits may exist at once, at least one column of rows.
    temperature: divides the logits, > 0.

  Returns:
    (logprobs, entropies) in nats, float32, zeros where the mask is 0.
  """
  if not temperature > 0:
    raise ValueError(f"temperature {temperature}: it must be above 0; a greedy sampler is scored at 1.")
  on = masked.as_bool(mask)
  rows, length, _ = hidden.shape
  width = max(1, min(length, chunk // rows))
  slabs = -(-length // width)
  # Stable: the trained columns keep their order. Columns added to fill the last slab are off.
  order = jnp.argsort(~on, axis=1, stable=True)
  back = jnp.argsort(order, axis=1)
  pad = slabs * width - length
  sort = lambda x: jnp.pad(jnp.take_along_axis(x, order, axis=1), ((0, 0), (0, pad)))
  out = _slabs(
    jnp.asarray(hidden), jnp.asarray(unembedding), sort(jnp.asarray(targets)), sort(on), order, back, width,
    float(temperature))
  logprobs, entropies = (jnp.take_along_axis(x[:, :length], back, axis=1) for x in out)
  return logprobs, entropies


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7))
def _slabs(hidden, unembedding, targets, on, order, back, width, temperature):
  """[R, S] log-probabilities and entropies of the sorted columns, slab by slab."""
  return _forward(hidden, unembedding, targets, on, order, back, width, temperature)[0]


def _forward(hidden, unembedding, targets, on, order, back, width, temperature):
  weights = unembedding.astype(hidden.dtype)
  columns = _cut(_sorted(hidden, order, on.shape[1]), width)

  def slab(_, now):
    h, ids, live = now

    def compute():
      z = _logits(h, weights, temperature)
      log_norm = jax.nn.logsumexp(z, axis=-1)
      log_p = z - log_norm[..., None]
      return _at(z, ids) - log_norm, -(jnp.exp(log_p) * log_p).sum(axis=-1), log_norm

    nothing = lambda: (jnp.zeros(ids.shape, jnp.float32),) * 3
    return None, jax.lax.cond(live.any(), compute, nothing)

  _, (logprobs, entropies, log_norms) = jax.lax.scan(slab, None, (columns, _cut(targets, width), _cut(on, width)))
  logprobs, entropies, log_norms = (_join(x) for x in (logprobs, entropies, log_norms))
  out = jnp.where(on, logprobs, 0.0), jnp.where(on, entropies, 0.0)
  return out, (hidden, unembedding, targets, on, order, back, log_norms, out[1])


def _backward(width, temperature, residuals, cotangents):
  """Logits again, a slab at a time. dlogp/dz = onehot - p, dH/dz = -p (log p + H)."""
  hidden, unembedding, targets, on, order, back, log_norms, entropies = residuals
  weights = unembedding.astype(hidden.dtype)
  by_logprob, by_entropy = (jnp.where(on, x, 0.0) for x in cotangents)
  columns = _cut(_sorted(hidden, order, on.shape[1]), width)

  def slab(sums, now):
    h, ids, live, log_norm, ent, g, g_ent = now

    def compute(sums):
      log_p = _logits(h, weights, temperature) - log_norm[..., None]
      p = jnp.exp(log_p)
      hit = jnp.arange(p.shape[-1], dtype=ids.dtype)[None, None, :] == ids[..., None]
      dz = jnp.where(hit, g[..., None], 0.0) - p * (g[..., None] + g_ent[..., None] * (log_p + ent[..., None]))
      dz = jnp.where(live[..., None], dz / temperature, 0.0).astype(h.dtype)
      dh = jax.lax.dot_general(dz, weights, (((2,), (0,)), ((), ())), preferred_element_type=jnp.float32)
      flat = lambda x: x.reshape(-1, x.shape[-1])
      dw = jax.lax.dot_general(flat(dz), flat(h), (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)
      return sums + dw, dh.astype(h.dtype)

    return jax.lax.cond(live.any(), compute, lambda sums: (sums, jnp.zeros(h.shape, h.dtype)), sums)

  parts = (targets, on, log_norms, entropies, by_logprob, by_entropy)
  d_weights, d_columns = jax.lax.scan(
    slab, jnp.zeros(unembedding.shape, jnp.float32), (columns, *(_cut(x, width) for x in parts)))
  d_sorted = _join(d_columns)[:, :hidden.shape[1]]
  d_hidden = jnp.take_along_axis(d_sorted, back[..., None], axis=1)  # a gather: XLA's scatter is slow
  return d_hidden, d_weights.astype(unembedding.dtype), None, None, None, None


_slabs.defvjp(_forward, _backward)


def _logits(h, weights, temperature):
  """[R, c, D] @ [V, D]^T in float32, divided by the temperature."""
  flat = h.reshape(-1, h.shape[-1])  # two-dimensional: XLA:CPU hands it to its fast library
  z = jax.lax.dot_general(flat, weights, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
  z = z.reshape(*h.shape[:-1], weights.shape[0])
  return z if temperature == 1.0 else z / temperature


def _at(z, ids):
  """z[..., ids] as a masked sum, which a sharded vocabulary does not have to be gathered for."""
  hit = jnp.arange(z.shape[-1], dtype=ids.dtype)[None, None, :] == ids[..., None]
  return jnp.where(hit, z, 0.0).sum(axis=-1)


def _sorted(hidden, order, columns):
  h = jnp.take_along_axis(hidden, order[..., None], axis=1)
  return jnp.pad(h, ((0, 0), (0, columns - h.shape[1]), (0, 0)))


def _cut(x, width):
  """[R, S, …] → [slabs, R, width, …]."""
  return jnp.moveaxis(x.reshape(x.shape[0], -1, width, *x.shape[2:]), 1, 0)


def _join(x):
  """[slabs, R, width, …] → [R, S, …]."""
  x = jnp.moveaxis(x, 0, 1)
  return x.reshape(x.shape[0], -1, *x.shape[3:])
