"""The forward pass: log-probabilities and entropies of a packed batch's trained tokens."""

from typing import Any

import jax
import jax.numpy as jnp

from ragrl_jax.core import logprobs as logprobs_lib
from ragrl_jax.models import attention
from ragrl_jax.parallel import rules
from ragrl_jax.structs import Batch

MOST = 8192  # tokens whose logits a GPU with spare memory holds at once
# Logits that a CPU holds at once: for each operation on more, XLA takes new memory, which the system fills with zeros
# first. A large vocabulary is taken in pieces instead of fewer tokens, because each token's share of the unembedding's
# gradient is read and written (benchmarks/LOG.md).
CPU_LOGITS, CPU_TOKENS, CPU_ROWS = 2**23, 256, 4096


def states(model: Any, batch: Batch) -> jax.Array:
  """A decoder's hidden states [R, T, D], with the experts that the sampler's router chose, if the batch has them."""
  # Models without experts need not know the argument.
  more = {} if batch.routes is None else dict(routes=batch.routes)
  return model.hidden(batch.tokens, batch.positions, batch.segment_ids, batch.until, **more)


def scores(
  model: Any,
  batch: Batch,
  *,
  temperature: float,
  chunk: int,
  hidden: jax.Array | None = None,
  teacher: tuple[jax.Array, jax.Array] | None = None,
  beta: float = 1.0,
) -> tuple[jax.Array, ...]:
  """(logprobs, entropies) float32 [R, L] of the tokens under `loss_mask`, zeros elsewhere; with a teacher, divergences.

  An entry is about a token, and is computed from the hidden state before it in the same sequence. A sequence's first
  token is never under the mask, so no state predicts a token of another sequence.

  Args:
    model: a decoder with `hidden(tokens, positions, segment_ids, until)` and `unembedding()`.
    temperature: the sampler's.
    chunk: number of tokens whose logits exist at the same time.
    hidden: the model's states for this batch, if they are already computed.
    teacher: its states for this batch, and its unembedding.
    beta: of the divergence from the teacher, see `core/kl.py`.
  """
  if hidden is None:  # a training step passes them, because a shared critic reads its values from the same states
    hidden = states(model, batch)
  mask = jnp.asarray(batch.loss_mask).astype(bool)
  if batch.places is None or batch.states is None:
    # State t predicts token t + 1, so targets and mask are shifted left, results right. The mask hides what wraps.
    targets, on = jnp.roll(batch.tokens, -1, axis=1), jnp.roll(mask.at[:, 0].set(False), -1, axis=1)
  else:
    # A state has several targets where texts part. A token that several sequences train is computed once.
    before = jnp.asarray(batch.states)
    targets, on = batch.tokens, before >= 0
    predicting = lambda states: jnp.take_along_axis(states, jnp.maximum(before, 0)[:, :, None], axis=1)
    hidden, teacher = predicting(hidden), teacher and (predicting(teacher[0]), teacher[1])
  # Never [R, T, V]: the logits exist for `chunk` tokens at a time, and the backward pass recomputes them. A GPU with
  # spare memory takes more at a time, because each chunk reads and writes the gradient of the unembedding: a power of
  # two, since a run that is resumed finds a little more or less memory free, and must sum in the same order.
  weights = model.unembedding()
  fit = model.spare() // (16 * weights.shape[0])  # a quarter of it, four bytes a logit
  chunk = max(chunk, min(MOST, 1 << max(fit.bit_length() - 1, 0)))
  piece = None
  if attention.platform(model.mesh) == "cpu":
    chunk, piece = min(chunk, max(CPU_TOKENS, CPU_LOGITS // weights.shape[0])), CPU_ROWS
  results = logprobs_lib.chunked(
    hidden,
    weights,
    targets,
    on,
    chunk=chunk,
    temperature=temperature,
    spread=rules.head(model.mesh, hidden, weights),
    tokenless=model.tokenless,
    teacher=teacher,
    beta=beta,
    piece=piece,
  )
  if batch.places is None:
    return tuple(jnp.roll(x, 1, axis=1) for x in results)
  return tuple(jnp.where(mask, jnp.take_along_axis(x, batch.places, axis=1), 0.0) for x in results)


def values(critic: Any, batch: Batch, hidden: jax.Array | None = None) -> jax.Array:
  """A critic's values float32 [R, L], each from the state before its token; only those under `loss_mask` have meaning.

  Args:
    critic: a `models.decoder.Critic`.
    hidden: the states of the critic's trunk for this batch, if they are already computed.
  """
  result = critic.values(states(critic.trunk, batch) if hidden is None else hidden)
  if batch.places is None or batch.states is None:
    return jnp.roll(result, 1, axis=1)
  before = jnp.take_along_axis(jnp.maximum(batch.states, 0), batch.places, axis=1)
  return jnp.take_along_axis(result, before, axis=1)
