import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import pytest

import ragrl_jax
from ragrl_jax.cli import build_index
from ragrl_jax.retrieval import load_index
from ragrl_jax.structs import ToolFailed

ROOT = pathlib.Path(ragrl_jax.__file__).parents[1]


def launch(name, *arguments, **settings):
  command = [sys.executable, "-m", "ragrl_jax", name, *map(str, arguments)]
  return subprocess.Popen(
    command,
    env=os.environ | dict(PYTHONPATH=str(ROOT)),
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    **settings,
  )


@pytest.mark.slow  # starts processes
def test_build_then_serve_then_search(tmp_path):
  corpus, index = tmp_path / "c.jsonl", tmp_path / "index"
  corpus.write_text("".join(json.dumps(dict(id=i, contents=f'"T{i}"\nword{i} fact')) + "\n" for i in range(9)))
  built = launch(
    "index",
    "--corpus",
    corpus,
    "--encoder",
    "hashing",
    "--out",
    index,
    "--encoder_options",
    '{"dim": 64}',
    "--factory",
    "HNSW8",
  )
  said, bars = built.communicate()
  assert built.returncode == 0 and json.loads(said)["encoder"]["dim"] == 64
  assert "corpus: 9 passages" in bars and "encode: 100%" in bars

  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  serving = launch("serve-index", "--index", index, "--port", port, "--max_topk", 5)
  try:
    remote = None
    while remote is None:
      try:
        remote = load_index(f"http://127.0.0.1:{port}", retries=0)
      except ToolFailed:
        assert serving.poll() is None, serving.communicate()
        time.sleep(0.05)
    assert remote.search(["word3 fact"], 4) == load_index(index).search(["word3 fact"], 4)
    with pytest.raises(ToolFailed, match="at most 5"):
      remote.search(["fact"], 6)
  finally:
    serving.terminate()
    serving.communicate()


@pytest.mark.parametrize(
  "given, says",
  [
    (["--chunk_overlap=8"], "--chunk_overlap without --chunk_tokens"),
    (["--chunk_tokenizer=folder"], "--chunk_tokenizer without --chunk_tokens"),
    (["--factory=HNSW8", "--dtype=int8"], "--factory, --dtype with --encoder bm25"),
    (["--options=nprobe=8"], "--options with --encoder bm25"),
  ],
)
def test_flags_that_an_index_would_ignore_are_refused(tmp_path, monkeypatch, capsys, given, says):
  arguments = ["ragrl index", f"--corpus={tmp_path}/c.jsonl", "--encoder=bm25", f"--out={tmp_path}/i"]
  monkeypatch.setattr(sys, "argv", [*arguments, *given])
  with pytest.raises(SystemExit) as ended:
    build_index.main()
  assert ended.value.code == 2 and says in capsys.readouterr().err


@pytest.mark.slow  # starts processes
def test_mistakes_end_with_a_message_and_an_exit_status(tmp_path):
  bad = tmp_path / "c.jsonl"
  bad.write_text('{"id": 1}\n')
  for name, arguments, says in (
    ("index", ("--corpus", bad, "--encoder", "bm25", "--out", tmp_path / "i"), "c.jsonl:1: a row must be"),
    ("serve-index", ("--index", tmp_path / "none"), "no index here"),
  ):
    run = launch(name, *arguments)
    said, errors = run.communicate()
    assert run.returncode == 2 and says in errors and "Traceback" not in errors and said == ""
  assert not (tmp_path / "i").exists()
