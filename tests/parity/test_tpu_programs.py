"""Programs compiled for TPU slices by libtpu, which needs no TPU: memory and collectives must not grow."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from ragrl_jax import config as config_lib
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.parallel import mesh as mesh_lib
from ragrl_jax.plan import aot, compiled

pytestmark = pytest.mark.parity
# One layer of d 512, V 151,936, 8 rows of 1,024 tokens over 8 chips' fsdp, remat, bf16 over float32 masters.
SMALL = dict(d_model=512, num_heads=4, num_kv_heads=2, head_dim=128, d_ff=1024, rope_theta=1e6)
SMALL |= dict(family="qwen3", num_layers=1, tied=True)
# Measured with libtpu 0.0.42.1: temporaries in bytes per chip, and collectives, multiplied by their loops' counts.
# Of them one all-gather and one all-reduce are the metric `fallen_tokens`, once a program and not a layer.
TEMPORARIES = 208_494_592
COLLECTIVES = {"all-reduce": 16, "all-to-all": 4, "all-gather": 49, "reduce-scatter": 4}


def small():
  config = config_lib.load("configs/search_r1.py", "smoke")
  config.model.update(dict(dtype="bfloat16", remat=True))
  config.model.shape = SMALL
  config.mesh.update(dict(data=1, fsdp=-1))
  config.learner.update(dict(micro_rows=8, row_lengths=(1024,), logprob_chunk=256))
  config.rollout.context = 1024
  return config


def test_a_layer_needs_no_more_than_before():
  report = compiled.check(small(), "v5e:2x4", only=("learner: accumulate",))
  (program,) = report.programs
  assert report.fits and program.error == ""
  assert program.temporaries <= 1.02 * TEMPORARIES
  assert program.collectives == COLLECTIVES


@pytest.mark.parametrize("topology, slices, sizes, inside", [
  ("v5e:2x4", 1, dict(data=1, fsdp=-1), (1, 4, 1, 1)), ("v5e:4x4", 1, dict(data=1, fsdp=-1), (1, 4, 1, 1)),
  ("v5e:8x8", 1, dict(data=4, fsdp=4, tensor=4), (1, 1, 4, 1)), ("v5e:4x4", 2, dict(data=2, fsdp=-1), (1, 4, 1, 1)),
])  # fmt: skip
def test_a_hosts_chips_are_a_block_of_the_mesh(topology, slices, sizes, inside):
  mesh = mesh_lib.make(aot.devices(topology, slices), **sizes)
  for process in {device.process_index for device in mesh.devices.flat}:
    where = [place for place in np.ndindex(mesh.devices.shape) if mesh.devices[place].process_index == process]
    assert tuple(len(set(axis)) for axis in zip(*where)) == inside


def test_a_mesh_in_which_hosts_are_no_blocks_is_refused():
  with pytest.raises(ValueError, match="fill no block"):
    mesh_lib.within_host((3, 1, 1, 5), 4)


def test_the_command_reports_what_does_not_fit(tmp_path):
  shape = DecoderConfig(
    vocab_size=1024, d_model=256, num_layers=1, num_heads=4, num_kv_heads=2, head_dim=64, d_ff=512, rope_theta=1e6
  )
  (tmp_path / "config.json").write_text(json.dumps(shape.to_hf()))
  words = "check --config=configs/search_r1.py:smoke --topology=v5e:2x2 --json --config.model.dtype=bfloat16".split()
  words += ["--config.learner.micro_rows=4", f"--config.model.path={tmp_path}", "--config.rollout.rows=200000"]
  how = dict(capture_output=True, text=True, check=False, env=os.environ | dict(JAX_OPTIMIZATION_LEVEL="O1"))
  done = subprocess.run([sys.executable, "-m", "ragrl_jax", *words], **how)
  assert done.returncode == 1, done.stderr
  report = json.loads(done.stdout)
  assert not report["fits"] and report["needed"] > report["capacity"] and report["hosts"] == 1
  assert {program["name"] for program in report["programs"]} > {"learner: accumulate", "engine: decode"}


def test_drafts_are_verified_by_the_same_program_and_the_cache_stays_in_place(quick):
  """With drafts a step computes five places a lane: no more collectives, and no copy of the cache."""
  config = small()
  config.mesh.update(dict(fsdp=1, tensor=2, data=2))
  config.rollout.update(dict(lanes=8, rows=128, context=4096, prefill=64, page=256))
  config.rollout.mesh.tensor = 2
  config.learner.row_lengths = (4096,)
  report = compiled.check(config, "v5e:2x2", only=("engine: prefill", "engine: decode"))
  config.rollout.speculate = 4
  (drafting,) = compiled.check(config, "v5e:2x2", only=("engine: decode",)).programs
  prefill, plain = report.programs
  for program in (prefill, plain, drafting):
    assert not program.error and program.temporaries < 0.5 * report.resident["engine: cache"]
  assert plain.collectives and drafting.collectives == plain.collectives


def test_a_hybrid_decodes_without_collectives_and_gathers_each_matrix_once_a_pass():
  config = small()
  shape = SMALL | dict(family="qwen3_5_text", num_layers=4, rotary_dim=32)
  heads = dict(delta_key_heads=4, delta_value_heads=4, delta_key_dim=128, delta_value_dim=128, delta_conv=4)
  config.model.shape = shape | heads
  config.rollout.update(dict(lanes=64, rows=64, chunk=64))
  report = compiled.check(config, "v5e:2x4", only=("engine: decode", "learner: accumulate"))
  learn, decode = report.programs
  assert not decode.error and not decode.collectives
  # Measured with libtpu 0.0.42.1; the decoding of a hybrid, then its step.
  assert decode.temporaries <= 1.1 * 25_471_488 < report.resident["engine: cache"]
  # Three delta layers, forward, recomputed and backward; the loop over a row's 16 chunks gathers nothing.
  assert not learn.error and learn.temporaries <= 1.05 * 297_551_360
  assert learn.collectives["all-gather"] <= COLLECTIVES["all-gather"] + 3 * 20


def test_the_switch_of_weights_holds_a_leaf_at_a_time(quick):
  config = small()
  config.model.shape = SMALL | dict(num_layers=8)
  report = compiled.check(config, "v5e:2x4", only=("switch: weights",))
  (switch,) = report.programs
  # The largest leaf is the table: in float32 on its way, whole on a chip, and a host's copy of it. Never the model.
  table = 151_936 * 512 * 4
  assert 0 < switch.temporaries < 2.1 * table


GATHER = """
import jax, sys
from jax.sharding import NamedSharding, PartitionSpec as P
from ragrl_jax.plan import aot
from ragrl_jax.parallel import mesh as mesh_lib
for topology in sys.argv[1:]:
  print(topology, file=sys.stderr)
  mesh = mesh_lib.make(aot.devices(topology), data=1, fsdp=-1, tensor=4)
  f = jax.shard_map(lambda x: jax.lax.all_gather(x, "fsdp", tiled=True), mesh=mesh, in_specs=P(("fsdp", "tensor")),
                    out_specs=P("tensor"), check_vma=False)
  x = jax.ShapeDtypeStruct((64 * mesh.size, 128), "float32", sharding=NamedSharding(mesh, P(("fsdp", "tensor"))))
  jax.jit(f).lower(x).compile()
"""


def test_an_axis_across_hosts_compiles():
  # In its own process: libtpu aborts it if the order of chips differs between hosts.
  command = [sys.executable, "-c", GATHER, "v5e:8x8", "v5e:16x16", "v6e:8x8", "v5p:4x4x4"]
  done = subprocess.run(command, capture_output=True, text=True, env=os.environ | dict(JAX_PLATFORMS="cpu"))
  assert done.returncode == 0, done.stderr[:500]
