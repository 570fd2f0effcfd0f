"""The forward pass: log-probabilities and entropies of a packed batch's trained tokens."""

from typing import Any

import jax
import jax.numpy as jnp

from ragrl_jax.core import logprobs as logprobs_lib
from ragrl_jax.parallel import rules
from ragrl_jax.structs import Batch


def states(model: Any, batch: Batch) -> jax.Array:
  """A policy's hidden states [R, T, D], with the experts that the sampler's router chose, if the batch has them."""
  # Models without experts need not know the argument.
  more = {} if batch.routes is None else dict(routes=batch.routes)
  return model.hidden(batch.tokens, batch.positions, batch.segment_ids, batch.prefix_ids, **more)


def scores(
  model: Any, batch: Batch, *, temperature: float, chunk: int, hidden: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
  """(logprobs, entropies) float32 [R, T] of the tokens under `loss_mask`, zeros elsewhere.

  Entry t is about token t, and is computed from the hidden state at t - 1 of the same sequence. A sequence's first
  token is never under the mask, so no state predicts a token of another sequence.

  Args:
    model: a decoder with `hidden(tokens, positions, segment_ids, prefix_ids)` and `unembedding()`.
    batch: packed rows.
    temperature: the sampler's.
    chunk: number of tokens whose logits exist at the same time.
    hidden: the model's states for this batch, if they are already computed.
  """
  if hidden is None:  # a training step passes them, because a shared critic reads its values from the same states
    hidden = states(model, batch)
  # State t predicts token t + 1, so targets and mask are shifted left, results right. The mask hides what wraps around.
  mask = jnp.roll(jnp.asarray(batch.loss_mask).astype(bool).at[:, 0].set(False), -1, axis=1)
  # Never [R, T, V]: the logits exist for `chunk` tokens at a time, and the backward pass recomputes them.
  weights = model.unembedding()
  found = logprobs_lib.chunked(
    hidden,
    weights,
    jnp.roll(batch.tokens, -1, axis=1),
    mask,
    chunk=chunk,
    temperature=temperature,
    spread=rules.head(model.mesh, hidden, weights),
    tokenless=model.tokenless,
  )
  logprobs, entropies = (jnp.roll(x, 1, axis=1) for x in found)
  return logprobs, entropies
