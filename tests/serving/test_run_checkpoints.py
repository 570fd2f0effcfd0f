import json
import os
import pathlib
import subprocess
import sys

import pytest
import tiny_world

from ragrl_jax.jobs import checkpoints, train

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(world, tmp_path_factory):
  """A run of three steps, with a checkpoint of each."""
  folder = tmp_path_factory.mktemp("run")
  config = tiny_world.config(world)
  config.checkpoint.keep = 3
  assert [metrics["step"] for metrics in train.train(config, folder / "run")] == [1, 2, 3]
  return folder / "run"


@pytest.mark.long  # a run, and two engines
def test_a_newer_checkpoint_of_a_run_is_loaded(run):
  config = checkpoints.config_of(run)
  made = checkpoints.opened(config, run / "checkpoints" / "1", playing=False)
  marks = {made.engine.version: checkpoints.fingerprint(made.engine.weights)}
  for given in (run / "checkpoints" / "2", run / "checkpoints"):
    step = checkpoints.reopen(made, given)
    marks[step] = checkpoints.fingerprint(made.engine.weights)
  assert list(marks) == [1, 2, 3] and len(set(marks.values())) == 3
  again = checkpoints.opened(checkpoints.config_of(run), run / "checkpoints" / "3", playing=False)
  assert checkpoints.fingerprint(again.engine.weights) == marks[3]
  with pytest.raises(FileNotFoundError):
    checkpoints.reopen(made, run / "checkpoints" / "9")


def ask(run, *words, said=None):
  command = [sys.executable, "-m", "ragrl_jax", "ask", f"--checkpoint={run}", *words]
  environment = os.environ | dict(PYTHONPATH=str(ROOT), JAX_PLATFORMS="cpu")
  return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, input=said)


@pytest.mark.long  # a run, and four processes that each compile an engine
def test_a_run_is_asked_on_the_command_line(run, world):
  one = ask(run, "Who is it?")
  assert one.returncode == 0 and any(line.startswith("     answer │ ") for line in one.stdout.splitlines()), one.stderr
  assert "the question is empty" in ask(run, " ").stderr
  held_out = pathlib.Path(tiny_world.config(world).data.evaluate)
  rows = ask(run, f"--data={held_out}", "--samples=3", "--json", f"--against={run}/checkpoints/1")
  found = [json.loads(line) for line in rows.stdout.splitlines()]
  want = [(checkpoint, sample) for checkpoint in (str(run), f"{run}/checkpoints/1") for sample in range(3)]
  assert [(row["checkpoint"], row["sample"]) for row in found] == want
  assert {row["episode"]["question"] for row in found} == {json.loads(held_out.read_text().split("\n")[0])["question"]}
  assert all(row["outcome"] in (0, 1) for row in found)
  talk = ask(run, "--conversation", "--json", said="Who is it?\nAnd where?\n")
  second = [json.loads(line) for line in talk.stdout.splitlines()][1]["episode"]["question"]
  assert second.startswith("Earlier question: Who is it?\nEarlier answer: ") and second.endswith("now: And where?")
  for words, says in (
    (("Who?", f"--data={held_out}"), "give either a question or --data"),
    (("--id=3",), "--id=3: give the file of the question"), (("--samples=0", "Who?"), "--samples"),
    ((f"--data={held_out}", "--id=none"), "has the id 'none'"),
  ):  # fmt: skip
    refused = ask(run, *words, said="")
    assert refused.returncode == 2 and says in refused.stderr and refused.stderr.count("\n") == 1, refused.stderr
