"""Compares evaluations: means per set over questions and runs, their macro average, paired tests."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ragrl_jax.core.metrics import stats
from ragrl_jax.core.text import aligned

Rows = Sequence[Mapping[str, Any]]  # rows of predictions.jsonl
_SOME = ("em_spaced", "f1_spaced", "judged")  # measures that only some recipes or evaluations have
NAMELESS = "(no name)"  # a set whose questions have no source
_COLUMNS = dict(em="em", f1="f1", cover_em="cover_em", outcome="outcome", searches="num_searches")


def by_set(rows: Rows) -> dict[str, dict[str, float]]:
  """{set: {measure: mean over the set's questions}}. Measures: em, f1, cover_em, outcome, searches, em_spaced,
  f1_spaced, judged, terms/NAME.

  Failed questions and unknown values are excluded from the means; a measure without values is left out.
  """
  values: dict[str, dict[str, list[float]]] = {}
  for row in rows:
    if row["ended"] == "failed":
      continue
    of_set = values.setdefault(row["source"] or "", {})
    for name, value in _scores(row).items():
      of_set.setdefault(name, []).append(value)
  return {name: {measure: sum(some) / len(some) for measure, some in values[name].items()} for name in sorted(values)}


def by_question(rows: Rows) -> dict[str, dict[Any, float]]:
  """{measure: {(set, id): value}}, without failed questions and unknown values."""
  result: dict[str, dict[Any, float]] = {}
  for row in rows:
    if row["ended"] != "failed":
      for name, value in _scores(row).items():
        result.setdefault(name, {})[row["source"] or "", row["id"]] = value
  return result


def _scores(row: Mapping[str, Any]) -> dict[str, float]:
  """The known values of a row, by measure."""
  scores = {name: row.get(column) for name, column in _COLUMNS.items()}  # `ragrl recall` has terms alone
  scores |= {name: row[name] for name in _SOME if name in row}
  scores |= {f"terms/{name}": value for name, value in row["terms"].items()}
  return {name: float(value) for name, value in scores.items() if value is not None}


def named(of_set: Mapping[str, Any]) -> dict[str, Any]:
  """The same, with a name for the set without one. A total over several sets can then have the key ""."""
  return {name or NAMELESS: one for name, one in of_set.items()}


def macro(sets: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
  """{measure: mean of the sets' means}, with equal weight for each set, for the measures that every set has."""
  shared = [name for name in next(iter(sets.values()), {}) if all(name in means for means in sets.values())]
  return {name: sum(means[name] for means in sets.values()) / len(sets) for name in shared}


def runs_of(rows: Rows) -> list[list[Mapping[str, Any]]]:
  """The rows of a system's runs (seeds), one list per run. The n-th row of each question belongs to the n-th run.

  Raises:
    ValueError: some questions have more rows than others.
  """
  runs: list[list[Mapping[str, Any]]] = []
  seen: Counter = Counter()
  for row in rows:
    key = row["source"], row["id"]
    if seen[key] == len(runs):
      runs.append([])
    runs[seen[key]].append(row)
    seen[key] += 1
  if len({len(run) for run in runs}) > 1:
    counts = sorted(set(seen.values()))
    raise ValueError(
      f"some questions were asked in {counts[0]} run and others in {counts[-1]}: the runs of a system must have the "
      "same questions, and one run must have each question once (its source and id)."
    )
  return runs


def compare(results: Mapping[str, Rows], *, alternative: str = "two-sided") -> dict[str, dict[str, Any]]:
  """Compares two or more systems' evaluations on the same questions.

  A system may have several runs (`runs_of`): its scores are then means over the runs. Each system is compared with the
  first one. The Wilcoxon signed-rank test pairs the means of the sets, if there are several. It asks whether the
  difference would hold on further sets; with fewer than six sets (one-sided: five) its p is never below .05. The
  permutation test pairs the scores of the questions. It asks whether the difference would hold on further questions of
  these sets. It is always two-sided. The interval of the difference comes from a paired bootstrap over questions. If a
  system has several runs, it is Student's over questions and runs (`stats.seeds_interval`), and covers further runs.

  Args:
    alternative: the Wilcoxon test's (`stats.ALTERNATIVES`). "greater" tests whether a system is above the first one.

  Returns:
    {measure: {"sets": {set: [one mean per system]}, "deviations": {set: [one per system: standard deviation of its
    runs' means, with n - 1; None for one run]}, "macro": [one per system], "macro_deviation": likewise, "wilcoxon":
    [(statistic, p), for each system after the first; empty for a single set], "questions": [(mean difference, p),
    likewise], "intervals": [(low, high) of that difference, 95 %], "paired": number of questions for which all runs
    have a value}}, for the measures that every run has on every set.

  Raises:
    ValueError: fewer than two systems, systems or runs with different questions, or no measure that all systems have.
  """
  if len(results) < 2:
    raise ValueError(f"{len(results)} evaluation given: at least two are needed for a comparison.")
  names = list(results)
  asked = {name: {(row["source"], row["id"]): asked_of(row) for row in results[name]} for name in names}
  for name in names[1:]:
    refuse_others(asked[names[0]], asked[name], f"{names[0]} and {name}")
  systems = [[(by_set(run), by_question(run)) for run in runs_of(results[name])] for name in names]
  all_means = [means for runs in systems for means, _ in runs]
  alike = all(means.keys() == all_means[0].keys() for means in all_means)
  averages = [macro(means) if alike else {} for means in all_means]
  measures = [name for name in averages[0] if all(name in average for average in averages)]
  if not measures:
    raise ValueError(f"{', '.join(names)}: no measure has a value for every system on every set.")
  return {measure: _compared(systems, measure, alternative) for measure in measures}


def asked_of(row: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
  """What a row's scores are of: its question and golds."""
  return row.get("question", ""), tuple(row.get("golds", ()))


def refuse_others(first: Mapping[Any, Any], second: Mapping[Any, Any], what: str) -> None:
  """Refuses two evaluations of other questions (set, id), or with other texts or golds (`asked_of`) of the same one.

  Raises:
    ValueError: the message names the first question with another text or golds.
  """
  for key in first.keys() & second.keys():
    if first[key] != second[key]:
      raise ValueError(
        f"{what}: question {key[1]!r} has {first[key]!r} in the first and {second[key]!r} in the second: scores of "
        "different questions or golds are not compared. Run the evaluation of one of them again with the same data."
      )
  if first.keys() != second.keys():
    raise ValueError(
      f"{what} were asked different questions: {len(first.keys() - second.keys())} are only in the first, "
      f"{len(second.keys() - first.keys())} only in the second."
    )


def _compared(systems: Sequence[Sequence[tuple[Any, Any]]], measure: str, alternative: str) -> dict[str, Any]:
  """`compare` for one measure; systems → runs → (`by_set`, `by_question`)."""
  result: dict[str, Any] = dict(sets={}, deviations={}, wilcoxon=[], questions=[], intervals=[])
  for name in systems[0][0][0]:
    of_runs = [[means[name][measure] for means, _ in runs] for runs in systems]
    result["sets"][name] = [statistics.fmean(values) for values in of_runs]
    result["deviations"][name] = [_deviation(values) for values in of_runs]
  of_runs = [[macro(means)[measure] for means, _ in runs] for runs in systems]
  result |= dict(macro=[statistics.fmean(v) for v in of_runs], macro_deviation=[_deviation(v) for v in of_runs])
  first, *others = zip(*result["sets"].values())
  if len(result["sets"]) > 1:
    result["wilcoxon"] = [stats.wilcoxon(other, first, alternative=alternative) for other in others]
  shared = sorted(set.intersection(*({*of[measure]} for runs in systems for _, of in runs)))
  result["paired"] = len(shared)
  if shared:
    base, *rest = [np.asarray([[of[measure][key] for key in shared] for _, of in runs]) for runs in systems]
    result["questions"] = [stats.paired_permutation(other.mean(axis=0), base.mean(axis=0)) for other in rest]
    result["intervals"] = [_interval(other, base) for other in rest]
  return result


def _interval(other: np.ndarray, base: np.ndarray) -> tuple[float, float]:
  if len(other) == len(base) == 1:
    return stats.bootstrap_interval(other[0] - base[0], seed=0)
  return stats.seeds_interval(other, base)[1:]


def _deviation(values: Sequence[float]) -> float | None:
  return statistics.stdev(values) if len(values) > 1 else None


def text(compared: Mapping[str, Mapping[str, Any]], systems: Sequence[str], *, alternative: str = "two-sided") -> str:
  """The result of `compare` as plain text: one block per measure, one line per set, one column per system.

  A mean over several runs is followed by its deviation. A one-sided test names its alternative. A block with several
  tests has a further line with p-values adjusted by Holm's method.
  """
  blocks = []
  for measure, result in compared.items():
    cells = [(measure, *systems)]
    for name, means in result["sets"].items():
      cells.append((name or NAMELESS, *map(_mean, means, result["deviations"][name])))
    if len(result["sets"]) > 1:
      cells.append(("macro average", *map(_mean, result["macro"], result["macro_deviation"])))
    if result["questions"]:
      between = zip(result["questions"], result["intervals"])
      intervals = (f"{difference:+.3f} [{low:+.3f}, {high:+.3f}]" for (difference, _), (low, high) in between)
      cells.append(("difference from the first, over questions [95 %]", "", *intervals))
    side = "" if alternative == "two-sided" else f", one-sided: {alternative}"
    cells += _tests(f"p, paired by set ({len(result['sets'])}; Wilcoxon{side})", result["wilcoxon"])
    cells += _tests(f"p, paired by question ({result['paired']}; permutation)", result["questions"])
    blocks.append(aligned.columns(cells, left=1))
  return "\n\n".join(blocks)


def _tests(name: str, results: Sequence[tuple[float, float]]) -> list[tuple[str, ...]]:
  """The lines of a test: its p-values, and if there are several, the p-values adjusted by Holm's method."""
  ps = [p for _, p in results]
  lines = [(name, "", *map(_p, ps))] if ps else []
  return [*lines, (f"  adjusted for {len(ps)} tests (Holm)", "", *map(_p, stats.holm(ps)))] if len(ps) > 1 else lines


def _mean(value: float, deviation: float | None) -> str:
  return f"{value:.3f}" if deviation is None else f"{value:.3f} ± {deviation:.3f}"


def _p(value: float) -> str:
  return "< 0.001" if value < 0.001 else f"{value:.3f}"
