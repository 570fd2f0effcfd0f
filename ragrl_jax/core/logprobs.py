"""Log-probabilities, entropies and divergences from a teacher, in float32, without storing logits [B, T, V]."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ragrl_jax.core import kl, masked
from ragrl_jax.core.masked import AnyArray, Mask
from ragrl_jax.core.spread import ONE_DEVICE, Spread

MASKED = -1e30  # logit of rows of the vocabulary that are padding or have no token: finite, so they get p = 0, no NaN
Ranges = tuple[tuple[int, int], ...]  # (first, end) of rows of the vocabulary without a token


def entropy(logits: Float[AnyArray, "*s V"]) -> Float[Array, "*s"]:
  """Entropy of softmax(logits): -sum_v p_v log p_v, float32, in nats."""
  logp = jax.nn.log_softmax(jnp.asarray(logits).astype(jnp.float32), axis=-1)
  # 0 log 0 is 0: an excluded token has logp = -inf.
  return -jnp.where(logp > -jnp.inf, jnp.exp(logp) * logp, 0.0).sum(axis=-1)


def without(logits: Float[AnyArray, "*s V"], tokenless: Ranges) -> Float[Array, "*s V"]:
  """The logits with MASKED in these rows of the vocabulary: softmax is then over the rows that have a token."""
  logits = jnp.asarray(logits)
  if not tokenless:
    return logits
  real = _have_tokens(jnp.arange(logits.shape[-1], dtype=jnp.int32), tokenless)
  return jnp.where(real.reshape((1,) * (logits.ndim - 1) + (-1,)), logits, MASKED)


def _have_tokens(rows: Int[Array, "v"], tokenless: Ranges) -> Bool[Array, "v"]:
  inside = [(rows >= first) & (rows < end) for first, end in tokenless]
  return ~functools.reduce(jnp.logical_or, inside)


def chunked(
  hidden: Float[AnyArray, "R T D"],
  unembedding: Float[AnyArray, "V D"],
  targets: Int[AnyArray, "R T"],
  mask: Mask,
  *,
  chunk: int,
  temperature: float = 1.0,
  spread: Spread = ONE_DEVICE,
  tokenless: Ranges = (),
  teacher: tuple[Float[AnyArray, "R T E"], Float[AnyArray, "V E"]] | None = None,
  beta: float = 1.0,
) -> tuple[Float[Array, "R T"], ...]:
  """Log-probability of each target, entropy of its distribution, and divergence from a teacher's; differentiable.

  Logits are stored for about `chunk` tokens at a time; the backward pass recomputes them. Only masked-in tokens are
  computed: they are moved to the front of their row, and slabs of columns without any such token are skipped. On a mesh
  each device computes the logits of its piece of the vocabulary. No device gathers the whole unembedding or sums its
  whole gradient.

  Args:
    hidden: states that predict the targets, after the final norm. The matmuls use its dtype; sums are float32.
    unembedding: one row per token of the vocabulary.
    targets: ids in [0, V).
    mask: 1 on the tokens to compute.
    chunk: number of tokens whose logits a device may hold at once (at least one column of rows). A device with 1/n of
      the vocabulary holds its part of the logits of n times as many tokens.
    temperature: divides the logits, > 0.
    spread: the sharding of the arrays on a mesh.
    tokenless: rows without a token. They have no probability, and no target is among them.
    teacher: its hidden states and unembedding, which are constants, with the same rows of the vocabulary. Its logits
      are divided by the same temperature.
    beta: of the divergence from the teacher, see `core/kl.py`.

  Returns:
    (logprobs, entropies), and with a teacher the divergences, in nats, float32, zeros where the mask is 0.

  Raises:
    ValueError: temperature not above 0.
  """
  if not temperature > 0:
    raise ValueError(f"temperature {temperature}: it must be above 0; a greedy sampler is scored at 1.")
  return _scores(
    jnp.asarray(hidden),
    jnp.asarray(unembedding),
    jnp.asarray(targets),
    masked.as_bool(mask),
    teacher or (),
    _Static(chunk, float(temperature), spread, tokenless, float(beta)),
  )


class _Static(NamedTuple):
  """Arguments of `chunked` that are no arrays."""

  chunk: int
  temperature: float
  spread: Spread
  tokenless: Ranges
  beta: float


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _scores(hidden, unembedding, targets, on, teacher, static):
  return _forward(hidden, unembedding, targets, on, teacher, static)[0]


def _forward(hidden, unembedding, targets, on, teacher, static):
  f = functools.partial(_forward_here, static=static)
  inputs = hidden, unembedding, targets, on
  outputs, saved = static.spread.over(f, "hwtt" + "hw" * bool(teacher), "tt")(*inputs, *teacher)
  return outputs, (inputs, saved, teacher)


def _backward(static, residuals, cotangents):
  inputs, saved, teacher = residuals
  f = functools.partial(_backward_here, static=static)
  over = static.spread.over(f, "hwtttt" + "hw" * bool(teacher), "hw")
  return *over(*inputs, saved, cotangents, *teacher), None, None, None


_scores.defvjp(_forward, _backward)


def _forward_here(hidden, unembedding, targets, on, *teacher, static):
  """On one device, slab by slab: the results of `chunked`, and what the backward pass needs, [R, T] each."""
  spread = static.spread
  weights, rows, real = _piece(unembedding.astype(hidden.dtype), spread, static.tokenless)
  cut, join = _slabs(on, static.chunk, spread)
  states, teacher_logits = _teacher_parts(teacher, static)

  def slab(_, inputs):
    live, h, ids, teacher_states = inputs

    def compute():
      z = _logits(spread.gather(h), weights, static.temperature, real)
      log_norm = spread.logsumexp(jax.nn.logsumexp(z, axis=-1))
      log_p = z - log_norm[..., None]
      at = jnp.where(_hit(rows, spread.gather(ids)), z, 0.0).sum(axis=-1)
      entropy = spread.sum(-(jnp.exp(log_p) * log_p).sum(axis=-1))
      outputs, saved = (spread.sum(at) - log_norm, entropy), (entropy, log_norm)
      if teacher_states:
        z = teacher_logits(*teacher_states)
        log_norm = spread.logsumexp(jax.nn.logsumexp(z, axis=-1))
        terms = kl.divergence_terms(log_p, z - log_norm[..., None], static.beta)
        divergence, pull = (spread.sum(x.sum(axis=-1)) for x in terms)
        outputs, saved = (*outputs, divergence), (*saved, log_norm, pull)
      return jax.tree.map(spread.own, (outputs, saved))

    zeros = lambda: jax.tree.map(lambda x: jnp.zeros(ids.shape, x.dtype), jax.eval_shape(compute))
    return None, jax.lax.cond(live, compute, zeros)

  live = spread.anywhere(cut(on).any(axis=(1, 2)))
  _, out = jax.lax.scan(slab, None, (live, *jax.tree.map(cut, (hidden, targets, states))))
  outputs, saved = jax.tree.map(join, out)
  return jax.tree.map(lambda x: jnp.where(on, x, 0.0), outputs), saved


def _backward_here(hidden, unembedding, targets, on, saved, cotangents, *teacher, static):
  """Gradients of hidden and unembedding on one device. Recomputes the logits slab by slab.

  With logits z, dlogp/dz = onehot - p and dH/dz = -p (log p + H); for the divergence see `kl.divergence_terms`.
  """
  spread = static.spread
  weights, rows, real = _piece(unembedding.astype(hidden.dtype), spread, static.tokenless)
  cut, join = _slabs(on, static.chunk, spread)
  states, teacher_logits = _teacher_parts(teacher, static)

  def slab(sums, inputs):
    live, h, teacher_states, *numbers = inputs

    def compute(sums):
      gathered = spread.gather(h)
      ids, on, (entropy, log_norm, *saved), (g, g_entropy, *rest) = jax.tree.map(
        lambda x: spread.gather(x)[..., None], tuple(numbers)
      )
      log_p = _logits(gathered, weights, static.temperature, real) - log_norm
      p = jnp.exp(log_p)
      dz = jnp.where(_hit(rows, ids[..., 0]), g, 0.0) - p * (g + g_entropy * (log_p + entropy))
      if teacher_states:
        q_norm, pull = saved
        pulls = kl.divergence_terms(log_p, teacher_logits(*teacher_states) - q_norm, static.beta)[1]
        dz = dz + rest[0] * (pulls - p * pull)
      dz = jnp.where(on, dz / static.temperature, 0.0).astype(h.dtype)
      dh = jax.lax.dot_general(dz, weights, (((2,), (0,)), ((), ())), preferred_element_type=jnp.float32)
      flat = lambda x: x.reshape(-1, x.shape[-1])
      dw = jax.lax.dot_general(flat(dz), flat(gathered), (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)
      return sums + dw, spread.own_sum(dh).astype(h.dtype)

    return jax.lax.cond(live, compute, lambda sums: (sums, jnp.zeros(h.shape, h.dtype)), sums)

  live = spread.anywhere(cut(on).any(axis=(1, 2)))
  cotangents = jax.tree.map(lambda x: jnp.where(on, x, 0.0), cotangents)
  d_weights, d_hidden = jax.lax.scan(
    slab,
    jnp.zeros(weights.shape, jnp.float32),
    (live, *jax.tree.map(cut, (hidden, states, targets, on, saved, cotangents))),
  )
  return join(d_hidden), spread.stored(d_weights, unembedding.shape[0]).astype(unembedding.dtype)


def _teacher_parts(teacher, static):
  """(the teacher's states as a list, a slab of them → its logits); without a teacher the list is empty."""
  if not teacher:
    return [], lambda h: h
  states, unembedding = teacher
  weights, _, real = _piece(unembedding.astype(states.dtype), static.spread, static.tokenless)
  return [states], lambda h: _logits(static.spread.gather(h), weights, static.temperature, real)


def _slabs(on, chunk, spread):
  """(cut, join). cut: [R, T, …] → [slabs, R, width, …], with each row's masked-in columns first; join: its inverse."""
  rows, length = on.shape
  width = max(1, min(length, chunk * spread.ways(spread.pieces) // (rows * spread.ways(spread.gathered))))
  columns = -(-length // width) * width
  # Stable: the trained columns keep their order. Columns that pad the last slab have mask 0.
  order = jnp.argsort(~on, axis=1, stable=True)
  inverse = jnp.argsort(order, axis=1)
  along = lambda index, x: index.reshape(index.shape + (1,) * (x.ndim - 2))

  def cut(x):
    x = jnp.take_along_axis(x, along(order, x), axis=1)
    x = jnp.pad(x, ((0, 0), (0, columns - length)) + ((0, 0),) * (x.ndim - 2))
    return jnp.moveaxis(x.reshape(rows, -1, width, *x.shape[2:]), 1, 0)

  def join(x):
    x = jnp.moveaxis(x, 0, 1).reshape(rows, columns, *x.shape[3:])[:, :length]
    return jnp.take_along_axis(x, along(inverse, x), axis=1)  # a gather: XLA's scatter is slow

  return cut, join


def _piece(unembedding, spread, tokenless):
  """`Spread.piece`, whose mask also leaves out rows without a token."""
  weights, rows, real = spread.piece(unembedding)
  if tokenless:
    have = _have_tokens(rows, tokenless)
    real = have if real is None else real & have
  return weights, rows, real


def _logits(h, weights, temperature, real):
  """[R, c, D] @ [V, D]^T in float32, divided by the temperature."""
  flat = h.reshape(-1, h.shape[-1])  # XLA:CPU uses its fast matmul library for two-dimensional arrays only
  z = jax.lax.dot_general(flat, weights, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
  z = z.reshape(*h.shape[:-1], weights.shape[0])
  z = z if temperature == 1.0 else z / temperature
  return z if real is None else jnp.where(real[None, None], z, MASKED)


def _hit(rows, ids):
  """Whether the vocabulary's row is the token's, bool [R, c, v]."""
  return rows[None, None, :] == ids[..., None].astype(rows.dtype)
