"""LoRA from end to end: a supervised run, RL that continues with its adapters, and an evaluation of both."""

import decoders
import pytest
import tiny_world
from flax import nnx
from refusals import refused
from safetensors.numpy import load_file

from ragrl_jax.cli import export_hf
from ragrl_jax.jobs import checkpoints, evaluate, sft, train
from ragrl_jax.models import lora, weights


@pytest.mark.long  # three runs, an evaluation and their programs
def test_supervised_then_rl_then_an_evaluation(world, tmp_path):
  config = tiny_world.config(world, variant="sft")
  model, shape, *_ = decoders.made(config)
  weights.save_pretrained(model, shape, tmp_path / "base")
  base = (tmp_path / "base" / "model.safetensors").read_bytes()

  config.model.path = str(tmp_path / "base")
  config.model.lora.update(dict(rank=4, alpha=8.0))
  config.steps, config.optimizer.learning_rate = 6, 3e-2
  losses = [metrics["loss"] for metrics in sft.sft(config, tmp_path / "warm")]
  # It falls by 0.06 to 0.08 (three seeds), where three steps at 1e-2 gave no more than the difference of two batches.
  assert losses[-1] < losses[0] - 0.03
  _, kept = tiny_world.arrays(tmp_path / "warm")
  assert all("_lora_" in name for name, array in kept.items() if array.ndim > 1)  # nothing of the base is stored
  warm = tmp_path / "warm" / "model"
  assert lora.find_base(warm, "") == config.model.path and not (warm / "config.json").exists()

  config = tiny_world.config(world)
  config.model.path, config.model.lora.path = str(tmp_path / "base"), str(warm)
  config.loss.kl, config.loss.kl_coef, config.steps = "k3", 0.01, 2
  whole = tiny_world.resumed(config, tmp_path, stop=1)
  assert whole[0]["mismatch"] < 1e-4  # the engine plays with the trained adapters
  # The reference is the policy that the run starts from, as with merged weights: two programs' rounding, then a step.
  assert whole[0]["kl"] < 1e-12 < whole[1]["kl"]
  before, after = (load_file(folder / "adapter_model.safetensors") for folder in (warm, tmp_path / "whole" / "model"))
  assert before.keys() == after.keys() and any((before[name] != after[name]).any() for name in after)
  assert (tmp_path / "base" / "model.safetensors").read_bytes() == base

  # The finished folder is evaluated with its own adapters on the base that it names.
  config.data.max_examples, config.model.path, config.model.lora.path = 4, "", ""
  found = evaluate.evaluate(config, tmp_path / "whole", config.data.evaluate, tmp_path / "out")
  config.model.path, config.model.lora.path = str(tmp_path / "base"), str(tmp_path / "whole" / "model")
  model = decoders.made(config)[0]
  assert found["n"] == 4 and found["settings"]["weights"] == checkpoints.fingerprint(nnx.split(model)[1])

  # Another base under the same path is refused everywhere; the base at another place is taken.
  config = tiny_world.config(world)
  config.model.path, config.model.lora.path = str(tmp_path / "base"), str(warm)
  config.loss.kl, config.loss.kl_coef, config.steps = "k3", 0.01, 3
  server = checkpoints.opened(config, tmp_path / "whole" / "checkpoints", playing=False)
  file, step = tmp_path / "base" / "model.safetensors", tmp_path / "whole" / "checkpoints" / "2"
  changed = bytearray(base)
  changed[-1000] ^= 1
  file.write_bytes(changed)
  refused(r"config\.model\.path \(its contents\) was .*--accept_changes", next, train.train(config, tmp_path / "whole"))
  refused("trained on other weights than those in", export_hf.export, step, tmp_path / "exported", dtype="float32")
  for folder in (step, tmp_path / "whole" / "model"):
    refused("trained on other weights than those in", checkpoints.opened, config, folder, playing=False)
  assert checkpoints.reopen(server, step) == 2  # the served base is still the one of the training
  file.write_bytes(base)
  (tmp_path / "base").rename(tmp_path / "moved")
  config.model.path = str(tmp_path / "moved")
  checkpoints.opened(config, step, playing=False)
  assert [metrics["step"] for metrics in train.train(config, tmp_path / "whole")] == [3]
  before = (warm / "adapter_model.safetensors").read_bytes()
  (warm / "adapter_model.safetensors").write_bytes(before[:-1] + bytes([before[-1] ^ 1]))  # of the reference policy
  config.steps = 4
  refused(r"config\.model\.lora\.path \(its contents\)", next, train.train(config, tmp_path / "whole"))
