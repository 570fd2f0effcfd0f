"""A teacher: a frozen model that reads the policy's rows. It scores their tokens, and draws none."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ragrl_jax.learner import forward
from ragrl_jax.learner.settings import Settings
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import rules
from ragrl_jax.structs import Batch, TeacherRows


def with_rows(model: Decoder, vocab: int) -> Decoder:
  """The model with this many rows of the vocabulary: rows that stand for no token are cut, or zeros are added.

  Models of one family may differ in them. The model itself is changed.
  """
  for name in ("embedding",) if model.config.tied else ("embedding", "lm_head"):
    table = getattr(model, name)[...]
    if len(table) != vocab:
      tables = {name: jnp.pad(table[:vocab], ((0, max(vocab - len(table), 0)), (0, 0)))}
      setattr(model, name, nnx.Param((tables if model.mesh is None else rules.place(model.mesh, tables))[name]))
  return model


class Teacher:
  """A frozen model, and its programs.

  Its hidden states exist for one block at a time, and whole logits never: `core.logprobs.chunked` computes them in
  chunks, beside the policy's.

  Attributes:
    params: the weights, sharded like the policy's; None if the policy teaches itself.
  """

  def __init__(self, model: Callable[[Any], Decoder], params: Any, settings: Settings):
    """Builds the programs; nothing is compiled yet.

    Args:
      model: parameters → the model. It has the policy's rows of the vocabulary, see `with_rows`, and its ranges without
        a token.
      params: its parameters. They may be ShapeDtypeStructs if programs are only compiled.
    """
    self.params, self._model, s = params, model, settings

    def teacher_states(params: Any, batch: Batch, rows: TeacherRows | None) -> jax.Array:
      if rows is None:
        return forward.states(model(params), dataclasses.replace(batch, routes=None))  # the policy's, not this model's
      reader: Any = model(params)
      hidden = reader.hidden(rows.tokens, rows.positions, None, rows.until)
      return jnp.take_along_axis(hidden, rows.twins[:, :, None], axis=1)

    def teacher_score(params: Any, batch: Batch, rows: TeacherRows | None) -> jax.Array:
      hidden, chunk = teacher_states(params, batch, rows), s.logprob_chunk
      return forward.scores(model(params), batch, temperature=s.temperature, chunk=chunk, hidden=hidden)[0]

    self.states, self.scores = jax.jit(teacher_states), jax.jit(teacher_score)

  @classmethod
  def of(cls, model: Decoder, settings: Settings) -> "Teacher":
    """Another model than the policy."""
    graphdef, params = nnx.split(model)
    if model.mesh is not None:
      params = rules.place(model.mesh, params)
    return cls(lambda params: nnx.merge(graphdef, params), params, settings)

  def __call__(self, batch: Batch, rows: TeacherRows | None = None, params: Any = None) -> tuple[jax.Array, jax.Array]:
    """(hidden states [R, T, E] for this block, unembedding [V, E]), for `step.policy_objective`.

    Args:
      rows: the block as the teacher reads it; None: as it is.
      params: the policy's parameters, if it teaches itself.
    """
    params = self.params if params is None else params
    return self.states(params, batch, rows), self._model(params).unembedding()

  def score(self, batch: Batch, rows: TeacherRows | None = None, params: Any = None) -> jax.Array:
    """Log-probabilities [R, L] of the tokens under the mask, at the sampler's temperature; zeros elsewhere."""
    return self.scores(self.params if params is None else params, batch, rows)
