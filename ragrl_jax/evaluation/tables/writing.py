"""Writes filled tables as Markdown, CSV, LaTeX or one HTML page."""

import csv
import functools
import html
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2

from ragrl_jax import recipes
from ragrl_jax.evaluation import corpus_audit
from ragrl_jax.evaluation.records import Evaluation
from ragrl_jax.evaluation.tables import commands_of
from ragrl_jax.evaluation.tables.filling import Cell, Filled
from ragrl_jax.evaluation.tables.layout import Paper
from ragrl_jax.evaluation.tables.measures import FOLDERS, MEASURES
from ragrl_jax.store import jsonl

EMPTY = "–"
COMMANDS = ("Make first", "Train first", "Commands that fill a cell")
NUMBERS = "mean ± deviation of runs [95 % bootstrap over n questions]; intervals and p do not cover further seeds"
TEST = (
  "two-sided; by question a permutation test, for an average Wilcoxon's signed ranks over the sets; in brackets as "
  "Holm adjusts it for all tests of the table"
)


def rendered(template: str, paper: Paper, filled: Sequence[Filled]) -> str:
  """Every table with its notes. HTML is one page that loads nothing and runs no script, and has every text escaped."""
  loader, is_html = jinja2.PackageLoader("ragrl_jax.evaluation.tables", "."), template.endswith(".html.jinja")
  spaces = dict(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
  environment = jinja2.Environment(loader=loader, autoescape=is_html, **spaces)
  environment.filters |= dict(pipe=_pipe, code=_code, tex=lambda text: text.translate(_TEX))
  blocks = [(one.table, *grid(one), notes_of(paper, one)) for one in filled]
  return environment.get_template(template).render(paper=paper, blocks=blocks, commands=COMMANDS)


def csv_text(paper: Paper, filled: Sequence[Filled]) -> str:
  """One line per cell: the printed number, our number with interval, test and settings, or the cell's command."""
  out = io.StringIO()
  lines = csv.writer(out, lineterminator="\n")
  numbers_of = "published ours deviation low high n p p_holm pairs against"
  lines.writerow(f"paper table row column measure style {numbers_of} runs settings command note".split())
  for one in filled:
    for row, column, cell in one.each():
      of = [paper.name, one.table.name, row.name, column.head, column.measure, MEASURES[column.measure].style]
      numbers = [cell.value, cell.deviation, cell.low, cell.high, cell.n or None, cell.p, cell.adjusted]
      numbers = ["" if number is None else f"{number:.6g}" for number in [*numbers, cell.paired or None]]
      against = row.against if cell.p is not None else ""
      runs = [" ".join(run.folder for run in cell.evaluations), " | ".join(map(described, cell.evaluations))]
      rest = [cell.command, row.why_not or cell.why_not]
      lines.writerow([*of, cell.published or "", *numbers, against, *runs, *rest])
  return out.getvalue()


FORMATS: Mapping[str, Callable[[Paper, Sequence[Filled]], str]] = {
  "markdown": functools.partial(rendered, "markdown.jinja"),
  "csv": csv_text,
  "latex": functools.partial(rendered, "latex.jinja"),
  "html": functools.partial(rendered, "page.html.jinja"),
}


def grid(table_filled: Filled) -> tuple[list[str], list[list[str]]]:
  """(headings, lines) in the paper's layout. Each line of published numbers is followed by a line of ours."""
  cells = [[(cell.published or EMPTY, _ours(table_filled, cell)) for cell in line] for line in table_filled.cells]
  down = [f"{row.section}: {row.name}" if row.section else row.name for row in table_filled.table.rows]
  across = [f"{column.head} {MEASURES[column.measure].label}".strip() for column in table_filled.table.columns]
  if table_filled.table.transposed:
    cells, down, across = [*zip(*cells)], across, [row.name for row in table_filled.table.rows]
  whose = ("paper", "ours")
  lines = [[name, whose[i], *(cell[i] for cell in line)] for name, line in zip(down, cells) for i in range(2)]
  return ["", "", *across], lines


def _ours(one: Filled, cell: Cell) -> str:
  if cell.value is None:
    return f"→ {one.commands[cell.command]}" if cell.command else EMPTY
  number = lambda value: f"{value:.{one.table.digits}f}"
  p = lambda value: EMPTY if value is None else "< .001" if value < 0.001 else f"{value:.3f}"
  bounds = "" if cell.low is None else f" [{number(cell.low)}, {number(cell.high)}]"
  spread = "" if cell.deviation is None else f" ± {number(cell.deviation)}"
  test = "" if cell.p is None else f" p {p(cell.p)}"
  if cell.p is not None and sum(other.p is not None for *_, other in one.each()) > 1:
    test += f" ({p(cell.adjusted)})"
  return f"{number(cell.value)}{spread}{bounds} n {cell.n}{test}"


def notes_of(paper: Paper, table_filled: Filled) -> dict[str, list[str]]:
  """The notes below a table, {title: notes}, without titles that have none."""
  table, each = table_filled.table, table_filled.each()
  runs = {(row.name, run.folder): run for row, _, cell in each for run in cell.evaluations}
  of_columns = [(column.head, MEASURES[column.measure]) for column in table.columns]
  named = lambda head, measure: measure.label or head if len(table.columns) > 3 else f"{head} {measure.label}".strip()
  styles = [f"{named(head, measure)}: {measure.style}" for head, measure in of_columns]
  styles += [f"{row.name}: {MEASURES[row.measure].style}" for row in table.rows if row.measure]
  lacks = [(row, column) for row, column, cell in each if cell.command]
  needed = [run for row, _ in lacks for named in (row.run, row.versus) if named for run in (named.reads, named) if run]
  audits = [(name, run) for (name, _), run in runs.items() if run.audit]
  notes = {
    "How ours are scored": [NUMBERS, *styles] if runs else [],
    "Our runs": [f"{name}: {described(run)}" for (name, _), run in runs.items()],
    "What their corpora hold": [
      f"{name}: {corpus_audit.in_a_line(run.audit)}; in {run.folder}" for name, run in audits
    ],
    "Paired tests": sorted(f"{row.name} against {row.against} ({TEST})" for row, _, cell in each if cell.p is not None),
    "Make first": [*(run.made for run in needed), *(column.made for _, column in lacks)],
    "Train first": [commands_of.training(paper, run) for run in needed],
    "Commands that fill a cell": list(table_filled.commands),
  }
  printed = " ".join(note for title in COMMANDS for note in notes[title])
  notes["Folders in the commands"] = [f"{name}: {what}" for name, what in FOLDERS.items() if name in printed]
  without = [f"{row.name}: {row.why_not}" for row in table.rows if row.why_not]
  without += [f"{row.name}, {column.head}: {cell.why_not}" for row, column, cell in each if cell.why_not]
  notes["Rows and cells without a run"] = without
  return {title: [*dict.fromkeys(filter(None, of_title))] for title, of_title in notes.items() if any(of_title)}


_EXTRACTION = ("recipe", "preset", "model", "checkpoint", "chosen_by", "noise")  # facts of what extracted evidence
_PASSAGES = dict(own_passages="the questions' own left out", cut_middle="cut in the middle where they are too long")


def described(one: Evaluation) -> str:
  """The settings of a score in one line: questions, model, retriever with its corpus, lengths, decoding, judge."""
  facts, settings = one.facts, one.metrics["settings"]
  retrieval, reads = settings.get("retrieval"), facts.get("reads")
  new, context = facts.get("max_new_tokens"), facts.get("context")
  parts = {
    "questions": f"{one.metrics['n']} of {settings['data']}",
    "failed": one.metrics.get("failed"),
    "model": facts["model"] or facts.get("shape") or "not known here",
    "checkpoint": settings.get("checkpoint"),
    "chosen by": settings.get("chosen_by"),
    "evidence of": reads and {name: reads.get(name) or None for name in _EXTRACTION},
    "retriever": retrieval or ("not known" if facts.get("system") else "none (given passages, or none)"),
    "lengths": None if None in (new, context) else f"{new} new tokens a turn, {context} in all",
    "passages": ", ".join(words for name, words in _PASSAGES.items() if settings.get(name) == (name == "cut_middle")),
    "decoding": settings.get("sampling"),
    "judges": settings.get("judges") or "none",
    "verdicts on answers by": facts.get("verdicts"),
    "steps judged by": facts.get("steps_judged_by"),
    "labels": settings.get("labels"),
    "system": facts.get("system"),
    "noise": facts.get("noise"),
    "switches unlike the preset's:": _changed(settings),
  }
  words = {name: _words(value) for name, value in parts.items() if value}
  return "; ".join(f"{name} {text}" for name, text in words.items() if text) + f"; in {one.folder}"


def _changed(settings: Mapping[str, Any]) -> dict[str, Any]:
  """The recipe's switches that differ from those of its preset."""
  if settings["recipe"] not in recipes.RECIPES:
    return {}
  usual = jsonl.plain(dict(recipes.get(settings["recipe"], settings.get("preset")).switches))
  return {name: value for name, value in settings.get("switches", {}).items() if usual.get(name, value) != value}


def _words(value: Any) -> str:
  if not isinstance(value, Mapping):
    return str(value)
  short = {"checksum": 12}  # enough to tell two corpora apart
  items_known = {name: item for name, item in value.items() if item not in (None, "")}
  return ", ".join(f"{name} {_words(item)[: short.get(name)]}".strip() for name, item in items_known.items())


def _pipe(text: str) -> str:
  return " ".join(html.escape(text, quote=False).replace("|", "\\|").split())


def _code(text: str) -> str:
  line = " ".join(text.split())
  return f"`{line}`" if "`" not in line else html.escape(line, quote=False)


_TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "→": r"$\rightarrow$"}
_TEX |= {sign: f"\\{sign}" for sign in "&%$#_{}"} | {"<": "$<$", ">": "$>$", "–": "--", "†": r"$\dagger$"}
_TEX = str.maketrans(_TEX)
