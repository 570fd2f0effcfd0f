import jax
import pytest
from flax import nnx

from ragrl_jax import config as config_lib
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.parallel import mesh as mesh_lib
from ragrl_jax.parallel import rules
from ragrl_jax.plan import aot, compiled, memory
from ragrl_jax.plan.memory import Axes

SHAPE = DecoderConfig(
  vocab_size=12, d_model=8, num_layers=2, num_heads=2, num_kv_heads=2, head_dim=4, d_ff=16, rope_theta=1e4
)


def test_the_parameters_of_a_chip():
  # q, k, v, o are 8 · 8 each and the MLP's 3 · 8 · 16: 640 a layer.
  assert memory.layer_matrices(SHAPE) == 4 * 64 + 384
  found = memory.counted(SHAPE, Axes(fsdp=4, tensor=2))
  assert (found.matrices, found.tables) == (2 * 640 / 8, 12 * 8 / 8)
  assert found.narrow == 2 * (2 * 8 + 2 * 4) + 8  # norms of layers and heads, and the last


@pytest.mark.parametrize(
  "family, tied, axes",
  [
    ("qwen3", True, Axes(data=2, fsdp=2, tensor=2)),
    ("qwen2", False, Axes(fsdp=4, tensor=2)),
    ("llama", False, Axes(data=4, fsdp=2)),
    ("qwen3", False, Axes(fsdp=2, tensor=2, sequence=2)),
    ("mistral", False, Axes(fsdp=4, tensor=2)),
    ("gemma3_text", True, Axes(fsdp=4, tensor=2)),
    ("qwen3_moe", False, Axes(data=2, fsdp=2, tensor=2)),
  ],
)
def test_parameters_as_the_rules_shard_them(family, tied, axes):
  more = dict(num_experts=6, experts_per_token=2) if family == "qwen3_moe" else {}
  more |= dict(d_model=16, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=32, rope_theta=1e4)
  shape = DecoderConfig.from_shape(36, family=family, tied=tied, **more)
  mesh = mesh_lib.make(jax.devices(), data=axes.data, fsdp=axes.fsdp, tensor=axes.tensor, sequence=axes.sequence)
  model = compiled.abstract_model(config_lib.default_config(), shape, mesh)
  placed = rules.place(mesh, nnx.state(model, nnx.Param))
  assert 4 * memory.counted(shape, axes).all == aot.on_chip(placed)


def test_resident_bytes():
  config = config_lib.default_config()
  config.rollout.update(dict(rows=4, lanes=4, context=60, page=50))
  axes = Axes(fsdp=4, tensor=2)
  mine = 2 * 640 / 8 + 12 * 8 / 8 + 56
  found = memory.of_learner(SHAPE, axes, reference=True, critic=True)
  assert found["learner"] == 12 * mine and found["reference"] == 4 * mine  # masters and two moments
  # The policy's gradient and the critic's are never there together: the critic's is larger by its head.
  assert found["critic"] == 12 * (mine + 8 + 1) and found["gradient"] == 4 * (mine + 8 + 1)
  assert memory.of_learner(SHAPE, axes, reference=False, critic=False) == {"learner": 12 * mine, "gradient": 4 * mine}
  config.rollout.mesh.tensor = 2
  here = memory.engine_axes(config, 4)
  assert here == Axes(data=2, tensor=2)
  found = memory.of_engine(SHAPE, config, here, memory.layout(SHAPE, config, "v5e:2x2", 2))
  assert found["engine: weights"] == 2 * (2 * 640 + 12 * 8) / 2 + 4 * 56
  # Keys and values in bf16, of a replica's 2 conversations and 8 prompts of two pages, one of two heads.
  assert found["engine: cache"] == 2 * 2 * 2 * 10 * 100 * 1 * 4
  config.rollout.kv_dtype = "int8"
  found = memory.of_engine(SHAPE, config, here, memory.layout(SHAPE, config, "v5e:2x2", 2))
  assert found["engine: cache"] == 2 * 2 * 10 * 100 * (4 + 4)  # a vector of four int8, and its float32 scale
  config.rollout.pages = 30
  assert memory.cached_tokens(config, 2) == 15 * 50
