"""A run, its model, data, index and evaluation are moved to another folder together, and used from a third one."""

import pathlib
import shutil

import pytest
import tiny_world

import ragrl_jax
from ragrl_jax.cli import export_hf
from ragrl_jax.evaluation import records
from ragrl_jax.jobs import evaluate, train
from ragrl_jax.report import page
from ragrl_jax.store import metrics


@pytest.mark.usefixtures("rewarding")
def test_what_was_moved_with_its_files_works_from_any_folder(world, tmp_path, monkeypatch):
  home = tmp_path / "home"
  shutil.copytree(world, home / "world")
  monkeypatch.chdir(home)
  config = tiny_world.config(pathlib.Path("world"))
  config.steps, config.checkpoint.keep = 1, 3
  assert config.data.train == "world/train.jsonl"
  list(train.train(config, "out/run"))
  first = evaluate.evaluate(None, "out/run", "world/held_out.jsonl", "out/dev")

  moved = home.rename(tmp_path / "moved")
  (tmp_path / "elsewhere").mkdir()
  monkeypatch.chdir(tmp_path / "elsewhere")
  run, held_out = moved / "out" / "run", str(moved / "world" / "held_out.jsonl")
  for out in (moved / "out" / "dev", tmp_path / "again"):  # continued, and played again
    again = evaluate.evaluate(None, run, held_out, out)
    assert all(again[name] == first[name] for name in ("n", "em", "searches"))
    assert records.read(out).facts["trained"]  # the checkpoint's run is found
  ((answer, episode),) = ragrl_jax.ask(run, ["Who?"])
  assert episode.segments
  assert export_hf.export(run, tmp_path / "exported", dtype="float32").step == 1
  assert page.write_report(run, tmp_path / "page.html")

  config = tiny_world.config(moved / "world")
  config.steps, config.log.price_per_hour = 2, 3.0
  list(train.train(config, run))
  rows = metrics.read_metrics(run)
  assert [row["step"] for row in rows] == [1, 2]
  assert rows[1]["cost/hours"] > rows[0]["cost/hours"] > 0 and rows[1]["cost/devices"] == "8 x cpu"  # both starts'
  assert rows[1]["cost/price"] == pytest.approx(3 * rows[1]["cost/hours"], abs=1e-5)
  assert "<dt>Price</dt>" in page.write_report(run, tmp_path / "page.html").read_text()
