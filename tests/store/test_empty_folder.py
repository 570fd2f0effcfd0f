import shutil
import subprocess
import sys

import pytest

from ragrl_jax.store import folders


def test_a_folder_with_other_files_is_refused(tmp_path):
  (tmp_path / "thesis").mkdir()
  (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
  with pytest.raises(ValueError, match="was not written by this command.*Nothing was touched: name a new folder"):
    folders.empty(tmp_path)
  assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work"
  assert [path.name for path in tmp_path.iterdir()] == ["thesis"]


def made(path):
  """A folder with the results of a command that has ended."""
  (folders.empty(path) / "checkpoints").mkdir()
  (path / "checkpoints" / "1").write_text("weights")
  (path / "metrics.jsonl").write_text("{}")
  folders.keep(path)
  return path


def test_a_folder_made_by_the_same_program_is_emptied(tmp_path):
  path = made(tmp_path / "out" / "run")
  assert folders.empty(path) == path
  assert [left.name for left in path.iterdir()] == [folders.MARKER]


def test_later_files_copies_and_links_are_kept(tmp_path):
  added, changed, whole = made(tmp_path / "added"), made(tmp_path / "changed"), made(tmp_path / "whole")
  (added / "checkpoints" / "notes.txt").write_text("mine")
  (changed / "metrics.jsonl").write_text("{} mine")
  shutil.copytree(whole, tmp_path / "copy")  # with the marker and the times, as `cp -a` does
  (tmp_path / "link").symlink_to(whole)
  for name, said in {
    "added": "checkpoints/notes.txt .* was not written",
    "changed": "metrics.jsonl .* was changed since",
    "copy": "not written by this command",
    "link": "is a symbolic link",
  }.items():
    with pytest.raises(ValueError, match=said):
      folders.empty(tmp_path / name)
    assert (tmp_path / name / "checkpoints" / "1").read_text() == "weights"
  assert (added / "checkpoints" / "notes.txt").read_text() == "mine"


def test_a_link_to_somebodys_folder_is_not_followed(tmp_path):
  (tmp_path / "thesis").mkdir()
  (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
  path = made(tmp_path / "run")
  (path / "data").symlink_to(tmp_path / "thesis")
  folders.keep(path)  # made while the command ran
  folders.empty(path)
  assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work"


def test_a_command_that_fails_lists_its_files(tmp_path):
  lines = ("from ragrl_jax.store import folders", f"p = folders.empty(pathlib.Path({str(tmp_path / 'run')!r}))")
  program = "; ".join(["import pathlib", *lines, "(p / 'a').write_text('x')", "1 / 0"])
  assert b"ZeroDivisionError" in subprocess.run([sys.executable, "-c", program], capture_output=True).stderr
  assert (tmp_path / "run" / "a").exists()
  assert [left.name for left in folders.empty(tmp_path / "run").iterdir()] == [folders.MARKER]


def test_an_empty_folder_can_be_used_and_a_file_cannot(tmp_path):
  (tmp_path / "empty").mkdir()
  assert (folders.empty(tmp_path / "empty") / folders.MARKER).is_file()
  (tmp_path / "file").write_text("text")
  with pytest.raises(ValueError, match="is not a folder"):
    folders.empty(tmp_path / "file")
