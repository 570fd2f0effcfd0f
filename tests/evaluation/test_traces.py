import io
import re

from ragrl_jax.core.text import forms
from ragrl_jax.report import traces

ROW = {
  "question": "Which river?", "golds": ["Mazur", "the Mazur"], "gold_ids": ["p1"], "reward": 1.2, "outcome": 1,
  "terms": {"answer": 1.0, "format": None}, "weights": {"answer": 1.0, "format": 0.2}, "ended": "answer", "failure": "",
  "segments": [
    {"owner": "environment", "text": "Which river?\n"}, {"owner": "model", "text": "<search>Kel</search>"},
    {"owner": "environment", "text": "\n<information>Doc 1(Title: Mazur) A river.\x1b[2J\r</information>\n",
     "query": "Kel", "found": [{"id": "p1", "title": "Mazur"}, {"id": "p2", "title": ""}]},
    {"owner": "model", "text": "<answer>Mazur " + "and so on " * 30 + "</answer>"},
  ],
}  # fmt: skip


def test_a_trace_shows_who_wrote_what():
  text = traces.trace(ROW, width=80)
  lines = text.splitlines()
  assert "\033" not in text and max(map(len, lines)) <= 80
  assert any(re.fullmatch(r" +model │ <search>Kel</search>", line) for line in lines)
  assert "found │ Mazur*, p2 (a new gold passage)" in text
  assert "environment │ <information>Doc 1(Title: Mazur) A river.\\x1b[2J\\r</information>" in text
  assert "reward │ 1.2 = answer 1 × 1 + format none × 0.2; right; ended by answer" in text
  said = "".join(line.split("│ ", 1)[1] for line in lines if "and so on" in line)
  assert said.count("and so on") == 30  # wrapped, not cut


def test_colours_remove_no_text():
  colored = traces.trace(ROW, color=True, width=80)
  assert "\033[36m" in colored and "\033[33m" in colored
  assert re.sub(r"\033\[\d+m", "", colored) == traces.trace(ROW, width=80)
  assert "\x1b[2J" not in colored  # a passage cannot clear the screen
  file = io.StringIO()  # a file gets none
  traces.show(ROW, file)
  assert "\033" not in file.getvalue() and "Which river?" in file.getvalue()


def test_text_of_other_scripts_is_shown_as_it_is():
  text = "Qui\u00a0? «\u202fLyon\u202f» می\u200cخواهم क्\u200dष 東京\u3000都"
  assert forms.safe(text) == text and forms.safe("a\x1b\u202e\u2028b") == r"a\x1b\u202e\u2028b"


def test_control_tokens_and_the_failure_of_an_episode_are_shown():
  first, *rest = ROW["segments"]
  row = ROW | {"segments": [first | {"control": [(0, 0, "<|im_start|>")]}, *rest]}
  row |= {"reward": None, "outcome": None, "terms": {}, "ended": "failed", "failure": "timed out"}
  said = traces.trace(row)
  assert "prompt │ <|im_start|>Which river?" in said
  assert "reward │ none = –; not scored; ended by failed (timed out)" in said
