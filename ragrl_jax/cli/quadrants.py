"""Compares two evaluations question by question, or lists evaluations by the number of passages:

  ragrl quadrants --results OUT_A --results OUT_B [--measure outcome]
  ragrl quadrants --curve 'out/k*' [--measure outcome]

The first prints the shares of questions that both, only the first, only the second and no evaluation answered right.
With and without retrieval, these are the numbers of When to Search's Fig. 4; with rational and vanilla evidence
(--measure answer_recall), those of LEAR's Fig. 2. If the first evaluation searches and the second never does, it also
prints the share of questions with a search, the shares of these that are right without a search (over-search) and only
with one, and the share of the other questions that are wrong (under-search).

The second prints one line per evaluation, sorted by its config.retrieval.top_k: the measure's mean, tokens of the reply
and tokens given, as in When to Search's Fig. 5. Folders are those of ragrl evaluate, or globs of them. With
several seeds, a question's value is the mean over the seeds.
"""

import pathlib

from absl import app, flags

from ragrl_jax.evaluation import answer_files, answer_verdicts, quadrants

RESULTS = flags.DEFINE_multi_string("results", [], "Folder of predictions.jsonl, or a glob of such folders; twice.")
CURVE = flags.DEFINE_string("curve", "", "Glob of folders of predictions.jsonl and metrics.json.")
MEASURE = flags.DEFINE_string(
  "measure", "outcome", "outcome, em, f1, cover_em, judged, answer_recall or measure/NAME; right from 0.5 on."
)


def main():
  if (len(RESULTS.value) == 2) == bool(CURVE.value) or len(RESULTS.value) not in (0, 2):
    raise app.UsageError("give --results twice, or --curve once.")
  if CURVE.value:
    results = {str(path): (answer_files.finished(path), _rows(path)) for path in _folders(CURVE.value)}
    print(quadrants.curve_text(quadrants.curve(results, MEASURE.value), MEASURE.value))
    return
  first, second = ([row for path in _folders(name) for row in _rows(path)] for name in RESULTS.value)
  print(quadrants.text(quadrants.crossed(first, second, MEASURE.value)))
  searching = [any(row.get("num_searches") for row in rows) for rows in (first, second)]
  if searching == [True, False]:
    print("\n" + quadrants.text(quadrants.need(first, second, MEASURE.value)))


def _folders(name: str) -> list[pathlib.Path]:
  is_finished = lambda path: all((part / answer_files.PREDICTIONS).exists() for part in answer_files.parts(path))
  if not (found := [path for path in answer_files.named(name) if is_finished(path)]):
    raise FileNotFoundError(f"{name}: no {answer_files.PREDICTIONS} there.")
  return found


def _rows(folder: pathlib.Path) -> list:
  read = lambda part: answer_verdicts.beside(part, answer_files.rows(part))
  return list(quadrants.over_seeds([read(part) for part in answer_files.parts(folder)], MEASURE.value))
