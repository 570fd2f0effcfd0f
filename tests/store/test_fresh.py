import pytest

from ragrl_jax.store import fresh


def test_a_folder_with_other_files_is_refused(tmp_path):
  (tmp_path / "thesis").mkdir()
  (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
  with pytest.raises(ValueError, match="did not make.*Nothing was touched: name a new folder"):
    fresh.folder(tmp_path)
  assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work"
  assert [path.name for path in tmp_path.iterdir()] == ["thesis"]


def test_a_folder_made_by_the_same_program_is_emptied(tmp_path):
  path = fresh.folder(tmp_path / "out" / "run")
  (path / "checkpoints").mkdir()
  (path / "metrics.jsonl").write_text("{}")
  assert fresh.folder(path) == path
  assert [left.name for left in path.iterdir()] == [fresh.MARKER]


def test_an_empty_folder_can_be_used_and_a_file_cannot(tmp_path):
  (tmp_path / "empty").mkdir()
  assert (fresh.folder(tmp_path / "empty") / fresh.MARKER).is_file()
  (tmp_path / "file").write_text("text")
  with pytest.raises(ValueError, match="is not a folder"):
    fresh.folder(tmp_path / "file")
