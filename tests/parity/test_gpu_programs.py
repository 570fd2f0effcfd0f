"""Programs compiled for GPUs by JAX's CUDA plugin, which needs no GPU: memory, kernels, collectives, hosts."""

import jax
import pytest

from ragrl_jax import config as config_lib
from ragrl_jax.models.shapes import SHAPES
from ragrl_jax.parallel import mesh as mesh_lib
from ragrl_jax.plan import aot, compiled, gpu_kernels, gpus, index, summary

pytestmark = pytest.mark.parity


@pytest.fixture(scope="module", autouse=True)
def plugin():
  try:
    gpus.devices("h200:1")
  except RuntimeError as missing:
    pytest.skip(str(missing))


def small(**mesh):
  config = config_lib.load("configs/search_r1.py", "smoke")
  config.model.update(dict(dtype="bfloat16", remat=True))
  config.mesh.update(mesh)
  config.learner.update(dict(micro_rows=8, row_lengths=(512,)))
  config.rollout.context = 512
  return config


def test_one_gpu_sends_nothing():
  report = compiled.check(small(), "h200:1", only=("learner: apply", "engine: decode"))
  assert (report.devices, report.hosts, report.fits) == (1, 1, True)
  assert report.chip.hbm == 0.92 * report.chip.memory
  update, decode = report.programs
  assert update.kernels > 10 and update.host_loops == update.host_branches == 0
  # The loop over tokens ends when all lanes have ended, so the host checks after every token.
  assert decode.turns == small().rollout.chunk and decode.kernels > 50 * decode.turns and decode.host_loops >= 1
  for program in report.programs:
    assert not program.error and program.temporaries > 0 and program.peak >= program.temporaries
    assert not program.collectives and program.sent == program.dcn == 0
    assert report.seconds(program)[1] in ("compute", "hbm")


def test_eight_gpus_of_a_host_stay_on_nvlink():
  report = compiled.check(small(data=1, fsdp=-1), "h200:8", only=("learner: apply", "engine: extend"))
  assert (report.devices, report.hosts, report.mesh["fsdp"]) == (8, 1, 8)
  update, extend = report.programs
  assert update.collectives and not extend.collectives  # the gradient's norm; every GPU has its own engine
  assert update.sent > 0 and update.dcn == extend.dcn == 0 and not update.crossing


def test_the_network_connects_two_hosts():
  report = compiled.check(small(data=2, fsdp=4), "h100:2x4", only=("learner: apply", "engine: extend"))
  assert (report.devices, report.hosts) == (8, 2)
  update, extend = report.programs
  assert extend.dcn == 0 and not extend.crossing  # a host's engine
  assert update.dcn == 0  # the gradient's norm is summed over fsdp, which is a host's GPUs
  config, vectors = small(data=2, fsdp=4), index.Index(1_000_000)
  config.rollout.mesh.replicas = 8  # one engine on both hosts, each of which has the whole index on its own GPUs
  report = compiled.check(config, "h100:2x4", only=("nothing",), index=vectors)
  assert report.span == 2 and report.resident[index.VECTORS] == vectors.bytes(aot.devices("h100:4"))


@pytest.mark.parametrize("kind", gpus.GPUS)
def test_every_kind_of_collective_is_compiled_and_read(kind):
  mesh = mesh_lib.make(aot.devices(f"{kind}:2x2"), data=2, fsdp=2)
  at = lambda *axes: jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
  x = jax.ShapeDtypeStruct((512, 256), "float32", sharding=at("data", "fsdp"))
  text = jax.jit(lambda x: (x @ x.T).sum(), out_shardings=at()).lower(x).compile().as_text()
  found = aot.collectives(text)
  crossing = [one for one in found if aot.between_hosts(one.kind, one.bytes, one.groups, 2, 4)]
  assert crossing and all(aot.parse_groups(one.groups) for one in found)
  assert gpu_kernels.counted(text).kernels >= 2 + len(found)


def test_cudnns_attention_compiles_without_cudnn():
  mesh = mesh_lib.make(aot.devices("h200:1"))
  q, kv = (jax.ShapeDtypeStruct((2, 256, heads, 64), "bfloat16") for heads in (4, 2))
  at = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  loss = lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn").sum()
  text = jax.jit(jax.grad(loss), in_shardings=at, out_shardings=at).lower(q, kv, kv).compile().as_text()
  assert "__cudnn$fmhaSoftmax" in text and "__cudnn$fmhaSoftmaxBackward" in text


def test_what_does_not_fit_on_a_gpu_is_reported():
  config = small()
  config.rollout.rows = 4_000_000
  report = compiled.check(config, "h200:1", only=("learner: apply",))
  assert not report.fits and report.needed > report.chip.hbm
  assert "IT DOES NOT FIT" in summary.text(report)
  found = report.to_json()
  assert found["capacity"] == report.chip.hbm and found["programs"][0]["kernels"] == report.programs[0].kernels > 0


def test_seven_billion_parameters_decode_on_eight_replicas():
  config = config_lib.load("configs/search_r1.py")
  config.model.update(dict(dtype="bfloat16", remat=True))
  config.mesh.update(dict(data=1, fsdp=-1))
  config.rollout.update(dict(lanes=1024, rows=1024, context=4096))  # 128 lanes a GPU
  report = compiled.check(config, "h200:8", shape="qwen2.5-7b", only=("engine: decode",))
  (decode,) = report.programs
  # Replicas exchange nothing. The host controls one loop, the one over tokens.
  assert not decode.error and not decode.collectives and decode.sent == 0
  assert decode.host_loops == 1
  # Without top-k and top-p, as in the recipes. The search of the filters adds some 350.
  assert decode.fewest / decode.turns <= 600 and decode.kernels / decode.turns <= 900
  # All kernels read and write hardly more than the weights and the live pages.
  assert 0.9 * decode.hbm < decode.moved <= 1.15 * decode.hbm
  # Weights and pages are read in place, so temporaries are only the logits' and one layer's.
  logits = 128 * 152_064 * 4
  assert decode.temporaries < 8 * logits < report.resident["engine: weights"] / 20
  config.rollout.speculate = 4  # five places a lane, verified by the same kernels
  (drafting,) = compiled.check(config, "h200:8", shape="qwen2.5-7b", only=("engine: decode",)).programs
  assert not drafting.error and not drafting.collectives and drafting.host_loops == 1
  assert drafting.fewest <= decode.fewest and drafting.kernels <= decode.kernels
  assert drafting.temporaries < 5 * 8 * logits
  config.rollout.speculate = 0
  config.rollout.mesh.tensor = 4  # two replicas: a GPU has a quarter of weights and of keys and values
  split = compiled.check(config, "h200:8", shape="qwen2.5-7b", only=("nothing",))
  assert split.resident["engine: weights"] < 0.26 * report.resident["engine: weights"]


def test_a_token_reads_a_memory_twice_and_writes_it_once():
  """No copy of the states, and none of the mixers' matrices, whose narrow ones XLA would join to the others."""
  config = small()
  shape = dict(family="qwen3_5_text", d_model=512, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=128, d_ff=1024)
  shape |= dict(delta_key_heads=4, delta_value_heads=4, delta_key_dim=128, delta_value_dim=128, delta_conv=4)
  config.model.shape = shape | dict(rope_theta=1e6, rotary_dim=32, tied=True)
  config.rollout.update(dict(lanes=64, rows=64, chunk=64))
  (decode,) = compiled.check(config, "h200:1", only=("engine: decode",)).programs
  # Measured with jax-cuda12-plugin 0.10.2: 628 MB a token, of which 3 × 50 MB are states; another reading is 8 % more.
  states = 3 * 64 * 4 * 128 * 128 * 4
  assert not decode.error and decode.moved / decode.turns <= 478e6 + 3.2 * states
  assert decode.temporaries <= 155e6 + states  # the lanes' states, beside the logits


def test_seven_billion_parameters_learn_from_packed_rows_in_kernels():
  """Rows of 4,096 tokens with several sequences and shared prompts: attention falls back to no loop of blocks."""
  config = config_lib.load("configs/arena.py")
  config.model.update(dict(dtype="bfloat16", remat=True))
  config.mesh.update(dict(data=1, fsdp=-1))
  config.learner.update(dict(micro_rows=8, row_lengths=(4096,), share_prompts=True))
  config.rollout.context = 4096
  (learn,) = compiled.check(config, "h200:8", shape="qwen2.5-7b", only=("learner: accumulate",)).programs
  # The host reads no count, only whether a chunk of the head has trained tokens, there and back.
  assert not learn.error and learn.host_loops == 0 and learn.host_branches == 2
  assert learn.kernels <= 150 * SHAPES["qwen2.5-7b"].num_layers  # there and back, the head's and the mesh's included


def test_adapters_and_gates_move_little_beside_their_matrices():
  config = small()
  shape = dict(family="qwen2", d_model=512, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=128, d_ff=4096)
  config.model.shape = shape | dict(rope_theta=1e6, tied=True)
  moved = {}
  for rank in (16, 0):
    config.model.param_dtype = "bfloat16" if rank else "float32"
    config.model.lora.update(dict(rank=rank, alpha=16.0, layers=".*"))
    (learn,) = compiled.check(config, "h200:1", only=("learner: accumulate",)).programs
    assert not learn.error
    moved[rank] = learn.moved
  # Measured with jax-cuda12-plugin 0.10.2: 2.32 and 4.75 GB. With x A B apart from x W, and gates in three passes, they
  # were 3.28 and 4.88.
  assert moved[16] <= 2.45e9 and moved[0] <= 4.81e9


def test_a_search_reads_every_row_once():
  one = index.alone(index.Index(3_000_000, 768, "bfloat16", queries=64, top_k=10), "h200:1").program
  # A third of the rows' bytes are the scores, which are written and read. A copy of the rows would be as many twice.
  assert one.moved <= 1.35 * 3_000_000 * 768 * 2
  assert one.temporaries < 2 * 4 * 64 * 1_000_064  # one part's scores
