"""A teacher in the plan: its weights stay on the chips, and its programs are those of a run."""

import jax
import pytest

from ragrl_jax import config as config_lib, settings
from ragrl_jax.models import hf
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import mesh as mesh_lib
from ragrl_jax.plan import compiled, memory, workload

SIZES = dict(num_layers=2, num_heads=2, num_kv_heads=2, head_dim=8, d_ff=32, rope_theta=1e4)
POLICY = DecoderConfig.from_shape(32, family="qwen3", d_model=16, tied=True, **SIZES)
TEACHER = DecoderConfig.from_shape(40, family="qwen3", d_model=32, tied=False, **SIZES)


def planned(**how):
  config = config_lib.default_config()
  config.learner.update(dict(micro_rows=4, row_lengths=(16,), logprob_chunk=8))
  config.rollout.update(dict(context=16, prefill=16, max_new_tokens=8, prompts_per_step=4, group_size=2))
  config.loss.teacher.update(how)
  config = settings.of(config)
  mesh = mesh_lib.make(jax.devices(), data=1, fsdp=4, tensor=2, sequence=1)
  model = compiled.abstract_model(config, POLICY, mesh)
  model.room = 0
  only = ("learner: teacher", "learner: accumulate") if how else ("nothing",)
  made = compiled._Compiler(config, mesh, mesh, model, POLICY, workload.load(config), only)
  made.learner()
  return made


@pytest.mark.slow  # compiles the programs of each
@pytest.mark.parametrize("kind", ["jsd", "k1"])
def test_a_teacher_of_a_folder(tmp_path, kind, monkeypatch):
  monkeypatch.setattr(Decoder, "spare", lambda self: 0 + self.room)  # no device is asked for what it has free
  hf.write_json(tmp_path / "config.json", TEACHER.to_hf())
  plain, made = planned(), planned(path=str(tmp_path), kind=kind)
  like = DecoderConfig.from_shape(32, family="qwen3", d_model=32, tied=False, **SIZES)  # the policy's rows
  counted = memory.counted(like, memory.Axes(fsdp=4, tensor=2))
  assert made.resident == plain.resident | {"teacher": 4 * counted.all}
  programs = {program.name: program for program in made.programs}
  assert set(programs) == {"learner: teacher", "learner: accumulate"}
  assert not any(program.error for program in made.programs) and made.needed_flops > plain.needed_flops


@pytest.mark.slow  # compiles its programs
def test_a_policy_that_teaches_itself_needs_no_other_weights():
  made = planned(path="policy", kind="reverse")
  assert made.resident == planned().resident and len(made.programs) == 2
