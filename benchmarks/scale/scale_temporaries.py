"""Estimates each program's temporaries and collective traffic, without compiling it.

Temporaries are the sum of the arrays expected to be live at once, from the code of the programs (`learner/step.py`,
`core/logprobs.py`, `models/decoder.py`, `engine/programs.py`). The number of copies that libtpu keeps, and the dtype of
its sums, are fitted to the first five compiled 7B cases. Traffic is counted as in `plan/aot.py`: the largest array of
each collective, on one chip.
"""

from typing import Any

from ragrl_jax.learner import row_layout
from ragrl_jax.plan.memory import Axes, counted, layer_matrices, mlp_width

NARROW, WIDE = 2.0, 4.0  # bytes of bfloat16 and float32


def chip_tokens(config: Any, axes: Axes) -> float:
  """Tokens of a block on one chip."""
  return config.learner.micro_rows * row_layout.longest_row(config) / (axes.shares * axes.sequence)


def accumulate_room(shape: Any, config: Any, axes: Axes, *, head: bool = True) -> float:
  """Bytes of temporaries for one block's gradient: the gradient, the layers' inputs, and the larger of layer and head.

  Args:
    shape: a DecoderConfig.
    config: the run's config.
    axes: the mesh.
    head: whether log-probabilities are computed; a critic's values need none.
  """
  c, tokens = shape, chip_tokens(config, axes)
  inputs = NARROW * tokens * c.d_model * c.num_layers
  layer = inputs + _layer_room(c, axes, tokens)  # the backward pass has a second copy of the inputs
  return WIDE * counted(c, axes).all + inputs + max(layer, head * _head_room(c, config, axes, tokens, copies=2))


def score_room(shape: Any, config: Any, axes: Axes, *, head: bool = True) -> float:
  """Bytes of temporaries for one block's log-probabilities, or without the head for a critic's values."""
  tokens = chip_tokens(config, axes)
  return max(_layer_room(shape, axes, tokens), head * _head_room(shape, config, axes, tokens, copies=1))


def _layer_room(c, axes, tokens):
  """Two layers' gathered matrices, 7.5 float32 arrays of the residual stream, and half of the wide arrays.

  Wide arrays are those that tensor shards: the MLP's three, queries, keys, values, and attention's output.
  """
  wide = mlp_width(c) + 2 * (c.num_heads + c.num_kv_heads) * c.head_dim
  per_token = 7.5 * WIDE * c.d_model + NARROW / 2 * wide / axes.tensor
  return 2 * NARROW * layer_matrices(c) / axes.tensor + tokens * per_token


def _head_room(c, config, axes, tokens, *, copies):
  """A slab of hidden states, gathered from the chips with other parts of the vocabulary, and its logits.

  copies=2 adds the gradients: of the logits, and of the hidden states in float32.
  """
  pieces = axes.tensor * axes.fsdp
  slab = min(tokens * axes.fsdp, config.learner.logprob_chunk * pieces)
  hidden = NARROW + WIDE * (copies - 1)
  return slab * (hidden * c.d_model + copies * WIDE * c.vocab_size / pieces) + 2 * WIDE * tokens * c.d_model


def accumulate_sent(shape: Any, config: Any, axes: Axes, *, head: bool = True) -> float:
  """Bytes that a chip sends for one block's gradient."""
  c, tokens = shape, chip_tokens(config, axes)
  sent = 4 * WIDE * tokens * c.d_model * (axes.fsdp * axes.tensor > 1)  # the embedding's lookup and its gradient
  if axes.fsdp > 1:  # a layer's matrices are gathered in both passes; their float32 gradient is scattered
    sent += c.num_layers * layer_matrices(c) / axes.tensor * (2 * NARROW + WIDE)
  if axes.data > 1:
    sent += WIDE * counted(c, axes).all
  if axes.tensor > 1:  # sums of tensor's parts of the residual stream: five in float32, one in bfloat16
    sent += c.num_layers * tokens * c.d_model * (5 * WIDE + NARROW)
  return sent + 3 * _keys_sent(c, axes, tokens) + head * (2 * NARROW + WIDE) * _hidden(c, axes, tokens)


def score_sent(shape: Any, config: Any, axes: Axes, *, head: bool = True) -> float:
  """Bytes that a chip sends for one block's log-probabilities, or without the head for a critic's values."""
  c, tokens = shape, chip_tokens(config, axes)
  sent = 2 * WIDE * tokens * c.d_model * (axes.fsdp * axes.tensor > 1) + head * NARROW * _hidden(c, axes, tokens)
  if axes.fsdp > 1:
    sent += c.num_layers * layer_matrices(c) / axes.tensor * NARROW
  if axes.tensor > 1:
    sent += c.num_layers * tokens * c.d_model * 2 * WIDE
  return sent + _keys_sent(c, axes, tokens)


def _keys_sent(c, axes, tokens):
  """Bytes of keys and values of whole rows, which are gathered if sequence shards the rows."""
  row = tokens * axes.sequence * 2 * c.num_kv_heads * c.head_dim / axes.tensor
  return c.num_layers * NARROW * row * (axes.sequence > 1)


def _hidden(c, axes, tokens):
  """Number of elements of hidden states that are gathered because fsdp shards the vocabulary too."""
  return tokens * axes.fsdp * c.d_model * (axes.fsdp > 1)


def extend_room(shape: Any, here: Axes, tokens: float) -> float:
  """Bytes of temporaries for `extend`: a layer's arrays. The cache is updated in place.

  Args:
    shape: a DecoderConfig.
    here: the engine's mesh.
    tokens: number of new tokens, all conversations of a replica together.
  """
  c = shape
  heads = NARROW * (c.num_heads + 2 * c.num_kv_heads) * c.head_dim / here.tensor
  return tokens * (2 * WIDE * c.d_model + 2 * heads + NARROW * mlp_width(c) / here.tensor)


def decode_room(shape: Any, config: Any, here: Axes) -> float:
  """Bytes of temporaries for decoding: those of one step, and four float32 copies of the logits."""
  tokens = _step_tokens(config, here)
  return extend_room(shape, here, tokens) + 4 * WIDE * tokens * shape.vocab_size / here.tensor


def _step_tokens(config, here):
  """Tokens of a replica's decoding step: the newest token and the draft of each lane."""
  return -(-config.rollout.lanes // here.data) * (config.rollout.speculate + 1)


def extend_sent(shape: Any, here: Axes, tokens: float) -> float:
  """Bytes that a chip sends in `extend` with this number of tokens a replica, on the engine's mesh."""
  return _pass_sent(shape, here, tokens, NARROW)


def _pass_sent(c, here, tokens, width):
  """Bytes of one pass over the layers: two sums per layer with `width` bytes per number, and the embedding's."""
  return (2 * c.num_layers + 1) * tokens * c.d_model * width * (here.tensor > 1)


def decode_sent(shape: Any, config: Any, here: Axes) -> float:
  """Bytes that a chip sends in one chunk: a pass for each step. Drawing sends a few numbers a lane, left out here."""
  return config.rollout.chunk * _pass_sent(shape, here, _step_tokens(config, here), WIDE)
