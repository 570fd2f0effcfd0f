"""Blocks of packed rows: their counts, and empty blocks."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from ragrl_jax.learner.settings import Settings
from ragrl_jax.structs import Batch

T = TypeVar("T")


def count(batches: Sequence[Batch], settings: Settings) -> dict[str, float]:
  """Totals of an optimiser step over all blocks: the divisors of the loss, and counts for the report."""
  counts = []
  for b in batches:
    mask, ids, advantages = np.asarray(b.loss_mask).astype(bool), np.asarray(b.segment_ids), np.asarray(b.advantages)
    full = ids > 0 if b.until is None else np.asarray(b.until) > 0
    found = dict(
      tokens=mask.sum(),
      scored=mask.sum() if b.states is None else (np.asarray(b.states) >= 0).sum(),
      # Token n of a sequence attends to n + 1 tokens, also if it shares some with others.
      pairs=(np.asarray(b.positions, np.int64) + 1)[full].sum(),
      packed_tokens=full.sum(),
      places=full.size,
      # Sequences with a trained token.
      sequences=sum(len(np.unique(row[on])) for row, on in zip(ids, mask)),
      # SFT divides by the sum of the weights, so a token of weight 0.3 counts as 0.3 tokens.
      weight=advantages[mask].sum(dtype=np.float64) if settings.objective == "sft" else mask.sum(),
      silent=(mask & (advantages == 0)).sum(),
      favoured=(mask & (advantages > 0)).sum(),
    )
    counts.append({name: float(x) for name, x in found.items()})
  return _sums(counts)


def whole_batch(counts: Sequence[dict[str, float]]) -> dict[str, float]:
  """The totals over several optimiser steps, with the shares for the report."""
  total = _sums(counts)
  return total | dict(
    # Sums are divided last. A mean of the mini-batches' shares would weigh a short one like a long one.
    mask_coverage=total["scored"] / max(total["packed_tokens"], 1),
    packing=total["packed_tokens"] / max(total["places"], 1),
    zero_advantage_share=total["silent"] / max(total["tokens"], 1),
  )


def _sums(counts: Sequence[dict[str, float]]) -> dict[str, float]:
  return {name: sum(one[name] for one in counts) for name in counts[0]}


def cut(values: Sequence[T], sizes: Sequence[int]) -> list[list[T]]:
  """A flat list cut into lists of these sizes."""
  values_left = iter(values)
  return [[next(values_left) for _ in range(size)] for size in sizes]
