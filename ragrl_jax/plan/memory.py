"""Counts the parameters of a decoder on one chip, and the hosts on which an engine's weights fit."""

import dataclasses
from typing import Any

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


def layer_matrices(shape: Any) -> float:
  """Number of parameters of one layer's matrices, on all chips together, in the mean of a hybrid's layers.

  Of a mixture's, without the router.
  """
  c = shape
  mixers = c.attending * c.attention_matrices + (c.num_layers - c.attending) * c.delta_matrices
  return mixers / c.num_layers + 3 * c.d_model * c.d_ff * max(c.num_experts, 1)


def mlp_width(shape: Any) -> int:
  """Numbers of a token in the MLP's arrays. A mixture has them, and the input and output, once for each expert."""
  c = shape
  return (3 * c.d_ff + 2 * c.d_model) * c.experts_per_token if c.num_experts else 3 * c.d_ff


def counted(shape: Any, axes: Axes) -> Counted:
  """A chip's parameters under the rules of `parallel/rules.py`. Norms are not sharded."""
  c = shape
  deltas = c.num_layers - c.attending
  norms = c.num_layers * (4 if c.traits.post_norms else 2) * c.d_model + c.d_model
  norms += c.attending * 2 * c.head_dim * c.qk_norm
  norms += deltas * c.delta_value_dim
  biases = c.num_layers * c.head_dim * (c.num_heads + 2 * c.num_kv_heads) * c.attention_bias
  # The convolution, and the decay and step of each head.
  biases += deltas * (c.delta_conv * c.delta_channels + 2 * c.delta_value_heads)
  unsharded = c.num_layers * c.d_model * c.output_bias  # the output's bias is not sharded
  routers = c.num_layers * c.d_model * c.num_experts / axes.fsdp  # tensor splits the experts, not the router
  return Counted(
    c.num_layers * layer_matrices(c) / (axes.tensor * axes.fsdp) + routers,
    c.vocab_size * c.d_model * (1 if c.tied else 2) / (axes.fsdp * axes.tensor),
    norms + biases / axes.tensor + unsharded,
  )


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
  count = counted(shape, here)
  return 2.0 * (count.matrices + count.tables) + 4.0 * count.narrow
