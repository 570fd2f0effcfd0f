"""What a folder holds, and which commands may write to it."""

import re

import pytest
from console import ragrl

from ragrl_jax.evaluation import answer_files
from ragrl_jax.retrieval import build
from ragrl_jax.store import folders, metrics


def made(folder, mark):
  (folder / mark).parent.mkdir(parents=True, exist_ok=True)
  (folder / mark).write_text("")
  return folder


@pytest.mark.parametrize("kind, mark", [(kind, mark) for kind, marks in folders.MARKS.items() for mark in marks])
def test_a_folder_takes_only_results_of_its_kind(tmp_path, kind, mark):
  made(tmp_path, mark)
  folders.refuse_others(tmp_path, kind)
  folders.refuse_others(tmp_path / "below", folders.RUN)
  others = [other for other in folders.MARKS if other != kind]
  with pytest.raises(ValueError, match=re.escape(f"--workdir={tmp_path}: this folder holds {kind} ({mark})")):
    folders.refuse_others(tmp_path, *others, flag="--workdir")


def test_what_is_none_of_these_is_left_to_the_command(tmp_path):
  folders.refuse_others(tmp_path / "new")
  for name in ("seed_0/metrics.jsonl", "index/index.json", "config.json", "model.safetensors.index.json", "run.lock"):
    made(tmp_path, name)  # runs and an index in a common folder, and a model
  folders.refuse_others(tmp_path)


def test_the_marks_are_the_names_that_are_written():
  assert metrics.FILE in folders.MARKS[folders.RUN]
  assert answer_files.SETTINGS in folders.MARKS[folders.EVALUATION]
  assert folders.MARKS[folders.SCORES] == (answer_files.PREDICTIONS, answer_files.METRICS)
  assert folders.MARKS[folders.INDEX] == (build.INDEX, build.REQUEST)


def test_evaluate_refuses_a_folder_before_it_looks_for_the_model(tmp_path):
  made(tmp_path / "run", "metrics.jsonl")
  command = ["evaluate", "--config=search_r1:smoke"]
  words = [f"--checkpoint={tmp_path}/none", "--data=none.jsonl", f"--out={tmp_path}/run"]
  told = ragrl(*command, *words)
  assert told.returncode == 2 and "this folder holds a run (metrics.jsonl)" in told.stderr, told.stderr
