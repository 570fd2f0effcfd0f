"""Computes the tokens, operations and memory traffic of a training step, without any device."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from ragrl_jax.learner import flops, row_layout
from ragrl_jax.models import cache as cache_lib
from ragrl_jax.plan import memory
from ragrl_jax.plan.summary import Conversation
from ragrl_jax.settings import PREFILL_ROWS


@dataclasses.dataclass(frozen=True)
class Load:
  """The tokens of one training step. All episodes are assumed to have the mean length.

  Attributes:
    drawn: tokens of an episode that the model samples; the others are read.
    read: tokens of all episodes that engines prefill; a prompt shared by a group counts once.
    packed: tokens of all episodes in the learner's rows, without padding; a shared prompt counts once.
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
    """Tokens of all episodes; a shared prompt counts in each of them."""
    return int(self.episodes * self.length)

  @property
  def sizes(self) -> dict[str, float]:
    """What `learner/flops.py` counts operations by, for all packed tokens."""
    return dict(tokens=self.packed, pairs=self.pairs, scored=self.episodes * self.drawn)


def load(config: Any, *, fill: float = 0.5, drawn: float = 0.5) -> Load:
  """The tokens of a step with this config.

  Args:
    fill: tokens of an episode, divided by config.rollout.context.
    drawn: share of these tokens that the model samples.

  Raises:
    ValueError: one of the two is no share.
  """
  if not (0 < fill <= 1 and 0 < drawn <= 1):
    raise ValueError(f"fill={fill:g}, drawn={drawn:g}: each must be above 0 and at most 1 (--fill, --drawn).")
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
  """How the learner splits a step into blocks.

  Attributes:
    rows, length: shape of a block.
    count: number of blocks in a step, over all epochs. The last block of a mini-batch may be partly empty.
    forward: operations of a forward pass over a full block, on all chips together.
    whole: operations of a forward pass over all packed tokens without padding, on all chips together.
    matrices: the part of `forward` in matrices and head. Their weights' gradient costs as much; adapters do without.
  """

  rows: int
  length: int
  count: int
  updates: int
  forward: float
  whole: float
  matrices: float


def blocks(config: Any, shape: Any, load: Load) -> Blocks:
  """The blocks of a step with this config, for a decoder of this shape."""
  rows, length = config.learner.micro_rows, row_layout.longest_row(config)
  size, parts = rows * length, config.loss.minibatches
  count = parts * max(1, math.ceil(load.packed / parts / size)) * config.loss.epochs
  block = {name: value * size / load.packed for name, value in load.sizes.items()}
  full, matrices = flops.forward(shape, **block), flops.forward(shape, **block | dict(pairs=0.0))
  return Blocks(rows, length, count, parts * config.loss.epochs, full, flops.forward(shape, **load.sizes), matrices)


def held(config: Any, load: Load) -> int:
  """Pages of a conversation of the mean length at its end, including the page of its next token.

  The samples of a group share their prompt's pages if config.learner.share_prompts is set.
  """
  r = config.rollout
  pages = lambda tokens: math.ceil(tokens / r.page)
  prompt = pages(load.length - load.drawn)
  return (math.ceil(prompt / r.group_size) if config.learner.share_prompts else prompt) + pages(load.drawn) + 1


def conversation(config: Any, load: Load, layout: cache_lib.Layout, here: memory.Axes) -> Conversation:
  """Memory of a conversation of the mean length in a cache with this layout on the engine's mesh."""
  r, pages = config.rollout, held(config, load)
  wide = dataclasses.replace(layout, dtype=jnp.dtype(jnp.bfloat16)).token_bytes
  most = layout.most(here.tensor)
  return Conversation(
    pages * r.page,
    (pages * r.page * layout.token_bytes + layout.memory_bytes) / here.tensor,
    r.context * wide / here.tensor,
    here.data,
    None if most is None else most // pages,
  )


def passes(settings: Any) -> int:
  """The learner's work in a step, in forward passes: three per epoch (backward counts two), plus the scoring passes.

  Remat's second forward pass does not count. A critic with its own decoder needs as much as the policy. Every critic
  first computes its values.
  """
  s = settings
  scoring = s.scores_old + s.needs_reference + (s.critic.kind != "none")
  return 3 * s.epochs * (1 + (s.critic.kind == "own")) + scoring


def needed(shape: Any, settings: Any, cut: Blocks, load: Load, adapters: int) -> float:
  """Operations of the learner in a step, on all chips together: its passes, without remat and padding.

  Adapters need no gradient of the matrices (`flops.update`). Without them, a critic of its own counts as much as the
  policy (`passes`).
  """
  return flops.update(shape, settings, **load.sizes, adapters=adapters) if adapters else passes(settings) * cut.whole


def train_bytes(
  shape: Any, axes: Mapping[str, int], tokens: float, *, width: int, remat: bool, parameters: int
) -> float:
  """Lower bound on a chip's HBM traffic in bytes, for the loss and gradient of one block.

  Each of three passes (four with remat) reads the gathered weights. The gradient is read and written in float32. Each
  layer writes and reads its activations once per pass. Logits are written and read twice in float32.

  Args:
    tokens: tokens of the block on one chip.
    width: bytes per number in the matmuls' dtype.
    remat: whether the backward pass recomputes layers.
  """
  c, passes, tensor = shape, 3 + remat, axes["tensor"]
  weights = c.num_layers * memory.layer_matrices(c) / tensor * width * passes
  gradient = 8.0 * parameters / (axes["fsdp"] * tensor)
  per_token = 6 * c.d_model + (2 * c.num_heads + 2 * c.num_kv_heads) * c.head_dim / tensor
  per_token += memory.mlp_width(c) / tensor
  activations = 2.0 * tokens * c.num_layers * per_token * width * passes
  return weights + gradient + activations + 16.0 * tokens * c.vocab_size / tensor


@dataclasses.dataclass(frozen=True)
class Engine:
  """Calls of one host's engine in a step, and the cost of each call.

  Attributes:
    fills, chunks: number of calls of `extend` and of `decode`.
    fill_flops, chunk_flops: operations of a call, on all chips of the host.
    fill_bytes, chunk_bytes: HBM traffic of a call, in bytes of one chip.
  """

  fills: int
  chunks: int
  fill_flops: float
  chunk_flops: float
  fill_bytes: float
  chunk_bytes: float


def engine(
  config: Any,
  shape: Any,
  load: Load,
  hosts: int,
  *,
  replicas: int,
  weights: float,
  cache: float,
  tokens: int,
  passes: int = 1,
) -> Engine:
  """The work of the engine on one of `hosts` hosts.

  All read tokens come before the drawn ones. So, on average, a drawn token attends to all read tokens and half of the
  drawn ones, and a read token to half of the read ones.

  Args:
    weights, cache: bytes of each per chip.
    tokens: capacity of a replica's cache in tokens.
    passes: how often attention moves each byte of the cache that it reads (`Layout.passes`).
  """
  r, prompt, mine = config.rollout, load.length - load.drawn, math.ceil(load.episodes / hosts)
  token = passes * cache / tokens  # bytes that attention to one cached token moves on a chip
  pass_flops = lambda context: flops.forward(shape, tokens=1, pairs=context, scored=0)
  head = flops.forward(shape, tokens=0, pairs=0, scored=1)
  context = prompt + load.drawn / 2
  fills = math.ceil(load.read / hosts / (PREFILL_ROWS * r.prefill * replicas))
  # An episode's tokens are sampled one after the other, so more lanes than episodes do not reduce the steps. Drafts
  # reduce them, but by how much depends on the text, so no draft is counted as kept.
  steps = math.ceil(max(load.episodes * load.drawn / hosts / r.lanes, load.drawn))
  return Engine(
    fills,
    math.ceil(steps / r.chunk),
    pass_flops(prompt / 2) * PREFILL_ROWS * r.prefill * replicas,
    (pass_flops(context) + head) * r.lanes * r.chunk * (r.speculate + 1),
    weights + PREFILL_ROWS * token * prompt / 2,
    r.chunk * (weights + math.ceil(min(r.lanes, mine) / replicas) * token * context),  # an empty lane reads nothing
  )
