"""What each program of a run needs beside what stays, and what it sends, without compiling it.

Sums of the arrays that are expected to live at once, and of those that must travel: as the programs are built
(`learner/step.py`, `core/logprobs.py`, `models/decoder.py`, `engine/programs.py`), and, for how many copies libtpu
keeps and in which type it adds up, as the first five compiled 7B cases show it. Traffic is counted as
`plan/aot.py` counts it: the largest array of each collective, on one chip.
"""

from typing import Any

from ragrl_jax.plan.memory import Axes, counted, layer_matrices

NARROW, WIDE = 2.0, 4.0  # bytes of bfloat16 and float32


def chip_tokens(config: Any, axes: Axes) -> float:
  """Of a block, on one chip."""
  return config.learner.micro_rows * max(config.learner.row_lengths) / (axes.shares * axes.sequence)


def accumulate_room(shape: Any, config: Any, axes: Axes, *, head: bool = True) -> float:
  """Temporaries of one block's gradient: a new gradient, the layers' inputs, and the wider of one layer and the head.

  Args:
    shape: a DecoderConfig.
    config: of the run.
    axes: of the mesh.
    head: whether log-probabilities are asked for; a critic's values need none.
  """
  c, tokens = shape, chip_tokens(config, axes)
  inputs = NARROW * tokens * c.d_model * c.num_layers
  layer = inputs + _layer_room(c, axes, tokens)  # going backwards there is a second copy of the inputs
  return WIDE * counted(c, axes).all + inputs + max(layer, head * _head_room(c, config, axes, tokens, copies=2))


def score_room(shape: Any, config: Any, axes: Axes) -> float:
  """Temporaries of one block's log-probabilities."""
  tokens = chip_tokens(config, axes)
  return max(_layer_room(shape, axes, tokens), _head_room(shape, config, axes, tokens, copies=1))


def _layer_room(c, axes, tokens):
  """Two layers' gathered matrices; in float32 of the residual stream seven arrays and a half; half of what is wide.

  Wide is what tensor cuts: the MLP's three, queries, keys, values and their output.
  """
  wide = 3 * c.d_ff + 2 * (c.num_heads + c.num_kv_heads) * c.head_dim
  per_token = 7.5 * WIDE * c.d_model + NARROW / 2 * wide / axes.tensor
  return 2 * NARROW * layer_matrices(c) / axes.tensor + tokens * per_token


def _head_room(c, config, axes, tokens, *, copies):
  """A slab of hidden states of all chips that hold other pieces of the vocabulary, and its logits.

  With two copies, a gradient's: of the logits, and in float32 of the hidden states.
  """
  pieces = axes.tensor * axes.fsdp
  slab = min(tokens * axes.fsdp, config.learner.logprob_chunk * pieces)
  hidden = NARROW + WIDE * (copies - 1)
  return slab * (hidden * c.d_model + copies * WIDE * c.vocab_size / pieces) + 2 * WIDE * tokens * c.d_model


def accumulate_sent(shape: Any, config: Any, axes: Axes, *, head: bool = True) -> float:
  """Bytes of one block's gradient."""
  c, tokens = shape, chip_tokens(config, axes)
  sent = 4 * WIDE * tokens * c.d_model * (axes.fsdp * axes.tensor > 1)  # the embedding's lookup and its gradient
  if axes.fsdp > 1:  # a layer's matrices come together forwards and backwards; their gradient, in float32, goes apart
    sent += c.num_layers * layer_matrices(c) / axes.tensor * (2 * NARROW + WIDE)
  if axes.data > 1:
    sent += WIDE * counted(c, axes).all
  if axes.tensor > 1:  # what tensor's parts add to the residual stream: five times in float32, once in bfloat16
    sent += c.num_layers * tokens * c.d_model * (5 * WIDE + NARROW)
  return sent + 3 * _keys_sent(c, axes, tokens) + head * (2 * NARROW + WIDE) * _hidden(c, axes, tokens)


def score_sent(shape: Any, config: Any, axes: Axes) -> float:
  """Bytes of one block's log-probabilities."""
  c, tokens = shape, chip_tokens(config, axes)
  sent = 2 * WIDE * tokens * c.d_model * (axes.fsdp * axes.tensor > 1) + NARROW * _hidden(c, axes, tokens)
  if axes.fsdp > 1:
    sent += c.num_layers * layer_matrices(c) / axes.tensor * NARROW
  if axes.tensor > 1:
    sent += c.num_layers * tokens * c.d_model * 2 * WIDE
  return sent + _keys_sent(c, axes, tokens)


def _keys_sent(c, axes, tokens):
  """Keys and values of whole rows, where sequence cuts them."""
  row = tokens * axes.sequence * 2 * c.num_kv_heads * c.head_dim / axes.tensor
  return c.num_layers * NARROW * row * (axes.sequence > 1)


def _hidden(c, axes, tokens):
  """Numbers of hidden states that come together because fsdp cuts the vocabulary too."""
  return tokens * axes.fsdp * c.d_model * (axes.fsdp > 1)


def extend_room(shape: Any, here: Axes, tokens: float) -> float:
  """Temporaries of an extension by so many tokens: their keys and values, and an MLP's. The cache stays in place.

  Args:
    shape: a DecoderConfig.
    here: a host's part of the mesh.
    tokens: of all rows together.
  """
  c = shape
  fresh = 2 * NARROW * c.num_layers * tokens * c.num_kv_heads * c.head_dim / here.tensor
  gathered = 2 * NARROW * layer_matrices(c) / here.tensor * (here.fsdp > 1)
  return fresh + gathered + tokens * (2 * WIDE * c.d_model + NARROW * 3 * c.d_ff / here.tensor)


def decode_room(shape: Any, config: Any, here: Axes) -> float:
  """Temporaries of decoding: a step's, and what is drawn from, four times."""
  lanes = config.rollout.lanes
  return extend_room(shape, here, lanes) + 4 * WIDE * lanes * shape.vocab_size


def extend_sent(shape: Any, here: Axes, tokens: float) -> float:
  """Bytes of an extension by so many tokens, on a host's part of the mesh."""
  return _pass_sent(shape, here, tokens, NARROW)


def _pass_sent(c, here, tokens, width):
  """Of one pass over the layers: gathered matrices, and two sums a layer in numbers of this width."""
  gathered = NARROW * c.num_layers * layer_matrices(c) / here.tensor * (here.fsdp > 1)
  return gathered + 2 * c.num_layers * tokens * c.d_model * width * (here.tensor > 1)


def decode_sent(shape: Any, config: Any, here: Axes) -> float:
  """Bytes of one chunk: of each step a pass, and the logits, which are drawn from by all."""
  lanes = config.rollout.lanes
  cut = here.fsdp * here.tensor > 1
  return config.rollout.chunk * (_pass_sent(shape, here, lanes, WIDE) + 2 * WIDE * lanes * shape.vocab_size * cut)
