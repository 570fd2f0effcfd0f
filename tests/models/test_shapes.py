"""The shapes of published models have the numbers of parameters that their makers state."""

import jax
import pytest
from flax import nnx

from ragrl_jax.learner import flops
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.models.shapes import SHAPES
from ragrl_jax.plan import memory

# from the published safetensors; of Qwen3.5 the text part, as transformers builds it
PARAMETERS = {
  "qwen2.5-1.5b": 1_543_714_304, "qwen2.5-7b": 7_615_616_512, "qwen2.5-14b": 14_770_033_664,
  "qwen2.5-72b": 72_706_203_648, "qwen3-0.6b": 596_049_920, "qwen3-1.7b": 1_720_574_976, "qwen3-4b": 4_022_468_096,
  "qwen3-8b": 8_190_735_360, "qwen3-30b-a3b": 30_532_122_624, "qwen3.5-0.8b": 752_393_024,
  "qwen3.5-2b": 1_881_825_088, "qwen3.5-4b": 4_205_751_296, "qwen3.5-9b": 8_953_803_264,
  "qwen3.5-27b": 26_895_998_464, "mistral-7b-v0.1": 7_241_732_096, "mistral-7b-v0.3": 7_248_023_552,
  "gemma-3-1b": 999_885_952, "smollm2-135m": 134_515_008, "smollm3-3b": 3_075_098_624,
  "llama-3.1-8b": 8_030_261_248,
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_parameters(name):
  model = nnx.eval_shape(lambda: Decoder(SHAPES[name], rngs=nnx.Rngs(0)))
  assert sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))) == PARAMETERS[name]
  assert memory.counted(SHAPES[name], memory.Axes()).all == PARAMETERS[name]  # the planner's count


def test_a_token_meets_eight_of_128_experts():
  # Qwen3-30B-A3B's card: 30.5B parameters, 3.3B activated. They are the matrices that a token is multiplied with, and
  # the two tables of 151,936 · 2048. By hand, a layer: attention 2048 · 128 · (2 · 32 + 2 · 4), experts
  # 8 · 3 · 2048 · 768, router 2048 · 128.
  shape = SHAPES["qwen3-30b-a3b"]
  layer = 2048 * 128 * 72 + 8 * 3 * 2048 * 768 + 2048 * 128
  assert flops.matmul_parameters(shape) == 48 * layer
  assert round((48 * layer + 2 * 151_936 * 2048) / 1e9, 2) == 3.35
