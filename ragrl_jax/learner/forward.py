"""The forward pass: log-probabilities and entropies of a packed batch's trained tokens."""

from typing import Any

import jax
import jax.numpy as jnp

from ragrl_jax.core import logprobs as logprobs_lib
from ragrl_jax.parallel import rules
from ragrl_jax.structs import Batch


def scores(
  model: Any, batch: Batch, *, temperature: float, chunk: int, hidden: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
  """(logprobs, entropies) float32 [R, T] of the tokens under `loss_mask`, zeros elsewhere.

  Entry t speaks of token t and comes from the hidden state at t - 1 of the same sequence; a sequence's first token is
  never under the mask, so that no state speaks of another sequence's token.

  Args:
    model: a decoder with `hidden(tokens, positions, segment_ids, prefix_ids)` and `unembedding()`.
    batch: packed rows.
    temperature: the sampler's.
    chunk: tokens whose logits exist at once.
    hidden: the model's states of this batch, if they are known.
  """
  if hidden is None:
    states = model.hidden(batch.tokens, batch.positions, batch.segment_ids, batch.prefix_ids)
  else:  # a training step has them: a shared critic reads its values off the same states
    states = hidden
  # State t predicts token t + 1: targets and mask move back by one, results forward. What wraps around is masked.
  mask = jnp.roll(jnp.asarray(batch.loss_mask).astype(bool).at[:, 0].set(False), -1, axis=1)
  # Never [R, T, V]: the logits of `chunk` tokens at a time, computed again in the backward pass.
  weights = model.unembedding()
  found = logprobs_lib.chunked(
    states,
    weights,
    jnp.roll(batch.tokens, -1, axis=1),
    mask,
    chunk=chunk,
    temperature=temperature,
    spread=rules.head(model.mesh, states, weights),
  )
  logprobs, entropies = (jnp.roll(x, 1, axis=1) for x in found)
  return logprobs, entropies
