"""The quickstart's launcher, at sizes too small to learn: its messages, and the files it must not touch."""

import json
import pathlib
import shlex
import subprocess
import sys

import pytest
from console import ragrl

ROOT = pathlib.Path(__file__).parents[1]


def test_it_does_not_empty_a_folder_it_did_not_make(tmp_path):
  (tmp_path / "thesis.tex").write_text("years of work")
  done = ragrl("quickstart", f"--workdir={tmp_path}")
  assert done.returncode != 0 and "thesis.tex" in done.stderr and "Nothing was touched" in done.stderr
  assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.long  # both stages of training
def test_a_run_that_misses_its_target_says_so_and_fails(tmp_path):
  command = [
    sys.executable, "-m", "ragrl_jax", "quickstart", f"--workdir={tmp_path}/run", "--demonstrations=300",
    "--held_out=20", "--sft_config.steps=50", "--config.steps=4", "--config.rollout.prompts_per_step=4",
    "--config.rollout.group_size=2", "--config.optimizer.warmup_steps=1", "--config.log.tensorboard=False",
  ]  # fmt: skip
  how = dict(cwd=ROOT, capture_output=True, text=True, timeout=280)
  done = subprocess.run(command, **how)
  assert done.returncode == 1, done.stderr
  assert "MISSED: held-out EM 0.000 after RL" in done.stdout
  assert "the warm start did not reach one-hop EM 0.97 within 50 steps. Raise --sft_config.steps" in done.stdout
  *_, page, words, command = done.stdout.strip().splitlines()
  assert f"Now open {tmp_path}/run/report.html in a browser" in page and words.startswith("To ask the model")
  asked = subprocess.run(shlex.split(command), **how)
  assert asked.returncode == 0, asked.stderr
  assert any(line.startswith("     answer │ ") for line in asked.stdout.splitlines()), asked.stdout
  assert "about" in done.stderr and "left" in done.stderr  # the progress bar's estimate
  summary = json.loads((tmp_path / "run" / "summary.json").read_text())
  assert summary["warm"]["steps"] == 50 and not summary["warm"]["reached"] and len(summary["warm"]["em"]) == 2
  assert summary["rl"]["steps"] == 4 and len(summary["rl"]["em"]) == 2
  assert summary["machine"]["threads"] >= 1
