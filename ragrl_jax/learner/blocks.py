"""Blocks of packed rows: what they hold, over all hosts, and empty ones where a host has fewer than the others."""

from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import multihost_utils

from ragrl_jax.learner.settings import Settings
from ragrl_jax.structs import Batch


def count(batches: Sequence[Batch], settings: Settings) -> dict[str, float]:
  """An optimiser step's totals over all blocks and hosts: what the loss is divided by, and what the report shows."""
  trained = real = places = sequences = weight = silent = pairs = 0.0
  for b in batches:
    mask = np.asarray(b.loss_mask).astype(bool)
    ids = np.asarray(b.segment_ids)
    trained += mask.sum()
    real += (ids > 0).sum()
    places += ids.size
    sequences += sum(len(np.unique(row[on])) for row, on in zip(ids, mask))
    weight += np.asarray(b.advantages, np.float64)[mask].sum() if settings.objective == "sft" else mask.sum()
    silent += (mask & (np.asarray(b.advantages) == 0)).sum()
    pairs += (np.asarray(b.positions, np.int64) + 1)[ids > 0].sum()
  sums = np.asarray([trained, real, places, sequences, weight, silent, pairs], np.float64)
  if jax.process_count() > 1:
    sums = np.asarray(multihost_utils.process_allgather(sums)).sum(axis=0)
  trained, real, places, sequences, weight, silent, pairs = sums.tolist()
  return dict(
    tokens=trained, pairs=pairs, packed_tokens=real, places=places, sequences=sequences, weight=weight, silent=silent)


def whole_batch(counts: Sequence[dict[str, float]]) -> dict[str, float]:
  """The totals of several optimiser steps' counts, with the shares that the report shows."""
  total = {name: sum(one[name] for one in counts) for name in counts[0]}
  return total | dict(
    mask_coverage=total["tokens"] / max(total["packed_tokens"], 1),
    packing=total["packed_tokens"] / max(total["places"], 1),
    zero_advantage_share=total["silent"] / max(total["tokens"], 1))


def fill_up(batches: Sequence[Batch]) -> list[Batch]:
  """Longest rows first, with empty blocks added until every host has as many of each length as the busiest."""
  batches = sorted(batches, key=lambda b: -b.tokens.shape[1])
  if jax.process_count() == 1:
    return batches
  lengths = sorted({b.tokens.shape[1] for b in batches}, reverse=True)
  mine = np.zeros((3, 2), np.int64)
  mine[:len(lengths)] = [(t, sum(b.tokens.shape[1] == t for b in batches)) for t in lengths]
  everyone = np.asarray(multihost_utils.process_allgather(mine)).reshape(-1, 2)
  out = []
  for length in sorted({int(t) for t, n in everyone if n}, reverse=True):
    have = [b for b in batches if b.tokens.shape[1] == length]
    need = max(int(n) for t, n in everyone if t == length)
    filler = empty(batches[0].tokens.shape[0], length, shares=batches[0].prefix_ids is not None)
    out += have + [filler] * (need - len(have))
  return out


def empty(rows: int, length: int, *, shares: bool = False) -> Batch:
  """A block of padding; with prefix_ids if the other blocks have them."""
  ints, floats = np.zeros((rows, length), np.int32), np.zeros((rows, length), np.float32)
  return Batch(
    tokens=ints, segment_ids=ints, positions=ints, loss_mask=np.zeros((rows, length), bool), advantages=floats,
    rewards=floats, sampler_logprobs=floats, old_logprobs=floats, ref_logprobs=floats, values=floats, returns=floats,
    group_ids=ints - 1, prefix_ids=ints if shares else None)


def cut(batches: Sequence[Batch], sizes: Sequence[int]) -> list[list[Batch]]:
  """A flat list cut into lists of these sizes."""
  batches = iter(batches)
  return [[next(batches) for _ in range(size)] for size in sizes]
