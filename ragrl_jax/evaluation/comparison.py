"""Compares evaluations: means of each set, their macro average, paired tests."""

from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax.core.metrics import stats

Rows = Sequence[Mapping[str, Any]]  # rows of predictions.jsonl
_SPACED = ("em_spaced", "f1_spaced")  # of some recipes only
_COLUMNS = dict(em="em", f1="f1", cover_em="cover_em", outcome="outcome", searches="num_searches")


def by_set(rows: Rows) -> dict[str, dict[str, float]]:
  """{set: {measure: mean over the set's questions}}. Measures: em, f1, cover_em, outcome, searches, em_spaced,
  f1_spaced, terms/NAME.

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
  found: dict[str, dict[Any, float]] = {}
  for row in rows:
    if row["ended"] != "failed":
      for name, value in _scores(row).items():
        found.setdefault(name, {})[row["source"] or "", row["id"]] = value
  return found


def _scores(row: Mapping[str, Any]) -> dict[str, float]:
  """The known values of a row, by measure."""
  found = {name: row[column] for name, column in _COLUMNS.items()}
  found |= {name: row[name] for name in _SPACED if name in row}
  found |= {f"terms/{name}": value for name, value in row["terms"].items()}
  return {name: float(value) for name, value in found.items() if value is not None}


def macro(sets: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
  """{measure: mean of the sets' means}, with equal weight for each set, for the measures that every set has.

  Args:
    sets: the result of `by_set`.
  """
  names = dict.fromkeys(name for means in sets.values() for name in means)
  return {
    name: sum(means[name] for means in sets.values()) / len(sets)
    for name in names
    if all(name in means for means in sets.values())
  }


def compare(results: Mapping[str, Rows], *, alternative: str = "two-sided") -> dict[str, dict[str, Any]]:
  """Compares two or more systems' evaluations on the same questions.

  Each system is compared with the first one by two paired tests. The Wilcoxon signed-rank test pairs the
  means of the sets, if there are several. It asks whether the difference would hold on further sets; with fewer than
  six sets its p is never below .05. The permutation test pairs the scores of the questions. It asks whether the
  difference would hold on further questions of these sets. It is always two-sided.

  Args:
    results: system → its rows.
    alternative: of the Wilcoxon test (`stats.ALTERNATIVES`): "greater" asks whether a system is above the first one.

  Returns:
    {measure: {"sets": {set: [one mean per system]}, "macro": [one per system], "wilcoxon": [(statistic, p), for each
    system after the first; empty for a single set], "questions": [(mean difference, p), likewise], "paired": number of
    questions for which all systems have a value}}, for the measures that every system has on every set.

  Raises:
    ValueError: fewer than two systems, systems with different questions, or no measure that all systems have.
  """
  if len(results) < 2:
    raise ValueError(f"{len(results)} evaluation given: at least two are needed for a comparison.")
  names = list(results)
  asked = {name: {(row["source"], row["id"]) for row in results[name]} for name in names}
  for name in names[1:]:
    if asked[name] != asked[names[0]]:
      alone = len(asked[names[0]] - asked[name]), len(asked[name] - asked[names[0]])
      raise ValueError(
        f"{names[0]} and {name} were asked different questions: {alone[0]} are only in the first, "
        f"{alone[1]} only in the second."
      )
  sets, questions = [by_set(results[name]) for name in names], [by_question(results[name]) for name in names]
  averages = [macro(found) if found.keys() == sets[0].keys() else {} for found in sets]
  compared = {}
  for measure in averages[0]:
    if all(measure in average for average in averages):
      scores = {name: [found[name][measure] for found in sets] for name in sets[0]}
      first, *others = zip(*scores.values())
      paired = sorted(set.intersection(*({*of[measure]} for of in questions)))
      base, *rest = [[of[measure][question] for question in paired] for of in questions]
      compared[measure] = dict(
        sets=scores,
        macro=[average[measure] for average in averages],
        paired=len(paired),
        wilcoxon=[stats.wilcoxon(other, first, alternative=alternative) for other in others] if len(scores) > 1 else [],
        questions=[stats.paired_permutation(other, base) for other in rest] if paired else [],
      )
  if not compared:
    raise ValueError(f"{', '.join(names)}: no measure has a value for every system on every set.")
  return compared


def text(compared: Mapping[str, Mapping[str, Any]], systems: Sequence[str], *, alternative: str = "two-sided") -> str:
  """The result of `compare` as plain text: one block per measure, one line per set, one column per system.

  The test's alternative is named where it is one-sided.
  """
  blocks = []
  for measure, found in compared.items():
    cells = [(measure, *systems)]
    cells += [(name or "(no name)", *(f"{value:.3f}" for value in means)) for name, means in found["sets"].items()]
    if len(found["sets"]) > 1:
      cells.append(("macro average", *(f"{value:.3f}" for value in found["macro"])))
    if found["wilcoxon"]:
      side = "" if alternative == "two-sided" else f", one-sided: {alternative}"
      cells.append((f"p, paired by set ({len(found['sets'])}; Wilcoxon{side})", "", *map(_p, found["wilcoxon"])))
    if found["questions"]:
      cells.append((f"p, paired by question ({found['paired']}; permutation)", "", *map(_p, found["questions"])))
    widths = [max(len(cell[column]) for cell in cells) for column in range(len(cells[0]))]
    blocks.append(
      "\n".join(
        f"{cell[0]:<{widths[0]}}" + "".join(f"   {value:>{width}}" for value, width in zip(cell[1:], widths[1:]))
        for cell in cells
      )
    )
  return "\n\n".join(blocks)


def _p(found: tuple[float, float]) -> str:
  return "< 0.001" if found[1] < 0.001 else f"{found[1]:.3f}"
