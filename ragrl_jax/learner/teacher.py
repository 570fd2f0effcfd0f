"""A teacher: a frozen model that reads the policy's rows. It scores their tokens, and draws none."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ragrl_jax.learner import forward
from ragrl_jax.learner.settings import Settings
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import rules
from ragrl_jax.structs import Batch


def with_rows(model: Decoder, vocab: int) -> Decoder:
  """The model with this many rows of the vocabulary: rows that stand for no token are cut, or zeros are added.

  Models of one family may differ in them. The model itself is changed.
  """
  for name in ("embedding",) if model.config.tied else ("embedding", "lm_head"):
    table = getattr(model, name)[...]
    if len(table) != vocab:
      made = {name: jnp.pad(table[:vocab], ((0, max(vocab - len(table), 0)), (0, 0)))}
      setattr(model, name, nnx.Param((made if model.mesh is None else rules.place(model.mesh, made))[name]))
  return model


class Teacher:
  """A model's weights, sharded like the policy's, and its programs.

  Its hidden states exist for one block at a time, and whole logits never: `core.logprobs.chunked` computes them in
  chunks, beside the policy's.

  Attributes:
    params: the weights.
  """

  def __init__(self, model: Decoder, settings: Settings):
    """Builds the programs; nothing is compiled yet.

    Args:
      model: has the policy's rows of the vocabulary, see `with_rows`, and its ranges without a token. It may consist of
        ShapeDtypeStructs if programs are only compiled.
      settings: the objective.
    """
    graphdef, self.params = nnx.split(model)
    if model.mesh is not None:
      self.params = rules.place(model.mesh, self.params)
    self._head = "embedding" if model.config.tied else "lm_head"

    def teacher_states(params: Any, batch: Batch) -> jax.Array:
      return forward.states(nnx.merge(graphdef, params), batch)

    def teacher_score(params: Any, batch: Batch) -> jax.Array:
      model = nnx.merge(graphdef, params)
      return forward.scores(model, batch, temperature=settings.temperature, chunk=settings.logprob_chunk)[0]

    self.states, self._score = jax.jit(teacher_states), jax.jit(teacher_score)

  def __call__(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """(hidden states [R, T, E] of this block, unembedding [V, E]), for `step.policy_objective`."""
    return self.states(self.params, self._own(batch)), self.params[self._head][...]

  def score(self, batch: Batch) -> jax.Array:
    """Log-probabilities [R, L] of the tokens under the mask, at the sampler's temperature; zeros elsewhere."""
    return self._score(self.params, self._own(batch))

  def _own(self, batch: Batch) -> Batch:
    return dataclasses.replace(batch, routes=None)  # the policy's, not this model's
