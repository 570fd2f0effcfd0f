"""Prints the events of `ask_checkpoint` in a terminal."""

import os
import re
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from ragrl_jax.core.text.forms import safe

STYLES = {"model": "36", "search": "33", "found": "2", "good": "32", "bad": "31", "bold": "1"}
SHOWN = 160  # characters of a passage
VERDICTS = {None: "no verdict", True: "follows", False: "does not follow"}
QUOTES = {"found": "✓", "near": "≈", "missing": "✗"}


class LiveText:
  """Prints the events of one answer to a file, or to stdout. Control characters of models and corpora are removed."""

  def __init__(self, file: TextIO | None = None):
    self._file = sys.stdout if file is None else file
    self._color = self._file.isatty() and "NO_COLOR" not in os.environ
    columns = os.get_terminal_size(self._file.fileno()).columns if self._file.isatty() else 100
    self._room = min(max(columns, 40), 120) - 14
    self._column, self._word, self._open = 0, "", ""

  def tell(self, event: Mapping[str, Any]) -> None:
    """Prints an event."""
    kind = event["event"]
    if kind == "said":
      self._text(event["text"])
      return
    self._end()
    if kind == "searching":
      self.line("search", event["query"], "search")
    elif kind == "found":
      self._passages(event["passages"])
    elif kind == "notice":
      self.line("notice", event["text"].strip(), "search")
    elif kind == "judging":
      self.line("judge", f"reads {event['pairs']} step{'s' * (event['pairs'] != 1)}", "found")
    elif kind == "answer":
      self._answer(event)

  # ---- the model's words, as they come -------------------------------------------------------------------------------

  def _text(self, text: str) -> None:
    if not self._open:
      self._write(f"{'model':>11} │ ")
      self._open, self._column = "model", 0
    for part in re.findall(r"\n|[^\S\n]+|\S+", text):
      if part == "\n":
        self._flush()
        self._break()
      elif part.isspace():
        self._flush()
        if self._column:
          self._put(part)
      else:
        self._word += part
        if len(self._word) > self._room:
          self._flush()
    self._file.flush()

  def _flush(self) -> None:
    word, self._word = safe(self._word), ""
    if self._column and self._column + len(word) > self._room:
      self._break()
    for at in range(0, len(word), self._room):
      self._put(word[at : at + self._room])

  def _put(self, text: str) -> None:
    self._write(self._paint("model", safe(text)))
    self._column += len(text)

  def _break(self) -> None:
    self._write(f"\n{'':>11} │ ")
    self._column = 0

  def _end(self) -> None:
    if self._open:
      self._flush()
      self._write("\n")
      self._open = ""

  # ---- everything else -----------------------------------------------------------------------------------------------

  def _passages(self, passages) -> None:
    if not passages:
      self.line("found", "nothing", "found")
    for number, passage in enumerate(passages, start=1):
      text = " ".join(passage["text"].split())
      text = text if len(text) <= SHOWN else text[:SHOWN] + " …"
      self.line("found" if number == 1 else "", f"{number}  {passage['title'] or passage['id']}: {text}", "found")

  def _answer(self, event: Mapping[str, Any]) -> None:
    segments = (segment for segment in event["trace"]["segments"] if segment["owner"] == "model")
    for text, kind, where in (run for segment in segments for run in segment["runs"] if len(run) == 3):
      if kind == "cite":
        self.line("cites", f"{text}: {where}")
      elif kind in QUOTES:
        self.line("quotes", f"{QUOTES[kind]} “{text}” {where}", "bad" if kind == "missing" else "good")
    for step in event["trace"]["judged"]:
      verdict = None if step["verdict"] is None else step["verdict"] >= 0.5
      tone = "good" if verdict else "bad" if verdict is not None else "found"
      self.line("judged", f"{VERDICTS[verdict]} · {step['name']}: {step['claim']}", tone)
    if event["no_verdict"]:
      self.line("no verdict", event["no_verdict"], "bad")
    if event["failure"]:
      self.line("failed", event["failure"], "bad")
    self.line("answer", "none" if event["answer"] is None else event["answer"], "bold")
    outcome = event["outcome"]
    right = "" if outcome is None else "; right" if outcome > 0 else "; wrong"
    steps = event["trace"]["judged"]
    unread = sum(step["verdict"] is None for step in steps)
    unread = f"; no verdict on {unread} of {len(steps)} steps" if unread else ""
    count = lambda number, word: f"{number} {word}{('es' if word.endswith('ch') else 's') * (number != 1)}"
    words = [count(event["searches"], "search"), count(event["tokens"], "token"), f"{event['seconds']:.1f} s"]
    self.line("", f"{', '.join(words)}; ended by {event['ended'] or 'nothing'}{right}{unread}", "found")

  def line(self, name: str, text: str, style: str = "") -> None:
    """Prints a line of text after its name."""
    line = safe(" ".join(text.split()))
    self._write(f"{name:>11} │ {self._paint(style, line) if style else line}\n")
    self._file.flush()

  def _paint(self, style: str, text: str) -> str:
    return f"\033[{STYLES[style]}m{text}\033[0m" if self._color and text else text

  def _write(self, text: str) -> None:
    self._file.write(text)
