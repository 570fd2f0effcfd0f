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
  piece: int | None = None,
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
    piece: most rows of its vocabulary whose logits a device holds at once; None: all.

  Returns:
    (logprobs, entropies), and with a teacher the divergences, in nats, float32, zeros where the mask is 0.

  Raises:
    ValueError: temperature not above 0.
  """
  if not temperature > 0:
    raise ValueError(f"temperature {temperature}: it must be above 0; a greedy sampler is scored at 1.")
  arrays = (jnp.asarray(x) for x in (hidden, unembedding, targets))
  static = _Static(chunk, float(temperature), spread, tokenless, float(beta), piece)
  return _scores(*arrays, masked.as_bool(mask), teacher or (), static)


class _Static(NamedTuple):
  """Arguments of `chunked` that are no arrays."""

  chunk: int
  temperature: float
  spread: Spread
  tokenless: Ranges
  beta: float
  piece: int | None


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
  pieces = _pieces(unembedding.astype(hidden.dtype), static)
  cut, join = _slabs(on, static.chunk, spread)
  states, teacher_pieces = _teacher_parts(teacher, static)

  def slab(_, inputs):
    live, h, ids, teacher_states = inputs

    def compute():
      h_all, ids_all, *theirs = (_flat(spread.gather(x)) for x in (h, ids[..., None], *teacher_states))
      most, total, moment, at = _sums(h_all, pieces, ids_all, static)
      log_norm = spread.logsumexp(most + jnp.log(total))
      shift = most - log_norm
      entropy = spread.sum(-jnp.exp(shift) * (moment + total * shift))
      outputs, saved = (spread.sum(at) - log_norm, entropy), (entropy, log_norm)
      if theirs:
        most, total, *_ = _sums(theirs[0], teacher_pieces[0], ids_all, static)
        q_norm = spread.logsumexp(most + jnp.log(total))

        def more(_, both, so_far):
          log_p = _logits(h_all, both[0], static.temperature) - log_norm
          log_q = _logits(theirs[0], both[1], static.temperature) - q_norm
          terms = kl.divergence_terms(log_p, log_q, static.beta)
          return tuple(x + term.sum(axis=-1, keepdims=True) for x, term in zip(so_far, terms, strict=True))

        zeros = jnp.zeros(ids_all.shape, jnp.float32)
        divergence, pull = map(spread.sum, _for_each((pieces, *teacher_pieces), more, (zeros, zeros)))
        outputs, saved = (*outputs, divergence), (*saved, q_norm, pull)
      rows = lambda x: spread.own(x.reshape(-1, ids.shape[1]))
      return jax.tree.map(rows, (outputs, saved))

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
  pieces = _pieces(unembedding.astype(hidden.dtype), static)
  cut, join = _slabs(on, static.chunk, spread)
  states, teacher_pieces = _teacher_parts(teacher, static)

  def slab(sums, inputs):
    live, h, teacher_states, *numbers = inputs

    def compute(sums):
      h_all, *theirs = (_flat(spread.gather(x)) for x in (h, *teacher_states))
      ids, on, (entropy, log_norm, *saved), (g, g_entropy, *rest) = jax.tree.map(
        lambda x: _flat(spread.gather(x)[..., None]), tuple(numbers)
      )

      def more(at, given, so_far):
        """Adds to the gradient of the states, and to that of this piece of the vocabulary."""
        (piece, *teacher_piece), (sums, dh) = given, so_far
        log_p = _logits(h_all, piece, static.temperature) - log_norm
        p = jnp.exp(log_p)
        dz = jnp.where(_hit(piece, ids), g, 0.0) - p * (g + g_entropy * (log_p + entropy))
        if theirs:
          q_norm, pull = saved
          log_q = _logits(theirs[0], teacher_piece[0], static.temperature) - q_norm
          pulls = kl.divergence_terms(log_p, log_q, static.beta)[1]
          dz = dz + rest[0] * (pulls - p * pull)
        dz = jnp.where(on, dz / static.temperature, 0.0).astype(h.dtype)
        full = dict(preferred_element_type=jnp.float32)
        dh = dh + jax.lax.dot_general(dz, piece.weights, (((1,), (0,)), ((), ())), **full)
        dw = jax.lax.dot_general(dz, h_all, (((0,), (0,)), ((), ())), **full)
        # Added in its place: a gradient of the whole vocabulary for each slab would be read and written three times.
        so_far = jax.lax.dynamic_index_in_dim(sums, at, keepdims=False)
        return jax.lax.dynamic_update_index_in_dim(sums, so_far + dw, at, 0), dh

      sums, dh = _for_each((pieces, *teacher_pieces), more, (sums, jnp.zeros(h_all.shape, jnp.float32)))
      dh = dh.reshape(-1, *h.shape[1:])
      return sums, spread.own_sum(dh).astype(h.dtype)

    return jax.lax.cond(live, compute, lambda sums: (sums, jnp.zeros(h.shape, h.dtype)), sums)

  live = spread.anywhere(cut(on).any(axis=(1, 2)))
  cotangents = jax.tree.map(lambda x: jnp.where(on, x, 0.0), cotangents)
  d_weights, d_hidden = jax.lax.scan(
    slab,
    jnp.zeros(pieces.weights.shape, jnp.float32),
    (live, *jax.tree.map(cut, (hidden, states, targets, on, saved, cotangents))),
  )
  d_weights = spread.stored(d_weights.reshape(-1, d_weights.shape[-1]), unembedding.shape[0])
  return join(d_hidden), d_weights.astype(unembedding.dtype)


def _teacher_parts(teacher, static):
  """(the teacher's states, its vocabulary in pieces), each in a list; without a teacher the lists are empty."""
  if not teacher:
    return [], []
  states, unembedding = teacher
  return [states], [_pieces(unembedding.astype(states.dtype), static)]


def _sums(h, pieces, ids, static):
  """[N, 1] each: the greatest logit m, the sums of e^(z - m) and e^(z - m) (z - m), and the logit of the token."""
  add_up = lambda x: x.sum(axis=-1, keepdims=True)

  def more(_, piece, so_far):
    most, total, moment, at = so_far
    z = _logits(h, piece, static.temperature)
    top = jnp.maximum(most, z.max(axis=-1, keepdims=True))
    below, fall = z - top, most - top
    e = jnp.exp(below)
    moment = jnp.exp(fall) * (moment + total * fall) + add_up(e * below)
    total = jnp.exp(fall) * total + add_up(e)
    return top, total, moment, at + add_up(jnp.where(_hit(piece, ids), z, 0.0))

  zeros = jnp.zeros(ids.shape, jnp.float32)
  return _for_each(pieces, more, (zeros + MASKED, zeros, zeros, zeros))


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


class _Vocabulary(NamedTuple):
  """Rows of the vocabulary: weights [v, D], their ids int32 [v], and a mask of those with a token (None: all)."""

  weights: jax.Array
  ids: jax.Array
  real: jax.Array | None


def _pieces(unembedding, static):
  """This device's rows of the vocabulary in equal pieces, stacked."""
  weights, ids, real = static.spread.piece(unembedding)
  if static.tokenless:
    have = _have_tokens(ids, static.tokenless)
    real = have if real is None else real & have
  rows = weights.shape[0]
  most = min(static.piece or rows, rows)
  # A vocabulary with no divisor near the size asked for stays whole.
  size = next((size for size in range(most, most // 4, -1) if rows % size == 0), rows)
  return jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[1:]), _Vocabulary(weights, ids, real))


def _for_each(pieces, f, start):
  """The last result of f(number, piece, result before); without a loop if there is one piece."""
  count = jax.tree.leaves(pieces)[0].shape[0]
  take = lambda i: jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), pieces)
  if count == 1:
    return f(0, take(0), start)
  return jax.lax.fori_loop(0, count, lambda i, so_far: f(i, take(i), so_far), start)


def _flat(x):
  """[R, c, …] → [R c, …]: XLA:CPU has its fast matmuls, and divides elementwise work, along a long first dimension."""
  return x.reshape(-1, *x.shape[2:])


def _logits(h, piece, temperature):
  """[N, D] @ [v, D]^T in float32, divided by the temperature."""
  z = jax.lax.dot_general(h, piece.weights, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
  z = z if temperature == 1.0 else z / temperature
  return z if piece.real is None else jnp.where(piece.real[None], z, MASKED)


def _hit(piece, ids):
  """Whether the vocabulary's row is the token's [N, 1], bool [N, v]."""
  return piece.ids[None] == ids.astype(piece.ids.dtype)
