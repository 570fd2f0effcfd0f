"""Computes the bytes that stay on a chip during a run: parameters, optimiser state, gradients and cache."""

import dataclasses
from typing import Any

from ragrl_jax.parallel import mesh as mesh_lib
from ragrl_jax.settings import MAX_PROMPTS


@dataclasses.dataclass(frozen=True)
class Axes:
  """The sizes of a mesh's axes."""

  data: int = 1
  fsdp: int = 1
  tensor: int = 1
  sequence: int = 1

  @property
  def size(self) -> int:
    """Number of chips."""
    return self.data * self.fsdp * self.tensor * self.sequence

  @property
  def shares(self) -> int:
    """Number of shards of a block's rows."""
    return self.data * self.fsdp

  def here(self, chips: int) -> "Axes":
    """The part of the mesh on one host with this number of chips. The host's engine runs there."""
    sizes = (self.data, self.fsdp, self.tensor, self.sequence)
    return Axes(*mesh_lib.within_host(sizes, chips))


@dataclasses.dataclass(frozen=True)
class Counted:
  """Number of a decoder's parameters on one chip.

  Attributes:
    matrices: parameters of the layers' matrices.
    tables: parameters of embedding and unembedding.
    narrow: parameters of norms and biases.
  """

  matrices: float
  tables: float
  narrow: float

  @property
  def all(self) -> float:
    """The sum of the three."""
    return self.matrices + self.tables + self.narrow


def layer_matrices(shape: Any) -> int:
  """Number of parameters of one layer's matrices, on all chips together."""
  c = shape
  return c.d_model * (c.head_dim * (2 * c.num_heads + 2 * c.num_kv_heads) + 3 * c.d_ff)


def counted(shape: Any, axes: Axes) -> Counted:
  """A chip's parameters under the rules of `parallel/rules.py`.

  Norms are not sharded, nor is a vocabulary that tensor does not divide.
  """
  c = shape
  vocab = axes.tensor if c.vocab_size % axes.tensor == 0 else 1
  norms = c.num_layers * (2 * c.d_model + 2 * c.head_dim * c.qk_norm) + c.d_model
  biases = c.num_layers * c.head_dim * (c.num_heads + 2 * c.num_kv_heads) * c.attention_bias
  whole = c.num_layers * c.d_model * c.output_bias  # the output's bias is not sharded
  return Counted(
    c.num_layers * layer_matrices(c) / (axes.fsdp * axes.tensor),
    c.vocab_size * c.d_model * (1 if c.tied else 2) / (axes.fsdp * vocab),
    norms + biases / axes.tensor + whole,
  )


def engine_axes(config: Any, devices: int) -> Axes:
  """The engine's mesh on a host with so many chips: replicas on data, the chips of each on tensor."""
  return Axes(data=devices // config.rollout.mesh.tensor, tensor=config.rollout.mesh.tensor)


def cached_tokens(config: Any, replicas: int) -> int:
  """Tokens that the cache of one replica has room for."""
  r = config.rollout
  full = (-(-r.rows // replicas) + MAX_PROMPTS) * -(-r.context // r.page)
  return (-(-r.pages // replicas) or full) * r.page


def cache(shape: Any, config: Any, here: Axes) -> float:
  """Bytes of the engine's bf16 cache on a chip: its replica's pages, of its heads."""
  heads = shape.num_kv_heads / here.tensor
  return 4.0 * shape.num_layers * cached_tokens(config, here.data) * heads * shape.head_dim


def of_learner(shape: Any, axes: Axes, *, reference: bool, critic: bool) -> dict[str, float]:
  """Bytes that the learner keeps on a chip, by name: float32 master weights, AdamW's two moments, the gradient.

  The parameters that a run starts from become the state's (`Learner.init`), or they are the reference.

  Args:
    shape: a DecoderConfig; all parameters are trained.
    axes: the mesh.
    reference: whether there is a frozen policy: the initial parameters.
    critic: whether the critic has its own decoder.
  """
  mine = counted(shape, axes).all
  found = {"learner": 16.0 * mine}
  if reference:
    found["reference"] = 4.0 * mine
  if critic:
    found["critic"] = 16.0 * (mine + shape.d_model + 1)
  return found


def of_engine(shape: Any, config: Any, here: Axes) -> dict[str, float]:
  """Bytes that a host's engine keeps on a chip, by name: bf16 weights with float32 norms and biases, and the cache.

  Args:
    shape: a DecoderConfig.
    config: the run's config.
    here: the engine's mesh, see `engine_axes`.
  """
  mine = counted(shape, here)
  return {
    "engine: weights": 2.0 * (mine.matrices + mine.tables) + 4.0 * mine.narrow,
    "engine: cache": cache(shape, config, here),
  }
