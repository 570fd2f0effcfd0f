"""Evaluations with several seeds: their folders, and mean and deviation over seeds."""

import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax.core.metrics import stats
from ragrl_jax.evaluation.answer_files import PREDICTIONS


def folders(out: pathlib.Path, seeds: int) -> list[pathlib.Path]:
  """`out` itself for one seed; for several `out`/seed_0, `out`/seed_1 and so on.

  Raises:
    ValueError: fewer than one seed; or `out` holds an evaluation of the other kind.
  """
  if seeds < 1:
    raise ValueError(f"--seeds={seeds}: it must be at least 1.")
  if seeds == 1 and (out / "seed_0").exists():
    raise ValueError(f"{out} holds an evaluation with several seeds: give --seeds, or choose another --out.")
  if seeds > 1 and (out / PREDICTIONS).exists():
    raise ValueError(f"{out} holds an evaluation with one seed: choose another --out for --seeds={seeds}.")
  return [out] if seeds == 1 else [out / f"seed_{seed}" for seed in range(seeds)]


def parts(folder: pathlib.Path) -> list[pathlib.Path]:
  """The folders of predictions of an evaluation: those of its seeds, in order, or the folder itself."""
  found = [one for one in folder.glob("seed_*") if one.name.removeprefix("seed_").isdigit()]
  return sorted(found, key=lambda one: int(one.name.removeprefix("seed_"))) or [folder]


def over_seeds(
  found: Sequence[Mapping[str, Any]], rows: Sequence[Sequence[Mapping[str, Any]]], with_interval: Sequence[str]
) -> dict[str, Any]:
  """Joins the metrics of several seeds.

  Args:
    rows: the rows of each seed, with the same questions in the same order.
    with_interval: measures that get a 95 % bootstrap interval over questions. A question's value is its mean over the
      seeds in which it is known.

  Returns:
    The mean of every number over the seeds, counts included, in the form of `harness.summarise`. Also `seeds`, their
    number, and `deviation`, the sample standard deviation of every number in the same form. Both omit numbers that a
    seed lacks.
  """
  metrics = {"seeds": len(found), **_each(found, statistics.fmean)}
  for name in with_interval:
    known = [[value for row in same if (value := row[name]) is not None] for same in zip(*rows, strict=True)]
    means = [statistics.fmean(values) for values in known if values]
    metrics[f"{name}_interval"] = list(stats.bootstrap_interval(means, seed=0)) if means else None
  return metrics | {"deviation": _each(found, statistics.stdev)}


def _each(found: Sequence[Mapping[str, Any]], of) -> dict[str, Any]:
  """Applies `of` to the seeds' values of every number that all seeds have."""
  merged: dict[str, Any] = {}
  for name, first in found[0].items():
    values = [one.get(name) for one in found]
    if isinstance(first, Mapping):
      merged[name] = _each([value or {} for value in values], of)
    elif all(isinstance(value, int | float) for value in values):
      merged[name] = of(values)
  return merged
