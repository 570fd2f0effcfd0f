"""The tables of docs/scale.md, from a few cases and a made-up compilation of one."""

import dataclasses

import pytest
import scale_cases as cases
import scale_estimate as estimate
import scale_held as held
import scale_page as page
import scale_search as search

CASE = ("qwen2.5-7b", "lear", "v5e-64")
ALL = dict(cases.SLICES)
SMALLER = {"v6e-4": estimate.Slice("v6e:2x2", 4)}  # too small for either model


@pytest.fixture
def few(monkeypatch):
  monkeypatch.setattr(cases, "MODELS", ("qwen2.5-7b", "qwen2.5-14b"))
  monkeypatch.setattr(cases, "RUNS", {name: cases.RUNS[name] for name in ("lear", "search_r1")})
  monkeypatch.setattr(cases, "SLICES", SMALLER | {"v5e-64": cases.SLICES["v5e-64"]})
  monkeypatch.setattr(cases, "COMPILED", (CASE,))
  monkeypatch.setattr(held, "BEFORE", {})  # its slices are not among the few


def compiled(row, **changed):
  """The row that results if libtpu reports the computed numbers."""
  report = cases.estimate(row["model"], row["run"], row["slice"], cases.choice_of(row))
  return row | dict(report=report.to_json() | changed, cpu_s=1.0, libtpu="1.2")


def test_a_compiled_case_is_not_compiled_again(few):
  row = cases.missing([], "O1")
  assert (row["model"], row["run"], row["slice"], row["level"]) == (*CASE, "O1")
  assert cases.missing([compiled(row)], "O1") is None


def test_a_plan_that_does_not_fit_is_replaced_by_the_next_best(few):
  row = cases.missing([], "O1")
  other = cases.missing([compiled(row, fits=False)], "O1")
  assert cases.choice_of(other) != cases.choice_of(row)
  ended = cases.missing([row | dict(failed="F1122 Check failed"), compiled(other, fits=False)], "O1")
  assert ended is None  # the limit of tries


def test_the_page(few, tmp_path):
  row = cases.missing([], "O1")
  failed = row | dict(micro_rows=2 * row["micro_rows"], failed="F1122 Check failed")
  page.write([compiled(row), failed], tmp_path)
  text = (tmp_path / "scale.md").read_text(encoding="utf-8")
  _, report = cases.plan(*CASE)
  assert f"{page.seconds(report.step_s)} s*<br>" in text  # the star of compiled plans
  assert "not compiled: F1122 Check failed" in text and "libtpu 1.2 at jax_optimization_level=O1; 1 cases" in text
  assert "| largest temporaries | 1.00 | 1.00 | 1.00 | 1 |" in text
  assert "- v6e-4: qwen2.5-7b (every recipe); qwen2.5-14b (every recipe)" in text.split("What fits on none")[1]
  assert (tmp_path / "scale.png").stat().st_size > 10_000


def test_an_estimate_is_the_plans_own_report(few):
  choice, report = cases.plan(*CASE)
  again = cases.estimate(*CASE, choice)
  assert dataclasses.asdict(again) == dataclasses.asdict(report)


def test_gpus_are_listed_beside_the_slices(few, monkeypatch, tmp_path):
  case = ("qwen2.5-7b", "lear", "8 × H200")
  slices = {name: where for name, where in ALL.items() if name in ("v5e-64", "8 × H200", "16 × H200")}
  monkeypatch.setattr(cases, "SLICES", slices)
  monkeypatch.setattr(cases, "COMPILED", (case,))
  assert cases.missing([], "O1", on_gpus=False) is None
  row = cases.missing([], "O1")
  assert row["level"] == "UNKNOWN"  # JAX's default, as in a run
  told = {key: value for key, value in compiled(row).items() if key != "libtpu"} | {"jax-cuda12-plugin": "3.4"}
  page.write([told], tmp_path)
  text = (tmp_path / "scale.md").read_text(encoding="utf-8")
  assert "| 16 × H200 | `h200:2x8` | 16 | 2 | 128.52 GiB | 2.0 TiB |" in text
  assert "jax-cuda12-plugin 3.4 at jax_optimization_level=UNKNOWN; 1 cases" in text
  line = next(line for line in text.splitlines() if line.startswith("| qwen2.5-7b | h200 |"))
  assert line.split("|")[3].startswith(" 8: ") and " · 16: " in line  # GPUs: tokens a second


def test_every_compiled_case_has_a_plan():
  assert all(model in cases.MODELS and run in cases.RUNS and where in ALL for model, run, where in cases.COMPILED)
  assert {"h100", "h200"} == {ALL[where].topology.split(":")[0] for _, _, where in cases.COMPILED if "H" in where}


@pytest.fixture(scope="module")
def plans():
  return held.reports()


@pytest.mark.parametrize("case", held.BEFORE, ids=" on ".join)
def test_four_times_the_conversations(case, plans):
  before, (wide, narrow) = held.BEFORE[case], (plans[*case, kind] for kind in ("model", "int8"))
  most = narrow.conversation.most  # per replica: the int8 pages that the GPU's kernel can address
  assert wide.conversations > wide.reserved_rows
  assert narrow.conversations > wide.conversations or narrow.conversations == narrow.conversation.replicas * most
  if before is not None:
    assert narrow.conversations > 4 * before


def test_of_equal_steps_the_plan_holds_most_conversations(plans):
  """On v5p-64 every fsdp from 4 to 32 takes equally long for when_to_search; only 32 holds four times as many."""
  case = ("when_to_search", "v5p-64")
  config, found = cases.RUNS[case[0]].config(), plans[*case, "int8"]
  assert found.mesh["fsdp"] == 32
  config.rollout.kv_dtype = "int8"
  less = search.Choice(search.Axes(data=8, fsdp=4), 128, 128, 128, 256, 4)
  less = estimate.estimate(less.into(config), cases.SHAPES[held.MODEL], cases.SLICES[case[1]], drawn=0.5)
  assert less.step_s == pytest.approx(found.step_s, rel=0.01) and less.conversations < 4 * held.BEFORE[case]


def test_what_bounds_a_step(plans):
  report = plans["search_r1", "v5e-64", "model"]
  lines = {tuple(line[:3]): line for line in held.parts(plans)}
  line = lines["search_r1", "v5e-64", "bfloat16"]
  assert line[3] == f"{report.step_s:.1f}" and line[4].endswith("compute") and line[7].endswith("hbm")
  # 5 of 6 passes, at the peak: more than 25 s, whatever the engine does.
  assert float(line[-1]) > 25 and report.step_s < 50


def test_what_was_tried_to_shorten_a_step(plans):
  lines = {line[0]: [float(cell) for cell in line[1:]] for line in held.tried()}
  first = lines["as the recipe is"]
  assert first[0] == pytest.approx(plans[*held.AIM, "model"].step_s, abs=0.06)
  assert all(step == pytest.approx(learner + engine, abs=0.2) for step, learner, engine in lines.values())
  old, reference, both = (lines[name][0] for name in list(held.TRIED)[2:])
  assert first[0] > old == reference > both > 25  # a pass each
