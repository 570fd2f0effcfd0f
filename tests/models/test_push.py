"""ragrl push as a user calls it: the folder, and the upload to a stand-in for the hub."""

import json
import sys

import hub
import huggingface_hub
import pytest
import tiny_world
from huggingface_hub import constants

from ragrl_jax.cli import commands, push_hf
from ragrl_jax.jobs import checkpoints, evaluate, train
from ragrl_jax.models import weights


def push(monkeypatch, capsys, *words):
  """(exit status, stdout, stderr)."""
  monkeypatch.setattr(sys, "argv", ["push", *map(str, words)])
  try:
    status = commands.guarded(push_hf.main) or 0
  except SystemExit as ended:
    status = ended.code
  return status, *capsys.readouterr()


def online(monkeypatch, token):
  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
  monkeypatch.setattr(huggingface_hub, "get_token", lambda: token)


def test_what_is_missing_for_an_upload_is_said_first(tmp_path, monkeypatch, capsys):
  wants = ["--checkpoint", tmp_path / "none", "--out", tmp_path / "out", "--to", "me/policy"]
  online(monkeypatch, None)
  assert push(monkeypatch, capsys, *wants)[2].startswith("error: --to=me/policy needs --license")
  licensed = [*wants, "--license", "mit"]
  status, _, said = push(monkeypatch, capsys, *licensed)
  assert status == 2 and "there is no token of the hub: `hf auth login`, or set HF_TOKEN" in said
  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
  assert "HF_HUB_OFFLINE is set" in push(monkeypatch, capsys, *licensed)[2]
  assert "name a repository of the hub" in push(monkeypatch, capsys, *licensed[:-4], "--to", "policy")[2]
  (tmp_path / "out").mkdir()
  (tmp_path / "out" / "secret").write_text("")
  assert "name a new folder" in push(monkeypatch, capsys, *wants)[2]
  unscored = ["--checkpoint", tmp_path, "--out", tmp_path / "new", "--results", tmp_path]
  assert "it has no metrics.json" in push(monkeypatch, capsys, *unscored)[2]


def test_a_folder_is_uploaded_and_refusals_are_one_line(tmp_path, monkeypatch):
  (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# policy\n")
  (tmp_path / "model.safetensors").write_bytes(bytes(range(256)))
  online(monkeypatch, "right")
  with hub.Hub() as made:
    how = dict(private=True, message="Step 2 of run", endpoint=made.address)
    assert push_hf.upload(tmp_path, "me/policy", token="right", **how).startswith(made.address)
    files = {name: (tmp_path / name).read_bytes() for name in ("README.md", "model.safetensors")}
    assert made.files == files | {"the message": b"Step 2 of run"}
    (asked,) = made.made
    assert asked["name"] == "policy" and asked["organization"] == "me"
    assert asked.get("private") or asked.get("visibility") == "private"
    with pytest.raises(ValueError, match=r"--to=me/policy: the upload failed \(.*401.*\). .* is complete: `hf upload"):
      push_hf.upload(tmp_path, "me/policy", token="wrong", **how)
  with pytest.raises(ValueError, match="--to=me/policy: the upload failed"):
    push_hf.upload(tmp_path, "me/policy", token="right", **how)  # nobody listens there any more


@pytest.mark.long  # trains, evaluates and exports
def test_a_trained_run_is_scored_and_pushed(world, tmp_path, monkeypatch, capsys):
  config = tiny_world.config(world)
  config.steps = 2
  run = tmp_path / "run"
  list(train.train(config, run, evaluate=evaluate.evaluator(config, workdir=run)))
  evaluate.evaluate(checkpoints.config_of(run), run, config.data.evaluate, tmp_path / "last")

  wants = ["--checkpoint", run, "--out", tmp_path / "out", "--dtype", "float32", "--results", tmp_path / "last"]
  status, out, said = push(monkeypatch, capsys, *wants)
  assert status == 0, said
  assert "of step 2. Nothing was uploaded" in out and "README.md" in out and "model.safetensors" in out
  weights.load_pretrained(tmp_path / "out")
  card = (tmp_path / "out" / "README.md").read_text()
  scored = json.loads((tmp_path / "last" / "metrics.json").read_text())
  assert f"| Exact match | {scored['em']:.3f} " in card and "### held\\_out.jsonl" in card
  assert "### Held-out questions of the run" in card and "Before training" in card
  assert "| Steps | 2 of 2 |" in card and "train.jsonl | 16 |" in card and str(tmp_path) not in card

  other = tmp_path / "other"
  other.mkdir()
  (other / "metrics.json").write_text(json.dumps(scored | dict(settings=scored["settings"] | dict(weights="abc"))))
  wants[3:4], wants[-1] = [tmp_path / "again"], other
  status, _, said = push(monkeypatch, capsys, *wants)
  assert status == 2 and "scores other weights (abc) than step 2" in said
  assert not (tmp_path / "again" / "README.md").exists()
