"""docs/scale.md's tables, from a few cases and a made-up compilation of one."""

import dataclasses

import pytest
import scale_cases as cases
import scale_page as page

CASE = ("qwen2.5-7b", "lear", "v5e-64")


@pytest.fixture
def few(monkeypatch):
  monkeypatch.setattr(cases, "MODELS", ("qwen2.5-7b", "qwen2.5-14b"))
  monkeypatch.setattr(cases, "RUNS", {name: cases.RUNS[name] for name in ("lear", "search_r1")})
  monkeypatch.setattr(cases, "SLICES", {name: cases.SLICES[name] for name in ("v5e-64", "v6e-64")})
  monkeypatch.setattr(cases, "COMPILED", (CASE,))


def compiled(row, **changed):
  """The row as if libtpu said what the arithmetic says."""
  report = cases.estimate(row["model"], row["run"], row["slice"], cases.choice_of(row))
  return row | dict(report=report.to_json() | changed, cpu_s=1.0, libtpu="1.2")


def test_a_compiled_case_is_not_compiled_again(few):
  row = cases.missing([], "O1")
  assert (row["model"], row["run"], row["slice"], row["level"]) == (*CASE, "O1")
  assert cases.missing([compiled(row)], "O1") is None


def test_what_does_not_fit_is_not_tried_again_but_the_next_best_is(few):
  row = cases.missing([], "O1")
  other = cases.missing([compiled(row, fits=False)], "O1")
  assert cases.choice_of(other) != cases.choice_of(row)
  ended = cases.missing([row | dict(failed="F1122 Check failed"), compiled(other, fits=False)], "O1")
  assert ended is None  # that were tries enough


def test_the_page(few, tmp_path):
  row = cases.missing([], "O1")
  failed = row | dict(micro_rows=2 * row["micro_rows"], failed="F1122 Check failed")
  page.write([compiled(row), failed], tmp_path)
  text = (tmp_path / "scale.md").read_text(encoding="utf-8")
  _, report = cases.plan(*CASE)
  assert f"{page.seconds(report.step_s)} s*<br>" in text  # the star of what is compiled
  assert "not compiled: F1122 Check failed" in text and "libtpu 1.2 at jax_optimization_level=O1; 1 cases" in text
  assert "| largest temporaries | 1.00 | 1.00 | 1.00 | 1 |" in text
  assert "qwen2.5-14b (every recipe)" in text.split("What fits on none")[1].split("\n\n")[1].splitlines()[0]
  assert (tmp_path / "scale.png").stat().st_size > 10_000


def test_an_estimate_is_the_plans_own_report(few):
  choice, report = cases.plan(*CASE)
  again = cases.estimate(*CASE, choice)
  assert dataclasses.asdict(again) == dataclasses.asdict(report)
