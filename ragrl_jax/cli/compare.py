"""Compares evaluations, or judges:

  ragrl compare --results OUT_A --results OUT_B [--results …] [--measures em,terms/information_think]
  ragrl compare --verdicts 'PAIRS_A/*.jsonl.gz' --verdicts SHEET.csv [--verdicts …]

The first compares two or more systems on the same questions. Each --results is a folder that ragrl evaluate
wrote, or a glob of such folders ('out/a/*', one per set and training run). Folders with the same questions, and the
seeds of an evaluation, are runs of one system. A system's scores are means over its runs, ± their standard deviation.
The command prints the means of every set, their macro average, the difference from the first system with its 95 %
interval over questions and runs, and two tests against the first system. One test pairs the scores of the questions,
the other one the means of the sets; --alternative makes the latter one-sided. With several systems, p-values are also
adjusted by Holm's method.

The second compares two or more judges. Each --verdicts has the same pairs, labelled by one judge
(ragrl make-judge-data) or by a person (its --sheet). The command prints the rate of agreement, Fleiss' kappa,
Cohen's kappa for every two judges, and 95 % intervals over the pairs.
"""

import json

from absl import app, flags

from ragrl_jax.cli import commands
from ragrl_jax.core.metrics import stats
from ragrl_jax.data import readers
from ragrl_jax.evaluation import answer_verdicts, comparison, raters

RESULTS = flags.DEFINE_multi_string(
  "results", [], "Folder of predictions.jsonl, or a glob of such folders; once per system."
)
MEASURES = flags.DEFINE_list(
  "measures", [], "em, f1, cover_em, outcome, searches, judged, terms/NAME; all if not given."
)
ALTERNATIVE = flags.DEFINE_enum(
  "alternative",
  "two-sided",
  list(stats.ALTERNATIVES),
  "Alternative of the test by sets: greater tests whether a system is above the first one.",
)
VERDICTS = flags.DEFINE_multi_string(
  "verdicts", [], "Labelled pairs, FILE.jsonl[.gz] or a glob, or a person's FILE.csv; once per judge."
)


def main():
  if bool(RESULTS.value) == bool(VERDICTS.value):
    raise app.UsageError("give --results once per system, or --verdicts once per judge.")
  if VERDICTS.value and (unused := commands.given(MEASURES, ALTERNATIVE)):
    raise app.UsageError(f"{unused} with --verdicts: these are for --results. Leave them out.")
  if RESULTS.value:
    print(systems())
  else:
    print(json.dumps(raters.agreement({path: labels(path) for path in VERDICTS.value}), indent=1))


def systems() -> str:
  """The tables that compare the systems of --results."""
  rows = {name: answer_verdicts.predictions(name) for name in RESULTS.value}
  result = comparison.compare(rows, alternative=ALTERNATIVE.value)
  if unknown := [name for name in MEASURES.value if name not in result]:
    raise ValueError(f"--measures={','.join(unknown)}: all systems have {', '.join(result)}.")
  result_shown = {name: result[name] for name in MEASURES.value or result}
  return comparison.text(result_shown, RESULTS.value, alternative=ALTERNATIVE.value)


def labels(path: str) -> dict[raters.Pair, str]:
  """The labels of one judge or person, by pair."""
  if path.endswith(".csv"):
    return raters.read_sheet(path)
  premise = lambda pair: pair.passages[0].text if pair.passages else ""
  return {raters.same(premise(pair), pair.question): pair.golds[0] for pair in readers.read_examples(path)}
