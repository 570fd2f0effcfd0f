import os
import re
import shutil
import subprocess
import sys

import pytest
from console import ragrl
from refusals import refused

from ragrl_jax.data import writers
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
  if kind == folders.EVALUATION:
    made(tmp_path, "metrics.json")  # its scores
  folders.refuse_others(tmp_path, kind)
  folders.refuse_others(tmp_path / "below", folders.RUN)
  others = [other for other in folders.MARKS if other != kind]
  with pytest.raises(ValueError, match=re.escape(f"--workdir={tmp_path}: this folder holds {kind} ({mark})")):
    folders.refuse_others(tmp_path, *others, flag="--workdir")


def test_what_is_none_of_these_is_left_to_the_command(tmp_path, monkeypatch):
  folders.refuse_others(tmp_path / "new")
  for name in ("seed_0/metrics.jsonl", "index/index.json", "config.json", "model.safetensors.index.json", "run.lock"):
    made(tmp_path, name)  # runs and an index in a common folder, and a model
  folders.refuse_others(tmp_path)
  says = "--out=.*: .*/run.lock is a file, and it must be a folder"
  refused(says, folders.refuse_others, tmp_path / "run.lock" / "below")
  refused(says, writers.refuse_inputs, [tmp_path / "run.lock" / "a.jsonl"], [])
  monkeypatch.setattr(os, "access", lambda place, rights: False)
  refused("--workdir=.*cannot write to", folders.refuse_others, tmp_path / "new", flag="--workdir")
  writers.refuse_inputs(["/dev/stdout"], [])


def test_the_marks_are_the_names_that_are_written():
  assert metrics.FILE in folders.MARKS[folders.RUN]
  assert answer_files.SETTINGS in folders.MARKS[folders.EVALUATION]
  assert folders.MARKS[folders.SCORES] == (answer_files.PREDICTIONS, answer_files.METRICS)
  assert folders.MARKS[folders.INDEX] == (build.INDEX, build.REQUEST)


def test_evaluate_refuses_a_folder_before_it_looks_for_the_model(tmp_path):
  made(tmp_path / "run", "metrics.jsonl")
  words = [f"--checkpoint={tmp_path}/none", "--data=none.jsonl", f"--out={tmp_path}/run"]
  told = ragrl("evaluate", "--config=search_r1:smoke", *words)
  assert told.returncode == 2 and "this folder holds a run (metrics.jsonl)" in told.stderr, told.stderr


@pytest.fixture
def thesis(tmp_path):
  """A folder of the user's; its chapter must stay."""
  (tmp_path / "thesis").mkdir()
  (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
  yield tmp_path / "thesis"
  assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work"


def test_a_folder_with_other_files_is_refused(tmp_path, thesis):
  refused("was not written by this command.*Nothing was touched: name a new.*, or remove this", folders.empty, tmp_path)
  assert [path.name for path in tmp_path.iterdir()] == ["thesis"]


def written(path):
  """A folder with the results of a command that has ended."""
  (folders.empty(path) / "checkpoints").mkdir()
  (path / "checkpoints" / "1").write_text("weights")
  (path / "metrics.jsonl").write_text("{}")
  folders.keep(path)
  return path


def test_a_folder_made_by_the_same_program_is_emptied_and_a_new_one_made(tmp_path):
  path = written(tmp_path / "out" / "run")
  assert folders.empty(path) == path
  assert [left.name for left in path.iterdir()] == [folders.MARKER]
  (tmp_path / "empty").mkdir()
  assert (folders.empty(tmp_path / "empty") / folders.MARKER).is_file()


def test_later_files_copies_and_links_are_kept(tmp_path):
  added, changed, whole = written(tmp_path / "added"), written(tmp_path / "changed"), written(tmp_path / "whole")
  (added / "checkpoints" / "notes.txt").write_text("mine")
  (changed / "metrics.jsonl").write_text("{} mine")
  shutil.copytree(whole, tmp_path / "copy")  # with the marker and the times, as `cp -a` does
  (tmp_path / "link").symlink_to(whole)
  (tmp_path / "file").write_text("text")
  refused("is not a folder", folders.empty, tmp_path / "file")
  for name, said in {
    "added": "checkpoints/notes.txt .* was not written", "changed": "metrics.jsonl .* was changed since",
    "copy": "not written by this command", "link": "is a symbolic link",
  }.items():  # fmt: skip
    refused(said, folders.empty, tmp_path / name)
    assert (tmp_path / name / "checkpoints" / "1").read_text() == "weights"
  assert (added / "checkpoints" / "notes.txt").read_text() == "mine"


def test_a_link_to_somebodys_folder_is_not_followed(tmp_path, thesis):
  path = written(tmp_path / "run")
  (path / "data").symlink_to(thesis)
  folders.keep(path)  # made while the command ran
  folders.empty(path)


def test_a_command_that_fails_lists_its_files(tmp_path):
  lines = ("from ragrl_jax.store import folders", f"p = folders.empty(pathlib.Path({str(tmp_path / 'run')!r}))")
  program = "; ".join(["import pathlib", *lines, "(p / 'a').write_text('x')", "1 / 0"])
  assert b"ZeroDivisionError" in subprocess.run([sys.executable, "-c", program], capture_output=True).stderr
  assert (tmp_path / "run" / "a").exists()
  assert [left.name for left in folders.empty(tmp_path / "run").iterdir()] == [folders.MARKER]
