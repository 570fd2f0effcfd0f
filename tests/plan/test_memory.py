import jax
import pytest
import scale_estimate
import scale_temporaries as temporaries
from flax import nnx

from ragrl_jax import config as config_lib
from ragrl_jax.models import lora
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import mesh as mesh_lib, rules
from ragrl_jax.plan import aot, compiled, memory, workload
from ragrl_jax.plan.memory import Axes
from ragrl_jax.settings import Settings, fields

SIZES = dict(d_model=8, num_layers=2, num_heads=2, num_kv_heads=2, head_dim=4, d_ff=16, rope_theta=1e4)
SHAPE = DecoderConfig(vocab_size=12, **SIZES)


def test_the_parameters_of_a_chip():
  # q, k, v, o are 8 · 8 each and the MLP's 3 · 8 · 16: 640 a layer.
  assert memory.layer_matrices(SHAPE) == 4 * 64 + 384
  found = memory.counted(SHAPE, Axes(fsdp=4, tensor=2))
  assert (found.matrices, found.tables) == (2 * 640 / 8, 12 * 8 / 8)
  assert found.narrow == 2 * (2 * 8 + 2 * 4) + 8  # norms of layers and heads, and the last


def test_the_parameters_of_a_hybrid():
  delta = dict(delta_key_heads=2, delta_value_heads=4, delta_key_dim=4, delta_value_dim=6, delta_conv=3)
  shape = DecoderConfig.from_shape(12, family="qwen3_5_text", **SIZES | dict(num_layers=4, attend_every=2), **delta)
  model = nnx.eval_shape(lambda: Decoder(shape, rngs=nnx.Rngs(0)))
  assert memory.counted(shape, Axes()).all == sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model)))
  axes, mesh = Axes(fsdp=2, tensor=2), mesh_lib.make(jax.devices()[:4], data=1, fsdp=2, tensor=2)
  assert 4 * memory.counted(shape, axes).all == aot.on_chip(rules.place(mesh, nnx.state(model, nnx.Param)))


@pytest.mark.parametrize("family, tied, axes", [
  ("qwen3", True, Axes(data=2, fsdp=2, tensor=2)), ("qwen3", False, Axes(fsdp=2, tensor=2, sequence=2)),
  ("qwen2", False, Axes(fsdp=4, tensor=2)), ("mistral", False, Axes(fsdp=4, tensor=2)),
  ("llama", False, Axes(data=4, fsdp=2)), ("gemma3_text", True, Axes(fsdp=4, tensor=2)),
  ("qwen3_moe", False, Axes(data=2, fsdp=2, tensor=2)),
])  # fmt: skip
def test_parameters_as_the_rules_shard_them(family, tied, axes):
  more = dict(num_experts=6, experts_per_token=2) if family == "qwen3_moe" else {}
  more |= dict(d_model=16, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=32, rope_theta=1e4)
  shape = DecoderConfig.from_shape(36, family=family, tied=tied, **more)
  mesh = mesh_lib.make(jax.devices(), data=axes.data, fsdp=axes.fsdp, tensor=axes.tensor, sequence=axes.sequence)
  model = compiled.abstract_model(Settings(), shape, mesh)
  placed = rules.place(mesh, nnx.state(model, nnx.Param))
  assert 4 * memory.counted(shape, axes).all == aot.on_chip(placed)


@pytest.mark.parametrize("rank", [2, 0])
def test_what_adapters_leave_as_it_is_stays_in_the_engine(rank):
  config = fields.replaced(Settings(), {"model.lora.rank": rank})
  model = compiled.abstract_model(config, SHAPE, mesh := mesh_lib.make(jax.devices()[:1]))
  made = compiled._Compiler(config, mesh, mesh, model, SHAPE, workload.load(config), ("nothing",))
  made.engine()
  assert made.base == (made.resident["engine: weights"] - 4 * lora.size(model) if rank else 0)


def test_resident_bytes():
  config = config_lib.default_config()
  config.rollout.update(dict(rows=4, lanes=4, context=60, page=50))
  axes = Axes(fsdp=4, tensor=2)
  mine = 2 * 640 / 8 + 12 * 8 / 8 + 56
  found = scale_estimate.of_learner(SHAPE, axes, reference=True, critic=True)
  assert found["learner"] == 12 * mine and found["reference"] == 4 * mine  # masters and two moments
  # The policy's gradient and the critic's are never there together: the critic's is larger by its head.
  assert found["critic"] == 12 * (mine + 8 + 1) and found["gradient"] == 4 * (mine + 8 + 1)
  bare = scale_estimate.of_learner(SHAPE, axes, reference=False, critic=False)
  assert bare == {"learner": 12 * mine, "gradient": 4 * mine}
  config.rollout.mesh.tensor = 2
  here = scale_estimate.engine_axes(config, 4)
  assert here == Axes(data=2, tensor=2)
  found = scale_estimate.of_engine(SHAPE, config, here, scale_estimate.cache_layout(SHAPE, config, "v5e:2x2", 2))
  assert found["engine: weights"] == 2 * (2 * 640 + 12 * 8) / 2 + 4 * 56
  # Keys and values in bf16, of a replica's 2 conversations and 8 prompts of two pages, one of two heads.
  assert found["engine: cache"] == 2 * 2 * 2 * 10 * 100 * 1 * 4
  config.rollout.kv_dtype = "int8"
  found = scale_estimate.of_engine(SHAPE, config, here, scale_estimate.cache_layout(SHAPE, config, "v5e:2x2", 2))
  assert found["engine: cache"] == 2 * 2 * 10 * 100 * (4 + 4)  # a vector of four int8, and its float32 scale
  config.rollout.pages = 30
  assert scale_estimate.cached_tokens(config, 2) == 15 * 50


# A layer's matrices: 4 · 8 · 8 + 3 · 8 · 16 = 640 parameters. The table: 16 · 8. Norms: 2 · (16 + 8) + 8 = 56.
SMALL = DecoderConfig(vocab_size=16, **SIZES)
WIDE = 3 * 16 + 2 * 4 * 4  # of one token: the MLP's three, queries, keys, values, their output


def small(**learner):
  config = config_lib.default_config()
  config.learner.update(dict(micro_rows=4, row_lengths=(50, 100), logprob_chunk=10) | learner)
  config.rollout.update(dict(lanes=6, rows=6, chunk=5))
  return config


def test_room_of_a_gradient():
  assert temporaries.chip_tokens(small(), Axes(fsdp=2, sequence=4)) == 4 * 100 / 8
  assert temporaries.chip_tokens(small(), Axes(data=2, fsdp=2, tensor=2)) == 100
  axes = Axes(fsdp=4, tensor=2)  # 100 tokens per chip
  mine = 2 * 640 / 8 + 16 * 8 / 8 + 56
  inputs = 2 * 100 * 8 * 2  # of two layers, in bf16
  kept = 4 * mine + inputs  # with the new gradient
  layer = inputs + 2 * 2 * 640 / 2 + 100 * (7.5 * 4 * 8 + WIDE / 2)
  assert temporaries.accumulate_room(SMALL, small(), axes, head=False) == kept + layer
  # The head: 10 tokens per chip and part, 8 parts of two words each, in a slab of 80 of the 400 gathered tokens.
  head = 80 * (6 * 8 + 2 * 4 * 16 / 8) + 2 * 4 * 100 * 8
  assert temporaries.accumulate_room(SMALL, small(), axes) == kept + max(layer, head)
  config = small(logprob_chunk=1000)  # all 400 tokens are one slab
  head = 400 * (6 * 8 + 2 * 4 * 16 / 8) + 2 * 4 * 100 * 8
  assert temporaries.accumulate_room(SMALL, config, axes) == kept + max(layer, head)
  scored = 400 * (2 * 8 + 4 * 16 / 8) + 2 * 4 * 100 * 8
  assert temporaries.score_room(SMALL, config, axes) == max(layer - inputs, scored)


def test_traffic_of_a_gradient():
  looked_up = 4 * 4 * 400 * 8
  assert temporaries.accumulate_sent(SMALL, small(micro_rows=4), Axes()) == 0
  assert temporaries.accumulate_sent(SMALL, small(), Axes(tensor=2), head=False) == looked_up + 2 * 400 * 8 * 22
  data = temporaries.accumulate_sent(SMALL, small(micro_rows=8), Axes(data=2), head=False)
  assert data == 4 * (2 * 640 + 16 * 8 + 56)  # a gradient in float32
  fsdp = temporaries.accumulate_sent(SMALL, small(micro_rows=16), Axes(fsdp=4))
  # Matrices in bf16 twice, gradients in float32 once; 1,600 hidden states in bf16 twice, their gradient in float32.
  assert fsdp == looked_up + 2 * 640 * 8 + 1600 * 8 * 8
  assert temporaries.score_sent(SMALL, small(micro_rows=16), Axes(fsdp=4)) == looked_up / 2 + 2 * 640 * 2 + 1600 * 8 * 2
  # Rows that are sharded by sequence gather their keys.
  sent = lambda rows, cut: temporaries.accumulate_sent(SMALL, small(micro_rows=rows), Axes(sequence=cut), head=False)
  assert sent(8, 2) - sent(4, 1) == 3 * 2 * 2 * 800 * 2 * 2 * 4  # passes, layers, bytes, tokens, k and v, heads, width


def test_the_engines_part():
  here = Axes(data=2, tensor=2)  # three of the six lanes per replica
  heads = 2 * 2 * (2 + 2 * 2) * 4 / 2  # queries, keys and values twice, in bf16
  assert temporaries.extend_room(SMALL, here, 6) == 6 * (2 * 4 * 8 + heads + 2 * 3 * 16 / 2)
  assert temporaries.decode_room(SMALL, small(), here) == temporaries.extend_room(SMALL, here, 3) + 4 * 4 * 3 * 16 / 2
  assert temporaries.extend_sent(SMALL, here, 6) == (2 * 2 + 1) * 6 * 8 * 2  # two sums per layer, one before, in bf16
  assert temporaries.decode_sent(SMALL, small(), here) == 5 * (2 * 2 + 1) * 3 * 8 * 4  # and in float32
  assert temporaries.extend_sent(SMALL, Axes(), 6) == temporaries.decode_sent(SMALL, small(), Axes()) == 0
  drafting = small()
  drafting.rollout.speculate = 3  # four places a lane
  assert temporaries.decode_room(SMALL, drafting, here) == 4 * temporaries.decode_room(SMALL, small(), here)
  assert temporaries.decode_sent(SMALL, drafting, here) == 4 * temporaries.decode_sent(SMALL, small(), here)
