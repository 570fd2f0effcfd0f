"""Blocks of packed rows: their counts, and empty blocks."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from ragrl_jax.learner.settings import Settings
from ragrl_jax.structs import Batch

T = TypeVar("T")


def count(batches: Sequence[Batch], settings: Settings) -> dict[str, float]:
  """Totals of an optimiser step over all blocks: the divisors of the loss, and counts for the report."""
  trained = scored = real = places = sequences = weight = silent = favoured = pairs = 0.0
  for b in batches:
    mask = np.asarray(b.loss_mask).astype(bool)
    ids = np.asarray(b.segment_ids)
    full = ids > 0 if b.until is None else np.asarray(b.until) > 0
    trained += mask.sum()
    scored += mask.sum() if b.states is None else (np.asarray(b.states) >= 0).sum()
    real += full.sum()
    places += full.size
    # Sequences with a trained token.
    sequences += sum(len(np.unique(row[on])) for row, on in zip(ids, mask))
    # SFT divides by the sum of the weights, so a token of weight 0.3 counts as 0.3 tokens.
    weight += np.asarray(b.advantages, np.float64)[mask].sum() if settings.objective == "sft" else mask.sum()
    silent += (mask & (np.asarray(b.advantages) == 0)).sum()
    favoured += (mask & (np.asarray(b.advantages) > 0)).sum()
    # Token n of a sequence attends to n + 1 tokens, also if it shares some with others.
    pairs += (np.asarray(b.positions, np.int64) + 1)[full].sum()
  return {
    name: float(x)
    for name, x in dict(
      tokens=trained,
      scored=scored,
      pairs=pairs,
      packed_tokens=real,
      places=places,
      sequences=sequences,
      weight=weight,
      silent=silent,
      favoured=favoured,
    ).items()
  }


def whole_batch(counts: Sequence[dict[str, float]]) -> dict[str, float]:
  """The totals over several optimiser steps, with the shares for the report."""
  total = {name: sum(step[name] for step in counts) for name in counts[0]}
  return total | dict(
    # Sums are divided last. A mean of the mini-batches' shares would weigh a short one like a long one.
    mask_coverage=total["scored"] / max(total["packed_tokens"], 1),
    packing=total["packed_tokens"] / max(total["places"], 1),
    zero_advantage_share=total["silent"] / max(total["tokens"], 1),
  )


def cut(values: Sequence[T], sizes: Sequence[int]) -> list[list[T]]:
  """A flat list cut into lists of these sizes."""
  values_left = iter(values)
  return [[next(values_left) for _ in range(size)] for size in sizes]
