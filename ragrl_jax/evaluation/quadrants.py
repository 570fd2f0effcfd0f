"""Compares two evaluations question by question: right in both, in one, in none. Also a curve over top-k."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragrl_jax.core.metrics import stats
from ragrl_jax.core.text import aligned
from ragrl_jax.evaluation import comparison

CLASSES = ("both", "first only", "second only", "neither")
_HEADINGS = dict(over="over-search", needed="needed it", under="under-search")
_CLASS = dict(zip(((True, True), (True, False), (False, True), (False, False)), CLASSES))
Rows = Sequence[Mapping[str, Any]]  # rows of predictions.jsonl
ByQuestion = Mapping[Any, Mapping[str, Any]]  # (set, id) → its row


def over_seeds(parts: Sequence[Rows], measure: str) -> Rows:
  """Joins the rows of an evaluation's seeds: for each question, means of the measure, the searches and the tokens.

  A mean is over the seeds in which the value is known.

  Raises:
    ValueError: the seeds have different questions.
  """
  if len(parts) == 1:
    return parts[0]
  seeds = [{(row["source"] or "", row["id"]): row for row in part} for part in parts]
  if any(seed.keys() != seeds[0].keys() for seed in seeds):
    raise ValueError(f"the {len(seeds)} seeds of an evaluation have different questions: finish it, or name one seed.")
  result = []
  for key in seeds[0]:
    rows = [row for seed in seeds if (row := seed[key])["ended"] != "failed"]
    names = ("num_searches", "response_tokens", "episode_tokens")
    counts = {name: stats.mean_known(row.get(name) for row in rows) for name in names}
    value, (group, _, name) = stats.mean_known(_value(row, measure) for row in rows), measure.partition("/")
    score = dict(measures={name: value}) if group == "measure" and name else {measure: value}
    result.append({**(rows or [seeds[0][key]])[0], **counts, **score})
  return result


def crossed(first: Rows, second: Rows, measure: str) -> dict[str, dict[str, float]]:
  """{set: {class of CLASSES: share of its questions, "n": number}}; with several sets, "" has all questions.

  A question is right from half of the measure on. Questions without a value in either evaluation are left out.

  Args:
    first, second: rows of the same questions, in any order; a failed question has no value.
    measure: a column of the rows with values from 0 to 1 (outcome, em, answer_recall), or measure/NAME.

  Raises:
    ValueError: the questions differ, or none has a value in both.

  Source: When to Search Fig. 4 (with and without retrieval); LEAR Fig. 2 (rational and vanilla evidence).
  """
  classes = _by_set(*_paired(first, second), measure, lambda _, one, two: _CLASS[one, two])
  return {
    name: {kind: labels.count(kind) / len(labels) for kind in CLASSES} | {"n": len(labels)}
    for name, labels in classes.items()
  }


def need(first: Rows, second: Rows, measure: str) -> dict[str, dict[str, float | None]]:
  """Measures over- and under-search of the first evaluation. The second one never searches.

  Args:
    first: rows of a policy that may search.
    second: rows of the same questions without searches (closed book).
    measure: see `crossed`.

  Returns:
    {set: shares of its questions}; with several sets, "" has all questions. A share of no questions is None.
      "n": number of questions.
      "searched": share of the questions with a search.
      "over": share of the questions with a search that are right without it.
      "needed": share of the questions with a search that are right only with it.
      "under": share of the questions without a search that are wrong.

  Raises:
    ValueError: the questions differ, none has a value in both, or the second evaluation searches.

  Source: over- and under-search as in "Search Wisely" (arXiv 2505.17281), per question.
  """
  with_search, without_search = _paired(first, second)
  if searching := sum(bool(row["num_searches"]) for row in without_search.values()):
    raise ValueError(f"the second evaluation searched for {searching} questions: it must be one that never searches.")
  known = {name: row for name, row in with_search.items() if row["num_searches"] is not None}  # not of bare predictions
  kinds = _by_set(known, without_search, measure, lambda row, one, two: (row["num_searches"] > 0, one, two))
  return {name: _need(triples) for name, triples in kinds.items()}


def _need(triples: Sequence[tuple[bool, bool, bool]]) -> dict[str, float | None]:
  searched_for = [(one, two) for searched, one, two in triples if searched]
  return dict(
    n=len(triples),
    searched=len(searched_for) / len(triples),
    over=stats.mean_known(two for _, two in searched_for),
    needed=stats.mean_known(one and not two for one, two in searched_for),
    under=stats.mean_known(not one for searched, one, _ in triples if not searched),
  )


def curve(results: Mapping[str, tuple[Mapping[str, Any], Rows]], measure: str) -> list[dict[str, Any]]:
  """One row per evaluation, sorted by the top-k of its retrieval: means of the measure and of the tokens.

  Args:
    results: folder → (its metrics.json, its rows).
    measure: see `crossed`.

  Returns:
    {"folder", "top_k", "n", "mean", "low", "high" (95 % bootstrap), "response_tokens", "given_tokens" (prompt and
    results)}, fewest passages first; top_k 0 for one without a retriever.

  Raises:
    ValueError: an evaluation in which no question has a value.

  Source: When to Search Fig. 5.
  """
  points = []
  for folder, (metrics, rows) in results.items():
    known = [row for row in rows if _value(row, measure) is not None]
    if not known:
      raise ValueError(f"{folder}: no question has a value of {measure!r}.")
    values = [_value(row, measure) for row in known]
    low, high = stats.bootstrap_interval(values, seed=0)
    point = dict(folder=folder, top_k=_top_k(metrics["settings"].get("retrieval")), n=len(known))
    point |= dict(mean=statistics.fmean(values), low=low, high=high)
    counted = [row for row in known if row["response_tokens"] is not None]
    point["response_tokens"] = stats.mean_known(row["response_tokens"] for row in counted)
    point["given_tokens"] = stats.mean_known(row["episode_tokens"] - row["response_tokens"] for row in counted)
    points.append(point)
  return sorted(points, key=lambda point: (point["top_k"], point["folder"]))


def _top_k(retrieval: Any) -> int:
  """The number of passages of an evaluation's retriever; 0 if it is not known, as of transcripts from elsewhere."""
  return (retrieval.get("top_k") or 0) if isinstance(retrieval, Mapping) else 0


def text(sets: Mapping[str, Mapping[str, float | None]]) -> str:
  """The result of `crossed` or `need` as a plain table."""
  names = [name for name in next(iter(sets.values())) if name != "n"]
  lines = [("set", *(_HEADINGS.get(name, name) for name in names), "n")]
  for name, of in sets.items():
    cells_shown = ("–" if of[column] is None else f"{of[column]:.3f}" for column in names)
    lines.append((name or "(all)", *cells_shown, str(of["n"])))
  return aligned.columns(lines)


def curve_text(rows: Sequence[Mapping[str, Any]], measure: str) -> str:
  """The result of `curve` as a plain table."""
  lines = [("top-k", measure, "95 %", "reply's tokens", "given tokens", "n", "folder")]
  for row in rows:
    between = f"{row['low']:.3f} to {row['high']:.3f}"
    tokens_of = (row[name] for name in ("response_tokens", "given_tokens"))
    tokens = ("–" if number is None else f"{number:.1f}" for number in tokens_of)
    lines.append((str(row["top_k"]), f"{row['mean']:.3f}", between, *tokens, str(row["n"]), row["folder"]))
  return aligned.columns(lines)


def _paired(first: Rows, second: Rows) -> tuple[ByQuestion, ByQuestion]:
  """The rows by (set, id)."""
  left, right = ({(row["source"] or "", row["id"]): row for row in rows} for rows in (first, second))
  if len(left) < len(first) or len(right) < len(second):
    raise ValueError("a side has several answers to a question: give one evaluation of each set for each side.")
  of = lambda rows: {key: comparison.asked_of(row) for key, row in rows.items()}
  comparison.refuse_others(of(left), of(right), "the evaluations")
  return left, right


def _by_set(left: ByQuestion, right: ByQuestion, measure: str, of: Callable[..., Any]) -> dict[str, list[Any]]:
  """{set: [of(row, whether it is right, whether the second evaluation's is)]} of the questions with a value in both."""
  sets: dict[str, list[Any]] = {}
  for name, row in left.items():
    first_right, second_right = _value(row, measure), _value(right[name], measure)
    if first_right is not None and second_right is not None:
      sets.setdefault(name[0], []).append(of(row, first_right >= 0.5, second_right >= 0.5))
  if not sets:
    raise ValueError(f"no question has a value of {measure!r} in both evaluations.")
  if len(sets) > 1:
    sets = comparison.named(sets) | {"": [first_right for some in sets.values() for first_right in some]}
  return dict(sorted(sets.items()))


def _value(row: Mapping[str, Any], measure: str) -> float | None:
  if row["ended"] == "failed":
    return None
  group, _, name = measure.partition("/")
  value = row.get("measures", {}).get(name) if group == "measure" and name else row.get(measure)
  return None if value is None else float(value)
