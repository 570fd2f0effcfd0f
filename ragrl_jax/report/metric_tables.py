"""Tables of metrics of one evaluation, or of two side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax.core.text import aligned
from ragrl_jax.core.text.forms import safe

# The lines of a comparison: (label, key in the metrics).
LINES = (
  ("Exact match", "em"),
  ("F1", "f1"),
  ("Gold contained in the answer", "cover_em"),
  ("Correct by the recipe", "outcome"),
  ("Answered", "answered"),
  ("Searches per question", "searches"),
  ("Wasted searches per question", "wasted_searches"),
  ("Response tokens", "response_tokens"),
  ("Evidence holds a gold", "answer_recall"),
  ("Evidence BLEU", "evidence_bleu"),
  ("Evidence ROUGE-L", "evidence_rouge_l"),
  ("Passage tokens per evidence token", "compression"),
)
CHECKSUMS = ("made", "checksum")
SEARCHING = ("searches", "wasted_searches")  # left out if neither side searches


def comparison(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[dict[str, Any]]:
  """The rows of a before/after table of two evaluations' metrics, each {"label", "n", "before", "after"}.

  `n` is the number of questions in the mean; of two sides with different numbers both, as text.
  A side is {"value", "low", "high"}, and "deviation" for several seeds. Bounds are None if they were not computed. A
  side without a value is None. Exact match is followed by its values by number of hops and by source, if there are
  several, and by the mean of the sources.
  """
  before, after = before or {}, after or {}
  rows = []
  for label, key in LINES:
    never_searches = not after.get("searches") and not before.get("searches")
    if (after.get(key) is None and before.get(key) is None) or (never_searches and key in SEARCHING):
      continue
    rows.append(_row(label, key, before, after))
    if key == "em":
      for group, wording in (("by_hops", "{}-hop"), ("by_source", "{}")):
        parts = sorted({*before.get(group, {}), *after.get(group, {})})
        for part in parts if len(parts) > 1 else ():
          first, second = before.get(group, {}).get(part, {}), after.get(group, {}).get(part, {})
          rows.append(_row("   " + wording.format(part), key, first, second))
      if before.get("macro") or after.get("macro"):
        rows.append(_row("   mean of the sources", key, before.get("macro", {}), after.get("macro", {})))
  return rows


def _row(label: str, key: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
  numbers = list(dict.fromkeys(_n(side, key) for side in (before, after) if side.get(key) is not None and "n" in side))
  n = ", ".join(map(str, numbers)) if len(numbers) > 1 else numbers[0] if numbers else None
  return {"label": label, "n": n, "before": _side(before, key), "after": _side(after, key)}


def held_out(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, dict[str, Any]] | None]:
  """The first and the last evaluation in a run's metrics, each (step, metrics in the form of `harness.summarise`).

  With a single evaluation the first is None. Without any, both are None.
  """
  evaluations = []
  for row in rows:
    nested: dict[str, Any] = {}
    for name, value in row.items():
      if name.startswith("evaluation/") and isinstance(value, int | float):
        group, _, rest = name.removeprefix("evaluation/").partition("/")
        part, _, key = rest.rpartition("/")  # a source's name may hold a slash
        if not rest:
          nested[group] = value
        elif group in ("by_hops", "by_source"):
          nested.setdefault(group, {}).setdefault(part, {})[key] = value
        else:
          nested.setdefault(group, {})[rest] = value
    if nested:
      evaluations.append((row["step"], nested))
  return [evaluations[0] if len(evaluations) > 1 else None, evaluations[-1] if evaluations else None]


def _n(metrics: Mapping[str, Any], key: str) -> float:
  """The number of questions in a mean; that of several seeds is a mean itself."""
  unknown = metrics.get("unjudged", 0) if key == "outcome" else 0
  number = metrics.get("counted", {}).get(key, metrics["n"] - unknown)
  return int(number) if number == int(number) else number


def _side(metrics: Mapping[str, Any], key: str) -> dict[str, float | None] | None:
  if metrics.get(key) is None:
    return None
  low, high = metrics.get(f"{key}_interval") or (None, None)
  spread = metrics.get("deviation", {}).get(key)
  return {"value": metrics[key], "low": low, "high": high} | ({} if spread is None else {"deviation": spread})


def text_table(rows: Sequence[Mapping[str, Any]]) -> str:
  """The comparison as plain text with aligned columns: `Exact match   .350 [.29, .42]   .940 [.91, .97]   n 300`."""
  cells = [("", "before", "after", "n")]
  for row in rows:
    cells.append((row["label"], _cell(row["before"]), _cell(row["after"]), "" if row["n"] is None else str(row["n"])))
  head, *lines = aligned.columns(cells, left=3).splitlines()
  return "\n".join([head, "-" * max(map(len, (head, *lines))), *lines])


def _cell(side: Mapping[str, float | None] | None) -> str:
  if side is None:
    return "–"
  bounds = "" if side["low"] is None else f"  [{side['low']:.3f}, {side['high']:.3f}]"
  digits = 3 if side["value"] < 10 else 1
  spread = f" ± {side['deviation']:.{digits}f}" if "deviation" in side else ""
  return f"{side['value']:.{digits}f}{spread}{bounds}"


def one(metrics: Mapping[str, Any]) -> str:
  """One evaluation as plain text, with its retrieval, sampling and checkpoint."""
  rows = comparison(None, metrics)
  cells = [(row["label"], _cell(row["after"]), "" if row["n"] is None else f"n {row['n']}") for row in rows]
  lines = aligned.columns(cells, left=2).splitlines()
  if "seeds" in metrics:
    lines.append(f"means ± sample deviations over {metrics['seeds']} seeds; intervals over questions")
  if metrics.get("failed"):
    lines.append(f"{metrics['failed']:.10g} questions failed and are in none of these numbers (see predictions.jsonl).")
  if metrics.get("unjudged"):
    lines.append(
      f"{metrics['unjudged']:.10g} answers got no verdict from the judge and are not in 'Correct by the recipe'."
    )
  lines += unanswered(metrics)
  settings = metrics.get("settings") or {}
  for name in ("retrieval", "sampling", "checkpoint"):
    if name in settings:
      lines.append(safe(f"{name}: {in_words(settings[name])}"))
  if "seconds" in metrics:
    peak_text = ", ".join(f"{name} {size / 2**30:.2f} GiB" for name, size in metrics["peak_memory"].items())
    what = "answers" if "seeds" in metrics else "questions"
    duration = f"{metrics['seconds']:.1f} s for {metrics['seconds_cover']} {what} {spent(metrics)}".rstrip()
    lines.append(f"{duration}; peak memory: {peak_text}")
  if "latency" in metrics:
    lines.append(f"{metrics['latency']:.3f} s from a question to its answer, one at a time (median)")
  return "\n".join(lines)


def spent(metrics: Mapping[str, Any]) -> str:
  """The devices and the price of an evaluation, such as on 1 x NVIDIA H100, price 0.0421. "" if they are not known."""
  price = f", price {metrics['price']:,.4g}" if metrics.get("price") else ""
  return f"on {metrics['devices']}{price}" if metrics.get("devices") else ""


def unanswered(metrics: Mapping[str, Any]) -> list[str]:
  """Lines about replies without an answer: how many, how many of them contain a gold, and how they look."""
  replies = metrics.get("unanswered") or {}
  if not replies.get("replies"):
    return []
  head = f"{replies['replies']:.10g} replies have no answer that the recipe can read"
  head += f"; {replies['with_gold']:.10g} of them contain a gold."
  return [head, *(f"  such as {reply!r}" for reply in replies.get("seen", ()))]


def in_words(value: Any) -> str:
  """A setting of an evaluation in words: of a part its kind, without checksums, which metrics.json has."""
  if not isinstance(value, Mapping):
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
  short = {name: item.get("kind", "") if isinstance(item, Mapping) else item for name, item in value.items()}
  return ", ".join(f"{name} {in_words(item)}" for name, item in short.items() if item != "" and name not in CHECKSUMS)
