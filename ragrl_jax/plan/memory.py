"""Bytes a chip holds for a run, by arithmetic: what stays exactly, what a program needs beside it about."""

import dataclasses
from typing import Any

from ragrl_jax.parallel import mesh as mesh_lib
from ragrl_jax.plan.workload import MAX_PROMPTS


@dataclasses.dataclass(frozen=True)
class Axes:
  """A mesh's sizes."""

  data: int = 1
  fsdp: int = 1
  tensor: int = 1
  sequence: int = 1

  @property
  def size(self) -> int:
    return self.data * self.fsdp * self.tensor * self.sequence

  @property
  def shares(self) -> int:
    """Ways in which a block's rows are cut."""
    return self.data * self.fsdp

  def here(self, chips: int) -> "Axes":
    """The part of one host with so many chips: where its engine runs."""
    sizes = (self.data, self.fsdp, self.tensor, self.sequence)
    return Axes(*mesh_lib.within_host(sizes, chips))


@dataclasses.dataclass(frozen=True)
class Counted:
  """Parameters of a decoder that lie on one chip.

  Attributes:
    matrices: of the layers.
    tables: embedding and unembedding.
    narrow: norms and biases.
  """

  matrices: float
  tables: float
  narrow: float

  @property
  def all(self) -> float:
    return self.matrices + self.tables + self.narrow


def layer_matrices(shape: Any) -> int:
  """Parameters of one layer's matrices, on all chips together."""
  c = shape
  return c.d_model * (c.head_dim * (2 * c.num_heads + 2 * c.num_kv_heads) + 3 * c.d_ff)


def counted(shape: Any, axes: Axes) -> Counted:
  """As `parallel/rules.py` spreads them: a vocabulary that tensor does not divide stays whole, norms always."""
  c = shape
  vocab = axes.tensor if c.vocab_size % axes.tensor == 0 else 1
  norms = c.num_layers * (2 * c.d_model + 2 * c.head_dim * c.qk_norm) + c.d_model
  biases = c.num_layers * c.head_dim * (c.num_heads + 2 * c.num_kv_heads) * c.attention_bias
  whole = c.num_layers * c.d_model * c.output_bias  # the output's bias is not cut
  return Counted(
    c.num_layers * layer_matrices(c) / (axes.fsdp * axes.tensor),
    c.vocab_size * c.d_model * (1 if c.tied else 2) / (axes.fsdp * vocab),
    norms + biases / axes.tensor + whole,
  )


def cache(shape: Any, config: Any, here: Axes) -> float:
  """The engine's, bf16: its heads are cut along tensor if that divides them, and its rows not at all."""
  r, c = config.rollout, shape
  length = -(-r.context // r.block) * r.block
  heads = c.num_kv_heads / (here.tensor if c.num_kv_heads % here.tensor == 0 else 1)
  return 4.0 * c.num_layers * (r.rows + MAX_PROMPTS) * length * heads * c.head_dim


def of_learner(shape: Any, axes: Axes, *, reference: bool, critic: bool) -> dict[str, float]:
  """What a learner keeps on a chip, in bytes: float32 masters, AdamW's two moments, the gradient.

  Args:
    shape: a DecoderConfig; every parameter is trained.
    axes: of the mesh.
    reference: whether a copy of the policy is kept.
    critic: whether there is a decoder of the critic's own.
  """
  mine = counted(shape, axes).all
  found = {"learner": 16.0 * mine}
  if reference:
    found["reference"] = 4.0 * mine
  if critic:
    found["critic"] = 16.0 * (mine + shape.d_model + 1)
  return found


def of_engine(shape: Any, config: Any, here: Axes) -> dict[str, float]:
  """What a host's engine keeps on a chip, in bytes: weights in bf16, norms and biases in float32, and the cache."""
  mine = counted(shape, here)
  return {
    "engine: weights": 2.0 * (mine.matrices + mine.tables) + 4.0 * mine.narrow,
    "engine: cache": cache(shape, config, here),
  }
