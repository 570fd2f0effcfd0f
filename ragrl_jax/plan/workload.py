"""What one training step has to read, draw and learn, and what that costs a chip; nothing here looks at a device."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from ragrl_jax.learner import flops

MAX_PROMPTS = 8  # the engine's default: cache rows for the prompts of groups
EXTENDED = 4  # the engine's: rows of one extension


@dataclasses.dataclass(frozen=True)
class Load:
  """One step's tokens, of all episodes together. Every episode has the mean length.

  Attributes:
    episodes: of a step.
    length: tokens of an episode.
    drawn: of these, tokens that the model writes; the others are read.
    read: tokens that engines take in: a group's prompt once, where its samples share it.
    packed: tokens of the learner's rows, padding left out: a group's prompt once, where it is shared.
    pairs: (query, key) pairs of causal attention over `packed`.
  """

  episodes: int
  length: float
  drawn: float
  read: float
  packed: float
  pairs: float

  @property
  def tokens(self) -> int:
    """Of all episodes, shared prompts counted in each."""
    return int(self.episodes * self.length)


def load(config: Any, *, fill: float = 0.5, drawn: float = 0.5) -> Load:
  """A step of this config.

  Args:
    config: of the run.
    fill: an episode's tokens over config.rollout.context.
    drawn: share of them that the model writes.
  """
  r = config.rollout
  episodes, length = r.prompts_per_step * r.group_size, fill * r.context
  new = drawn * length
  prompt = length - new
  if config.learner.share_prompts:
    read = r.prompts_per_step * prompt
    pairs = read * (prompt + 1) / 2 + episodes * (new * prompt + new * (new + 1) / 2)
  else:
    read, pairs = episodes * prompt, episodes * length * (length + 1) / 2
  return Load(episodes, length, new, read, read + episodes * new, pairs)


@dataclasses.dataclass(frozen=True)
class Blocks:
  """How the learner cuts a step.

  Attributes:
    rows, length: of a block.
    count: of a step, all epochs; every mini-batch ends in a block that may not be full.
    updates: optimiser steps.
    forward: operations of one forward pass of a full block, all chips together.
    whole: operations of one forward pass over all that is packed, its padding left out, all chips together.
  """

  rows: int
  length: int
  count: int
  updates: int
  forward: float
  whole: float


def blocks(config: Any, shape: Any, load: Load) -> Blocks:
  """Of this config, for a decoder of this shape."""
  rows, length = config.learner.micro_rows, max(config.learner.row_lengths)
  size, parts = rows * length, config.loss.minibatches
  count = parts * max(1, math.ceil(load.packed / parts / size)) * config.loss.epochs
  whole = dict(tokens=load.packed, pairs=load.pairs, scored=load.episodes * load.drawn)
  full = flops.forward(shape, **{name: value * size / load.packed for name, value in whole.items()})
  return Blocks(rows, length, count, parts * config.loss.epochs, full, flops.forward(shape, **whole))


def passes(settings: Any) -> int:
  """Forward passes' worth of work that the learner's settings ask for in a step: three an epoch, and what scores.

  Nobody asks for remat's second pass. A critic of its own learns as the policy does.
  """
  s = settings
  return 3 * s.epochs * (1 + (s.critic.kind == "own")) + s.scores_old + s.needs_reference


def train_bytes(
  shape: Any, axes: Mapping[str, int], tokens: float, *, width: int, remat: bool, parameters: int
) -> float:
  """HBM bytes of a chip in one block's loss and gradient, at the least.

  Each of three passes (four with remat) reads the gathered weights; the gradient is read and written in float32;
  each layer writes and reads its activations once a pass; logits are written and read in float32 twice.

  Args:
    shape: a DecoderConfig.
    axes: the mesh's sizes.
    tokens: of a chip.
    width: bytes of the matmuls' type.
    remat: whether layers are computed again.
    parameters: of the model.
  """
  c, passes, tensor = shape, 3 + remat, axes["tensor"]
  weights = flops.matmul_parameters(c) / tensor * width * passes
  gradient = 8.0 * parameters / (axes["fsdp"] * tensor)
  per_token = 6 * c.d_model + (2 * c.num_heads + 2 * c.num_kv_heads) * c.head_dim / tensor + 3 * c.d_ff / tensor
  activations = 2.0 * tokens * c.num_layers * per_token * width * passes
  return weights + gradient + activations + 16.0 * tokens * c.vocab_size / tensor


@dataclasses.dataclass(frozen=True)
class Engine:
  """What one host's engine does in a step, and what its calls cost; operations of the host, bytes of a chip.

  Attributes:
    fills, chunks: calls of `extend` and of `decode`.
    fill_flops, chunk_flops: operations of a call.
    fill_bytes, chunk_bytes: HBM traffic of a call.
  """

  fills: int
  chunks: int
  fill_flops: float
  chunk_flops: float
  fill_bytes: float
  chunk_bytes: float


def engine(config: Any, shape: Any, load: Load, hosts: int, *, weights: float, cache: float) -> Engine:
  """Of one of `hosts`; weights, cache: a chip's bytes of them.

  A lane has read what it reads before it draws, so a drawn token sees all of that and half of what is drawn; a read
  token sees half of it.
  """
  r, prompt = config.rollout, load.length - load.drawn
  rows, row = r.rows + MAX_PROMPTS, -(-r.context // r.block) * r.block
  token = cache / (rows * row)  # a chip's bytes of one token
  one = lambda seen: flops.forward(shape, tokens=1, pairs=seen, scored=0)
  head = flops.forward(shape, tokens=0, pairs=0, scored=1)
  seen = prompt + load.drawn / 2
  fills = math.ceil(load.read / hosts / (EXTENDED * r.prefill))
  # An episode's tokens are drawn one after the other, however many lanes there are.
  steps = math.ceil(max(load.episodes * load.drawn / hosts / r.lanes, load.drawn))
  return Engine(
    fills,
    math.ceil(steps / r.chunk),
    one(prompt / 2) * EXTENDED * r.prefill,
    (one(seen) + head) * r.lanes * r.chunk,
    weights + EXTENDED * token * prompt / 2,
    r.chunk * (weights + r.lanes * token * seen),
  )
