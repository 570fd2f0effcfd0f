import decoders
import pytest
import tiny_world

from ragrl_jax.jobs import evaluate, train
from ragrl_jax.models import weights
from ragrl_jax.run.prepared import prepare

SHAPE = dict(
  family="qwen3_5_text", num_layers=2, attend_every=2, rotary_dim=4, delta_key_heads=1, delta_value_heads=2,
  delta_key_dim=16, delta_value_dim=16, delta_conv=4,
)  # fmt: skip


def config_of(world):
  config = tiny_world.config(world)
  config.model.shape.update(SHAPE)
  config.learner.share_prompts, config.steps = True, 2
  return config


@pytest.mark.long  # two runs, an evaluation and their programs
@pytest.mark.parametrize("rank", [0, 2])
def test_a_run_is_resumed_exactly_exported_and_evaluated(world, tmp_path, rank):
  config = config_of(world)
  if rank:
    model, shape = decoders.made(config)[:2]
    weights.save_pretrained(model, shape, tmp_path / "base")
    config.model.path, config.model.lora.rank = str(tmp_path / "base"), rank
    config.model.lora.layers = "q up qkv out"
  whole = tiny_world.resumed(config, tmp_path, stop=1)
  assert all(metrics["mismatch"] < 1e-4 for metrics in whole)  # the engine plays with the trained weights
  if not rank:
    assert weights.load_pretrained(tmp_path / "whole" / "model")[1].traits.hybrid
  config.data.max_examples = 4
  assert evaluate.evaluate(config, tmp_path / "whole", config.data.evaluate, tmp_path / "out")["n"] == 4


@pytest.mark.long  # a run and its programs
def test_it_teaches_itself_and_is_credited_with_what_results_tell(world, tmp_path):
  config = config_of(world)
  config.loss.teacher.update(dict(path="policy", kind="forward", tokens="all", tells="answer"))
  config.advantage.credit = "information"
  for row in train.train(config, tmp_path):
    assert row["taught"] > 0 and row["teacher_kl"] > 0 and row["information_gain"]


def test_what_a_memory_cannot_do_is_refused_before_anything_is_loaded(world):
  config = config_of(world)
  config.mesh.update(dict(data=1, fsdp=1, tensor=1, sequence=2))
  with pytest.raises(ValueError, match="config.mesh.sequence=2 with a qwen3_5_text model.*a row cannot be split"):
    prepare(config)
