"""Writes filled tables as Markdown, CSV, LaTeX or one HTML page."""

import csv
import html
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragrl_jax import recipes
from ragrl_jax.evaluation import corpus_audit
from ragrl_jax.evaluation.tables import commands_of
from ragrl_jax.evaluation.tables.filling import Cell, Filled
from ragrl_jax.evaluation.tables.layout import FOLDERS, Paper, Row
from ragrl_jax.evaluation.tables.measures import MEASURES
from ragrl_jax.evaluation.tables.results import Evaluation
from ragrl_jax.store import jsonl

EMPTY = "–"
Lines = list[list[str]]


def markdown(paper: Paper, filled: Sequence[Filled]) -> str:
  """Every table as a Markdown table with its notes below."""
  blocks = [f"# {paper.title}"]
  for one in filled:
    heads, lines = grid(one)
    cells = [heads, ["---"] * len(heads), *lines]
    blocks.append(f"## {one.table.name}: {one.table.title}")
    blocks.append("\n".join(f"| {' | '.join(_pipe(cell) for cell in line)} |" for line in cells))
    for title, notes in notes_of(paper, one).items():
      blocks.append("\n".join([f"**{title}**", "", *(f"{number}. {_code(note)}" for number, note in notes)]))
  others = "\n".join(f"- {name}: {why}." for name, why in paper.others.items())
  return "\n\n".join([*blocks, "## Not among these", others, f"Published numbers: {paper.source}."]) + "\n"


def csv_text(paper: Paper, filled: Sequence[Filled]) -> str:
  """One line per cell: the printed number, our number with interval, test and settings, or the cell's command."""
  out = io.StringIO()
  lines = csv.writer(out, lineterminator="\n")
  numbers_of = "published ours deviation low high n p p_holm pairs against"
  lines.writerow(f"paper table row column measure style {numbers_of} runs settings command note".split())
  for one in filled:
    for row, column, cell in one.each():
      measure = MEASURES[column.measure]
      numbers = [cell.value, cell.deviation, cell.low, cell.high, cell.n or None]
      numbers += [cell.p, cell.adjusted, cell.paired or None]
      lines.writerow(
        [paper.name, one.table.name, row.name, column.head, column.measure, measure.style, cell.published or ""]
        + ["" if number is None else f"{number:.6g}" for number in numbers]
        + [row.against if cell.p is not None else "", " ".join(found.folder for found in cell.evaluations)]
        + [" | ".join(map(described, cell.evaluations)), cell.command, row.why_not or cell.why_not]
      )
  return out.getvalue()


def latex(paper: Paper, filled: Sequence[Filled]) -> str:
  """Every table as a table environment (booktabs); commands and settings are comments above it."""
  blocks = []
  for one in filled:
    heads, lines = grid(one)
    comments = [
      f"% {title} {number}: {' '.join(note.split())}"
      for title, notes in notes_of(paper, one).items()
      for number, note in notes
    ]
    body = [" & ".join(_tex(cell) for cell in line) + r" \\" for line in lines]
    rules = [
      r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{ll{'c' * (len(heads) - 2)}}}", r"\toprule",
      " & ".join(_tex(head) for head in heads) + r" \\", r"\midrule", *body, r"\bottomrule", r"\end{tabular}",
      rf"\caption{{{_tex(f'{paper.title}, {one.table.name}: {one.table.title}')}}}", r"\end{table}",
    ]  # fmt: skip
    blocks.append("\n".join([*comments, *rules]))
  return "\n\n".join(blocks) + "\n"


_STYLE = """:root{color-scheme:light dark;--paper:#faf9f6;--ink:#1b1d21;--dim:#5d6169;--rule:#e3e0d9;--ours:#0b6b6b}
@media(prefers-color-scheme:dark){:root{--paper:#121417;--ink:#e7e5df;--dim:#a2a6ae;--rule:#2f3339;--ours:#58c4bd}}
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:1200px;padding:0 1rem;color:var(--ink);
background:var(--paper);overflow-wrap:anywhere}h1,h2,h3{line-height:1.25}h2{font-size:20px;margin:2.5rem 0 .5rem}
h3{font-size:15px;margin:1rem 0 .25rem}nav{columns:22rem;font-size:14px}nav a{display:block;color:var(--ours)}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:14px}th,td{padding:4px 14px 4px 0;
text-align:left;vertical-align:baseline;border-bottom:1px solid var(--rule);white-space:nowrap;font-weight:400}
thead th{color:var(--dim);font-size:13px}div{overflow-x:auto}tbody th{position:sticky;left:0;background:var(--paper)}
tr:has(+.ours)>*{border-bottom:0;padding-bottom:0}.ours td{color:var(--ours)}td:nth-child(2){color:var(--dim)}
code{font-size:12px}ol,ul{margin:4px 0;padding-left:2rem}li{margin:3px 0}summary{cursor:pointer;color:var(--dim)}
details{margin:10px 0}.small{font-size:13px;color:var(--dim)}@media(max-width:600px){tbody th{min-width:32vw;
white-space:normal;overflow-wrap:break-word}h1{font-size:24px}}"""
COMMANDS = ("Make first", "Train first", "Commands that fill a cell")
OPEN = ("How ours are scored", "Our runs", "Paired tests")  # notes that are not folded


def page(paper: Paper, filled: Sequence[Filled]) -> str:
  """One self-contained HTML page. Every text is escaped; the page loads nothing and runs no script."""
  said = html.escape
  names = [f"{one.table.name}: {one.table.title}" for one in filled]
  parts = [
    '<!doctype html><html lang="en"><head><meta charset="utf-8">',
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
    f"<title>{said(paper.title)}</title><style>{_STYLE}</style></head><body><h1>{said(paper.title)}</h1>",
    '<p class="small">Ours below the paper\'s. A number after → is that of the command that fills the cell.</p><nav>',
    *(f'<a href="#table-{place}">{said(name)}</a>' for place, name in enumerate(names)),
    "</nav>",
  ]
  for place, (one, name) in enumerate(zip(filled, names)):
    heads, lines = grid(one)
    parts.append(f'<h2 id="table-{place}">{said(name)}</h2><div><table><thead><tr>')
    parts.append("".join(f'<th scope="col">{said(head)}</th>' for head in heads) + "</tr></thead><tbody>")
    before = ""
    for row, *cells in lines:  # a row's name is only on the first of its two lines
      kind, shown = ' class="ours"' if cells[0] == "ours" else "", "" if row == before else said(row)
      parts.append(f'<tr{kind}><th scope="row">{shown}</th>' + "".join(f"<td>{said(cell)}</td>" for cell in cells))
      parts.append("</tr>")
      before = row
    parts.append("</tbody></table></div>")
    for title, notes in notes_of(paper, one).items():
      tag, folded = ("code" if title in COMMANDS else "span"), title not in OPEN
      items = "".join(f'<li value="{number}"><{tag}>{said(note)}</{tag}></li>' for number, note in notes)
      head = f"<details><summary>{said(title)} ({len(notes)})</summary>" if folded else f"<h3>{said(title)}</h3>"
      parts.append(f"{head}<ol>{items}</ol>{'</details>' if folded else ''}")
  others = "".join(f"<li>{said(name)}: {said(why)}.</li>" for name, why in paper.others.items())
  parts.append(
    f"<h2>Not among these</h2><ul>{others}</ul><p>Published numbers: {said(paper.source)}.</p></body></html>"
  )
  return "\n".join(parts) + "\n"


FORMATS: Mapping[str, Callable[[Paper, Sequence[Filled]], str]] = dict(
  markdown=markdown, csv=csv_text, latex=latex, html=page
)


def grid(one: Filled) -> tuple[list[str], Lines]:
  """(headings, lines) in the paper's layout. Each line of published numbers is followed by a line of ours."""
  table, numbers = one.table, _numbers(one)
  systems = [
    [(cell.published or EMPTY, _ours(one, row, cell, numbers)) for cell in cells]
    for row, cells in zip(table.rows, one.cells)
  ]
  if not table.transposed:
    lines: Lines = []
    for row, pairs in zip(table.rows, systems):
      name = f"{row.section}: {row.name}" if row.section else row.name
      lines.append([name, "paper", *(printed for printed, _ in pairs)])
      lines.append([name, "ours", *(ours for _, ours in pairs)])
    return ["", "", *(_head(column) for column in table.columns)], lines
  lines = []
  for place, column in enumerate(table.columns):
    lines.append([_head(column), "paper", *(pairs[place][0] for pairs in systems)])
    lines.append([_head(column), "ours", *(pairs[place][1] for pairs in systems)])
  return ["", "", *(row.name for row in table.rows)], lines


def _head(column) -> str:
  return f"{column.head} {MEASURES[column.measure].label}".strip()


def _ours(one: Filled, row: Row, cell: Cell, numbers: Mapping[str, int]) -> str:
  if cell.value is None:
    return f"→ {numbers[cell.command]}" if cell.command else EMPTY
  digits = one.table.digits
  bounds = "" if cell.low is None else f" [{cell.low:.{digits}f}, {cell.high:.{digits}f}]"
  spread = "" if cell.deviation is None else f" ± {cell.deviation:.{digits}f}"
  test = "" if cell.p is None else f" p {_p(cell.p)}"
  if cell.p is not None and sum(other.p is not None for *_, other in one.each()) > 1:
    test += f" ({_p(cell.adjusted)})"
  return f"{cell.value:.{digits}f}{spread}{bounds} n {cell.n}{test}"


def _p(value: float | None) -> str:
  return EMPTY if value is None else "< .001" if value < 0.001 else f"{value:.3f}"


def _numbers(one: Filled) -> dict[str, int]:
  """Command → the number shown in its cells."""
  found = dict.fromkeys(cell.command for *_, cell in one.each() if cell.command)
  return {command: number for number, command in enumerate(found, 1)}


def notes_of(paper: Paper, one: Filled) -> dict[str, list[tuple[int, str]]]:
  """The notes below each table, {title: [(number, note)]}. Tables without notes are left out."""
  table, each = one.table, one.each()
  runs = {(row.name, run.folder): (row.name, run) for row, _, cell in each for run in cell.evaluations}
  measured = [(column.head, MEASURES[column.measure]) for column in table.columns]
  scored = [f"{head} {measure.label}: {measure.style}" for head, measure in measured]
  scored += [f"{row.name}: {MEASURES[row.measure].style}" for row in table.rows if row.measure]
  styles = dict.fromkeys(note.partition(" ")[2] if len(table.columns) > 3 else note for note in scored)
  tests = sorted({f"{row.name} against {row.against}" for row, _, cell in each if cell.p is not None})
  kinds = (
    "two-sided; by question a permutation test, for an average Wilcoxon's signed ranks over the sets; in brackets as "
    "Holm adjusts it for all tests of the table"
  )
  lacks = [(row, column) for row, column, cell in each if cell.command]
  needed = [run for row, _ in lacks for named in (row.run, row.versus) if named for run in (named.reads, named) if run]
  trained = dict.fromkeys(command for run in needed if (command := commands_of.training(paper, run)))
  made = dict.fromkeys([*(run.made for run in needed), *(column.made for _, column in lacks)])
  empty = [f"{row.name}: {row.why_not}" for row in table.rows if row.why_not]
  lacking = dict.fromkeys(f"{row.name}, {column.head}: {cell.why_not}" for row, column, cell in each if cell.why_not)
  printed = " ".join([*made, *trained, *_numbers(one)])
  found = {
    "How ours are scored": list(styles) if runs else [],
    "Our runs": [f"{name}: {described(run)}" for name, run in runs.values()],
    "What their corpora hold": [
      f"{name}: {corpus_audit.said(run.audit)}; in {run.folder}" for name, run in runs.values() if run.audit is not None
    ],
    "Paired tests": [f"{test} ({kinds})" for test in tests],
    "Make first": [command for command in made if command],
    "Train first": list(trained),
    "Commands that fill a cell": list(_numbers(one)),
    "Folders in the commands": [f"{name}: {what}" for name, what in FOLDERS.items() if name in printed],
    "Rows and cells without a run": [*empty, *lacking],
  }
  return {title: list(enumerate(notes, 1)) for title, notes in found.items() if notes}


_PASSAGES = dict(own_passages="the questions' own left out", cut_middle="cut in the middle where they are too long")


def described(one: Evaluation) -> str:
  """The settings of a score in one line: questions, model, retriever with its corpus, lengths, decoding, judge."""
  facts, settings = one.facts, one.metrics["settings"]
  retrieval = settings.get("retrieval")
  lengths = [facts.get("max_new_tokens"), facts.get("context")]
  parts = {
    "questions": f"{one.metrics['n']} of {settings['data']}",
    "failed": one.metrics.get("failed"),
    "model": facts["model"] or facts.get("shape") or "not known here",
    "checkpoint": settings.get("checkpoint"),
    "chosen by": settings.get("chosen_by"),
    "evidence of": _extraction(facts.get("reads")),
    "retriever": _said(retrieval)
    if retrieval
    else "not known"
    if facts.get("system")
    else "none (given passages, or none)",
    "lengths": None if None in lengths else f"{lengths[0]} new tokens a turn, {lengths[1]} in all",
    "passages": ", ".join(words for name, words in _PASSAGES.items() if settings.get(name) == (name == "cut_middle")),
    "decoding": _said(settings["sampling"]) if settings.get("sampling") else None,
    "judges": _said(settings["judges"]) if settings.get("judges") else "none",
    "verdicts on answers by": _said(facts["verdicts"]) if facts.get("verdicts") else None,
    "steps judged by": _said(facts.get("steps_judged_by")) if facts.get("steps_judged_by") else None,
    "labels": _said(settings["labels"]) if settings.get("labels") else None,
    "system": facts.get("system"),
    "noise": facts.get("noise") or None,
    "switches unlike the preset's:": _said(_changed(settings)),
  }
  return "; ".join(f"{name} {value}" for name, value in parts.items() if value) + f"; in {one.folder}"


def _extraction(facts: Mapping[str, Any] | None) -> str | None:
  """What extracted the evidence that was read."""
  names = ("recipe", "preset", "model", "checkpoint", "chosen_by", "noise")
  return None if facts is None else _said({name: facts.get(name) or None for name in names})


def _changed(settings: Mapping[str, Any]) -> dict[str, Any]:
  """The recipe's switches that differ from those of its preset."""
  if settings["recipe"] not in recipes.RECIPES:
    return {}
  usual = jsonl.plain(dict(recipes.get(settings["recipe"], settings.get("preset")).switches))
  return {name: value for name, value in settings.get("switches", {}).items() if usual.get(name, value) != value}


def _said(value: Any) -> str:
  if isinstance(value, Mapping):
    known = {name: item for name, item in value.items() if item not in (None, "")}
    if "checksum" in known:
      known["checksum"] = str(known["checksum"])[:12]  # enough to tell two corpora apart
    return ", ".join(f"{name} {_said(item)}".strip() for name, item in known.items())
  return str(value)


def _pipe(text: str) -> str:
  return " ".join(html.escape(text, quote=False).replace("|", "\\|").split())


def _code(text: str) -> str:
  line = " ".join(text.split())
  return f"`{line}`" if "`" not in line else html.escape(line, quote=False)


_TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "→": r"$\rightarrow$"}
_TEX |= {sign: f"\\{sign}" for sign in "&%$#_{}"} | {"<": "$<$", ">": "$>$", "–": "--", "†": r"$\dagger$"}


def _tex(text: str) -> str:
  return "".join(_TEX.get(sign, sign) for sign in text)
