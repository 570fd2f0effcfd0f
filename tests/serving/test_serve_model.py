import os
import pathlib
import signal
import socket
import subprocess
import sys

import httpx
import pytest
import small_engine as kit
from console import ragrl
from flax import nnx
from patience import until
from small_server import drawn

from ragrl_jax import config as config_lib, settings
from ragrl_jax.cli import configs
from ragrl_jax.models import weights
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.store import changes

ROOT = pathlib.Path(__file__).parents[2]
SIZES = [f"--config.rollout.{name}={kit.SIZES[name]}" for name in "lanes rows context chunk prefill page".split()]


def answers(client):
  try:
    return client.get("/health").status_code in (200, 401)
  except httpx.ConnectError:
    return False


@pytest.mark.long  # starts a process that compiles an engine
def test_a_folder_is_served_and_read_again(tmp_path):
  weights.save_pretrained(kit.model(), kit.CONFIG, tmp_path / "model")
  with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
  command = [sys.executable, "-m", "ragrl_jax", "serve-model", f"--checkpoint={tmp_path}/model", f"--port={port}"]
  command += ["--config.prompting.tokenizer=bytes", "--key_variable=KEY", *SIZES]
  environment = os.environ | dict(PYTHONPATH=str(ROOT), KEY="sesame", JAX_PLATFORMS="cpu")
  server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
  try:
    line = server.stdout.readline()
    assert line == f"http://127.0.0.1:{port}/v1 serves model, version 0, context 96\n", line + server.stderr.read()
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
      until(lambda: answers(client))
      client.headers["authorization"] = "Bearer sesame"
      asked = dict(model="model", prompt="Who?", max_tokens=30, temperature=0, return_token_ids=True)
      ask = lambda: client.post("/v1/completions", json=asked).json()["choices"][0]["token_ids"]
      # None of these greedy tokens is one of the six rows without a token, which this engine here would also draw.
      assert ask() == drawn(kit.engine(), kit.TOKENIZER.encode("Who?"), budget=30, temperature=0.0)[0]
      before = ask()
      weights.save_pretrained(kit.model(1), kit.CONFIG, tmp_path / "model")
      assert client.post("/v1/weights", json={}).json() == dict(object="weights", version=1)
      after = ask()
      assert after != before
      refused = client.post("/v1/weights", json=dict(step=4))
      assert refused.status_code == 400 and "has no steps" in refused.json()["error"]["message"]
      other = type(kit.CONFIG)(**vars(kit.CONFIG) | dict(d_ff=64))
      weights.save_pretrained(Decoder(other, rngs=nnx.Rngs(0)), other, tmp_path / "model")
      refused = client.post("/v1/weights", json={})
      assert refused.status_code == 400 and "other shapes" in refused.json()["error"]["message"] and ask() == after
    server.send_signal(signal.SIGTERM)
    assert server.wait(100) in (0, -signal.SIGTERM)
  finally:
    server.kill()
    server.communicate()


def test_a_port_that_is_taken_is_refused_before_anything_is_read(tmp_path):
  with socket.create_server(("127.0.0.1", 0)) as other:
    port = other.getsockname()[1]
    for command, other_flags in (("serve-model", "--host or --port"), ("ask --page --config=small:smoke", "--port")):
      told = ragrl(*command.split(), f"--checkpoint={tmp_path}", f"--port={port}")
      says = f"error: 127.0.0.1:{port}: Address already in use: choose another {other_flags}.\n"
      assert (told.returncode, told.stderr) == (2, says)


def test_a_run_is_found_by_its_folder(tmp_path):
  assert config_lib.run_of(tmp_path) is None and configs.get_config(f"serve:{tmp_path}").rollout.context == 4096
  argv = ["ragrl serve-model", "--checkpoint", str(tmp_path)]
  assert configs.with_config(argv, "serve")[1].endswith(f"cli/configs.py:serve:{tmp_path}")
  assert configs.with_config([*argv, "--config=arena"], "serve") == [*argv, "--config=arena"]
  run = tmp_path / "run"
  (run / "checkpoints" / "3").mkdir(parents=True)
  changes.write(run, settings.Settings(), "rl")
  for folder in (run, run / "checkpoints", run / "checkpoints" / "3"):
    assert config_lib.run_of(folder) == run
