"""Computes the bytes that stay on a chip during a run: parameters, optimiser state, gradients and cache."""

import dataclasses
from typing import Any

from ragrl_jax.models import cache as cache_lib
from ragrl_jax.parallel import mesh as mesh_lib
from ragrl_jax.plan import gpus
from ragrl_jax.settings import MAX_PROMPTS

GRADIENT = "gradient"  # its name in the report's resident memory


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
  """Number of parameters of one layer's matrices, on all chips together; of a mixture's, without the router."""
  c = shape
  return c.d_model * (c.head_dim * (2 * c.num_heads + 2 * c.num_kv_heads) + 3 * c.d_ff * max(c.num_experts, 1))


def mlp_width(shape: Any) -> int:
  """Numbers of a token in the MLP's arrays. A mixture has them, and the input and output, once for each expert."""
  c = shape
  return (3 * c.d_ff + 2 * c.d_model) * c.experts_per_token if c.num_experts else 3 * c.d_ff


def counted(shape: Any, axes: Axes) -> Counted:
  """A chip's parameters under the rules of `parallel/rules.py`. Norms are not sharded."""
  c = shape
  norms = c.num_layers * ((4 if c.traits.post_norms else 2) * c.d_model + 2 * c.head_dim * c.qk_norm) + c.d_model
  biases = c.num_layers * c.head_dim * (c.num_heads + 2 * c.num_kv_heads) * c.attention_bias
  whole = c.num_layers * c.d_model * c.output_bias  # the output's bias is not sharded
  routers = c.num_layers * c.d_model * c.num_experts / axes.fsdp  # tensor splits the experts, not the router
  return Counted(
    c.num_layers * layer_matrices(c) / (axes.fsdp * axes.tensor) + routers,
    c.vocab_size * c.d_model * (1 if c.tied else 2) / (axes.fsdp * axes.tensor),
    norms + biases / axes.tensor + whole,
  )


def engine_axes(config: Any, each: int, hosts: int = 1) -> Axes:
  """An engine's mesh on `hosts` hosts of `each` chips: replicas on "data", the chips of a replica on "tensor".

  Raises:
    ValueError: config.rollout.mesh does not fill whole hosts.
  """
  mesh = config.rollout.mesh
  size = mesh_lib.engine_size(each, hosts, replicas=mesh.replicas, tensor=mesh.tensor)
  return Axes(data=size // mesh.tensor, tensor=mesh.tensor)


def fewest_hosts(shape: Any, each: int, hosts: int, room: float) -> int | None:
  """Smallest number of hosts with `each` chips on which an engine's bf16 weights need at most `room` bytes per chip.

  None if there is no such number, because a replica has at most as many chips as the model has key-value heads.
  """
  for span in (n for n in range(1, hosts + 1) if hosts % n == 0):
    tensors = (n for n in range(1, span * each + 1) if span * each % n == 0 and shape.num_kv_heads % n == 0)
    if of_weights(shape, Axes(tensor=max(tensors))) <= room:
      return span
  return None


def of_weights(shape: Any, here: Axes) -> float:
  """Bytes of an engine's bf16 weights on a chip, with float32 norms and biases."""
  mine = counted(shape, here)
  return 2.0 * (mine.matrices + mine.tables) + 4.0 * mine.narrow


def cached_tokens(config: Any, replicas: int) -> int:
  """Capacity of the cache of one replica, in tokens."""
  r = config.rollout
  full = (-(-r.rows // replicas) + MAX_PROMPTS) * -(-r.context // r.page)
  return (-(-r.pages // replicas) or full) * r.page


def layout(shape: Any, config: Any, topology: str, tensor: int) -> cache_lib.Layout:
  """The layout of the engine's cache on these TPUs or GPUs, with bf16 matmuls and `tensor` chips per replica."""
  r, platform = config.rollout, "gpu" if gpus.is_gpu(topology) else "tpu"
  return cache_lib.layout(shape, r.page, "bfloat16", platform, tensor, kv_dtype=r.kv_dtype)


def of_learner(shape: Any, axes: Axes, *, reference: bool, critic: bool) -> dict[str, float]:
  """Bytes that the learner keeps on a chip, by name: float32 master weights, AdamW's two moments, the gradient.

  The parameters that a run starts from become the state's (`Learner.init`), or they are the reference. There is one
  gradient at a time, of the policy or of the critic, and only while the learner works.

  Args:
    shape: a DecoderConfig; all parameters are trained.
    axes: the mesh.
    reference: whether there is a frozen policy: the initial parameters.
    critic: whether the critic has its own decoder.
  """
  mine = counted(shape, axes).all
  found = {"learner": 12.0 * mine}
  if reference:
    found["reference"] = 4.0 * mine
  if critic:
    mine += shape.d_model + 1
    found["critic"] = 12.0 * mine
  return found | {GRADIENT: 4.0 * mine}


def of_engine(shape: Any, config: Any, here: Axes, cache: cache_lib.Layout) -> dict[str, float]:
  """Bytes that an engine keeps on a chip, by name: bf16 weights with float32 norms and biases, and the cache.

  Args:
    shape: a DecoderConfig.
    config: the run's config.
    here: the engine's mesh, see `engine_axes`.
    cache: its layout.
  """
  return {
    "engine: weights": of_weights(shape, here),
    "engine: cache": cached_tokens(config, here.data) * cache.token_bytes / here.tensor,
  }
