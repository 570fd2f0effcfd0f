"""A small decoder and small batches for the learner's tests."""

import dataclasses

import jax
import numpy as np
from flax import nnx

from ragrl_jax.learner import blocks as blocks_lib, packing
from ragrl_jax.learner.learner import Learner, drain
from ragrl_jax.learner.settings import OptimizerSettings, Settings
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder

CONFIG = DecoderConfig(
  vocab_size=32, d_model=16, num_layers=2, num_heads=2, num_kv_heads=2, head_dim=8, d_ff=32, rope_theta=10_000.0,
  qk_norm=True,
)  # fmt: skip
OPTIMIZER = OptimizerSettings(learning_rate=1e-2, total_steps=100)
ROWS, LENGTHS = 8, (24,)
model = lambda seed=0, mesh=None: Decoder(CONFIG, rngs=nnx.Rngs(seed), mesh=mesh)


def logits(model, tokens):
  """The logits [len, V] of one sequence of at most 32 tokens: one program for all lengths."""
  graphdef, params = nnx.split(model)
  return _logits(graphdef, params, np.pad(tokens, (0, 32 - len(tokens)))[None])[0, : len(tokens)]


_logits = jax.jit(lambda graphdef, params, tokens: nnx.merge(graphdef, params)(tokens), static_argnums=0)


def learner(settings=None, optimizer=OPTIMIZER, mesh=None, **how):
  return Learner(model(mesh=mesh), settings or Settings(logprob_chunk=64), optimizer, mesh=mesh, **how)


def items(count=10, seed=0):
  """Sequences of 5 to 12 tokens, about half of them trained, with advantages and log-probabilities, without rewards."""
  draw = np.random.default_rng(seed)
  made = []
  for number in range(count):
    size = int(draw.integers(5, 13))
    mask = draw.random(size) < 0.6
    mask[-1] = True
    made.append(
      packing.Item(
        tokens=draw.integers(0, CONFIG.vocab_size, size).astype(np.int32),
        loss_mask=mask,
        advantages=np.full(size, draw.normal(), np.float32),
        sampler_logprobs=draw.normal(-3.0, 0.3, size).astype(np.float32),
        group_id=number // 2,
        name=f"item {number}",
      )
    )
  return made


def packed(sequences, rows=ROWS, lengths=LENGTHS):
  return packing.pack_items(sequences, rows=rows, lengths=lengths)


def pack(minibatches):
  """Each mini-batch in rows, as `Learner.prepare` calls it."""
  return [packed(part) for part in minibatches]


def blocks(sequences, rows=ROWS, lengths=LENGTHS):
  """Only the packed blocks, for tests that change them."""
  return packed(sequences, rows, lengths).blocks


def padded(sequences, rows=ROWS, length=LENGTHS[0]):
  """The blocks with one sequence per row."""
  lines = [blocks([s], rows=1, lengths=(length,))[0] for s in sequences]
  lines += blocks([], rows=1, lengths=(length,)) * (-len(sequences) % rows)
  stack = lambda part: jax.tree.map(lambda *rows: np.concatenate(rows), *part)
  return [stack(lines[start : start + rows]) for start in range(0, len(lines), rows)]


def earning(item, *rewards):
  """The item with a turn for each stretch of trained tokens. The last turns get these rewards, the others none."""
  on = item.loss_mask & (np.arange(len(item.tokens)) > 0)
  # Mask 0 1 1 0 1 has the turns -1 0 0 -1 1.
  turns = np.where(on, np.cumsum(np.diff(on, prepend=False) & on) - 1, -1)
  count = turns.max() + 1
  earned = [0.0] * (count - len(rewards)) + [*rewards][-count:]
  zeros = np.zeros_like(item.advantages)
  return dataclasses.replace(item, turns=turns, rewards=np.asarray(earned, np.float32), advantages=zeros)


def update(learner, state, *minibatches, checkpoint=""):
  """(state, metrics) of an update on mini-batches of items, or of blocks that contain their advantages."""
  if all(part and isinstance(part[0], packing.Item) for part in minibatches):
    ready = learner.prepare(state, minibatches, pack)
  else:
    ready = learner.prepare(state, [()] * len(minibatches), lambda _: [packing.Packed(x, [], []) for x in minibatches])
  return drain(learner.train(state, ready, checkpoint=checkpoint))


def gradient(learner, batches, params=None):
  """(loss, gradient) of a whole step over these blocks, accumulated as in an update."""
  counts = blocks_lib.count(batches, learner.settings)
  totals = np.asarray([counts["weight"], counts["sequences"]], np.float32)
  params = learner.params if params is None else params
  batches = [learner.place(batch) for batch in batches]
  grads, sums = drain(learner.trained.gradient(params, batches, totals, np.float32(learner.settings.kl_coef)))
  return float(sums["loss"]), grads


def distance(a, b):
  """The largest difference between two trees of arrays."""
  return max(
    float(np.max(np.abs(np.asarray(x, np.float64) - np.asarray(y, np.float64))))
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
  )
