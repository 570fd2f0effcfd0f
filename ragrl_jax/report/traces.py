"""Prints one episode in a terminal: the text of model and environment, the passages found, the reward."""

import os
import re
import sys
import textwrap
from collections.abc import Mapping
from typing import Any, TextIO

from ragrl_jax import structs
from ragrl_jax.core.metrics import searches
from ragrl_jax.core.text.forms import safe
from ragrl_jax.store import episodes

_STYLES = {"bold": "1", "dim": "2", "model": "36", "environment": "33", "good": "32", "bad": "31"}
_MARKS = {
  searches.NEW_GOLD: "a new gold passage",
  searches.NO_GOLD: "no new gold passage",
  searches.REPEAT: "a repeated query",
}
_TAG = re.compile(r"</?[A-Za-z_][\w.|:-]*>")


def trace(row: Mapping[str, Any], *, color: bool = False, width: int = 100) -> str:
  """An episode's row (made by `store.episodes.row`) as text.

  All text of model and environment is shown unchanged, with tags, control tokens and retrieved passages. Only control
  characters are escaped, so that text from a corpus cannot control the terminal.

  Args:
    color: mark owners by ANSI colours, in addition to the words in the margin.
  """
  paint = lambda style, text: f"\033[{_STYLES[style]}m{text}\033[0m" if color else text
  golds = set(row.get("gold_ids") or ())
  verdicts = iter(searches.verdicts(*searches.in_row(row)))
  golds_line = [paint("dim", "gold: " + safe(" / ".join(row["golds"])))] if row["golds"] else []
  lines = [paint("bold", safe(row["question"])), *golds_line, ""]
  for number, segment in enumerate(row["segments"]):
    model = segment["owner"] == structs.MODEL
    owner = "model" if model else "environment"
    name = "prompt" if number == 0 else owner
    if segment.get("found") is not None:
      verdict = next(verdicts)
      found = ", ".join(_named(passage, golds) for passage in segment["found"]) or "nothing"
      lines.append(_margin("found", paint("dim", found + (f" ({_MARKS[verdict]})" if verdict in _MARKS else ""))))
    for part in _wrapped("".join(episodes.parts(segment)), width - 14):
      if number and color:  # tags are bold; the owner's colour continues after them
        part = _TAG.sub(lambda tag: f"\033[{_STYLES['bold']}m{tag[0]}\033[22m", part)
      lines.append(_margin(name, paint(owner, part) if number else paint("dim", part)))
      name = ""
  lines += ["", _ending(row, paint)]
  return "\n".join(lines)


def show(row: Mapping[str, Any], file: TextIO | None = None) -> None:
  """Prints the trace to `file` (stdout if None), in colour if it is a terminal and NO_COLOR is not set."""
  file = file if file is not None else sys.stdout
  color = file.isatty() and "NO_COLOR" not in os.environ
  width = os.get_terminal_size(file.fileno()).columns if file.isatty() else 100
  print(trace(row, color=color, width=min(max(width, 40), 120)), file=file)


def _ending(row: Mapping[str, Any], paint) -> str:
  if not row["terms"] and not row["failure"]:  # a question that was only asked
    return _margin("ended by", safe(row["ended"]) or "nothing")
  parts = [f"{name} {_number(value)} × {row['weights'].get(name, 0):g}" for name, value in row["terms"].items()]
  right = row["outcome"] is not None and row["outcome"] > 0
  verdict = paint("good", "right") if right else paint("bad", "wrong" if row["outcome"] is not None else "not scored")
  failure = f" ({safe(row['failure'])})" if row["failure"] else ""
  return _margin(
    "reward",
    f"{_number(row['reward'])} = {' + '.join(parts) or '–'}; {verdict}; ended by "
    f"{safe(row['ended']) or 'nothing'}{failure}",
  )


def _number(value: float | None) -> str:
  return "none" if value is None else f"{value:.3g}"


def _named(passage: Mapping[str, Any], golds: set[str]) -> str:
  return safe(passage["title"] or passage["id"]) + ("*" if passage["id"] in golds else "")


def _margin(name: str, text: str) -> str:
  return f"{name:>11} │ {text}"


def _wrapped(text: str, width: int) -> list[str]:
  lines = []
  for line in text.strip("\n").split("\n"):
    lines += textwrap.wrap(safe(line), width, drop_whitespace=False, replace_whitespace=False) or [""]
  return lines
