"""Evaluations side by side: means of each set, their macro average, paired tests; and how judges agree."""

from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax.core.metrics import stats

Rows = Sequence[Mapping[str, Any]]  # of predictions.jsonl
_COLUMNS = dict(em="em", f1="f1", cover_em="cover_em", outcome="outcome", searches="num_searches")


def by_set(rows: Rows) -> dict[str, dict[str, float]]:
  """{set: {measure: its mean over the set's questions}}: em, f1, cover_em, outcome, searches, terms/NAME.

  Questions that failed, and values that are not known, are in no mean; a measure without values is left out.
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
  """{measure: {(set, id): its value}}, of the questions that did not fail and where it is known."""
  found: dict[str, dict[Any, float]] = {}
  for row in rows:
    if row["ended"] != "failed":
      for name, value in _scores(row).items():
        found.setdefault(name, {})[row["source"] or "", row["id"]] = value
  return found


def _scores(row: Mapping[str, Any]) -> dict[str, float]:
  """What is known of a row, by measure."""
  found = {name: row[column] for name, column in _COLUMNS.items()}
  found |= {f"terms/{name}": value for name, value in row["terms"].items()}
  return {name: float(value) for name, value in found.items() if value is not None}


def macro(sets: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
  """{measure: mean of the sets' means}, each set counting once, of what every set has.

  Args:
    sets: as `by_set` gives them.
  """
  names = dict.fromkeys(name for means in sets.values() for name in means)
  return {
    name: sum(means[name] for means in sets.values()) / len(sets)
    for name in names
    if all(name in means for means in sets.values())
  }


def compare(results: Mapping[str, Rows]) -> dict[str, dict[str, Any]]:
  """Two and more systems' evaluations on the same questions.

  Two things are paired with the first system's, each in a two-sided test of its own. The means of the sets, by the
  signed-rank test, where there are several: it says whether the difference would show on further sets, and with fewer
  than six of them no p is below .05. The scores of the questions, by the permutation test: it says whether the
  difference would show on further questions of these sets.

  Returns:
    {measure: {"sets": {set: [a mean a system]}, "macro": [one a system], "wilcoxon": [(statistic, p), one for each
    system after the first; none of one set], "questions": [(mean difference, p), likewise], "paired": questions for
    which all systems have a value}} of the measures that every system has on every set.

  Raises:
    ValueError: fewer than two systems, other questions for one of them, or no measure that all have.
  """
  if len(results) < 2:
    raise ValueError(f"{len(results)} evaluation: two and more can be compared.")
  names = list(results)
  asked = {name: {(row["source"], row["id"]) for row in results[name]} for name in names}
  for name in names[1:]:
    if asked[name] != asked[names[0]]:
      alone = len(asked[names[0]] - asked[name]), len(asked[name] - asked[names[0]])
      raise ValueError(
        f"{names[0]} and {name} were asked different questions: {alone[0]} and {alone[1]} are one's alone."
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
        wilcoxon=[stats.wilcoxon(other, first) for other in others] if len(scores) > 1 else [],
        questions=[stats.paired_permutation(other, base) for other in rest] if paired else [],
      )
  if not compared:
    raise ValueError(f"{', '.join(names)}: no measure has a value for every system on every set.")
  return compared


def agreement(judges: Sequence[Mapping[Any, str]]) -> dict[str, Any]:
  """How judges agree on the items that all have labelled: {item: label} of each judge.

  Returns:
    n (items of all judges), left_out (of some), agreement (share of pairs of judges with the same label, mean over the
    items), fleiss_kappa, and shares: {label: its share of all labels}. Near 0 or 1 of one label, κ says little.

  Raises:
    ValueError: one judge, or no item that all have labelled.
  """
  shared = set.intersection(*map(set, judges)) if judges else set()
  if len(judges) < 2 or not shared:
    raise ValueError(f"{len(judges)} judges have labelled {len(shared)} items in common: two and one are needed.")
  labels = sorted({judge[item] for judge in judges for item in shared})
  counts = [[sum(judge[item] == label for judge in judges) for label in labels] for item in shared]
  k = len(judges)
  return dict(
    n=len(shared),
    left_out=len(set().union(*judges)) - len(shared),
    agreement=sum(c * (c - 1) for row in counts for c in row) / (k * (k - 1) * len(shared)),
    fleiss_kappa=stats.fleiss_kappa(counts),
    shares={label: sum(row[j] for row in counts) / (k * len(shared)) for j, label in enumerate(labels)},
  )


def text(compared: Mapping[str, Mapping[str, Any]], systems: Sequence[str]) -> str:
  """`compare`'s result as plain text: a block a measure, a line a set, a column a system."""
  blocks = []
  for measure, found in compared.items():
    cells = [(measure, *systems)]
    cells += [(name or "(no name)", *(f"{value:.3f}" for value in means)) for name, means in found["sets"].items()]
    if len(found["sets"]) > 1:
      cells.append(("macro average", *(f"{value:.3f}" for value in found["macro"])))
    if found["wilcoxon"]:
      cells.append((f"p, paired by set ({len(found['sets'])}; Wilcoxon)", "", *map(_p, found["wilcoxon"])))
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
