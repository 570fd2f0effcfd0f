"""No command writes over the questions that it reads."""

import pytest
from console import ragrl
from refusals import refused

from ragrl_jax.data import readers, writers
from ragrl_jax.structs import Example

ASKED = [Example(f"q{number}", "Where?", ("here",)) for number in range(4)]


def test_a_file_that_is_read_or_named_twice_is_refused(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for name in ("a.jsonl", "b.jsonl"):
    writers.write_examples(name, ASKED)
  (tmp_path / "link.jsonl").symlink_to("a.jsonl")
  for data in ("a.jsonl", "hf:owner/name//train,b.jsonl,./a.jsonl", "[ab].jsonl", str(tmp_path), "link.jsonl"):
    says = r"--out=.*a\.jsonl: this file is read, too, .*: name another one"
    refused(says, writers.refuse_inputs, ["new.jsonl", tmp_path / "a.jsonl"], readers.named(data))
  says = r"--run=\./c\.jsonl: this file is named twice"
  refused(says, writers.refuse_inputs, ["c.jsonl", "./c.jsonl"], [], flag="--run")
  for out, says in ((".", "is a folder"), ("c.CSV", "name it .*jsonl"), ("c.parquet", "JSON lines are written")):
    refused(f"--out={out}: .*{says}", writers.refuse_inputs, [out], [])
  writers.refuse_inputs(["c.jsonl", "d.jsonl"], readers.named("a.jsonl,b.jsonl"))


ENDPOINTS = [f"--{who}_{what}=x" for who in ("reasoner", "inserter") for what in ("url", "model")]


@pytest.mark.parametrize("command, data, out, more", [
  ("split", "q.jsonl", "q.jsonl", ["--out=other.jsonl"]), ("split", "q.jsonl", "new.jsonl", ["--out=new.jsonl"]),
  ("make-arena-sft", "q.jsonl", "q.jsonl", []), ("demonstrate", "q.jsonl", "q.jsonl", ["--config=arena"]),
  ("make-lear-generator", "q.jsonl", "q.jsonl", []), ("retrieve", "q.jsonl", "q.jsonl", ["--index=none"]),
  ("make-lear-generator", "q.jsonl", "predictions.jsonl", ["--predictions=predictions.jsonl"]),
  ("make-rejection-sft", "q.jsonl", "q.jsonl", ["--results=."]),
  ("make-care-sft", "q.jsonl", "q.jsonl", ["--answers=answers", *ENDPOINTS]),
  ("make-lear-sft", "answerable.jsonl.gz", ".", []),
])  # fmt: skip
def test_the_commands_keep_their_inputs(tmp_path, command, data, out, more):
  for name in ("q.jsonl", "predictions.jsonl", "answerable.jsonl.gz"):
    writers.write_examples(tmp_path / name, ASKED)
  before = {path: path.read_bytes() for path in tmp_path.iterdir()}
  told = ragrl(command, f"--data={data}", f"--out={out}", *more, cwd=tmp_path)
  assert told.returncode == 2 and "so it would be overwritten: name another one" in told.stderr, told.stderr
  assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
