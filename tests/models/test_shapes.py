"""The shapes of published models have the numbers of parameters that their makers state."""

import jax
import pytest
from flax import nnx

from ragrl_jax.models.decoder import Decoder
from ragrl_jax.models.shapes import SHAPES

# from the published safetensors
PARAMETERS = {
  "qwen2.5-1.5b": 1_543_714_304,
  "qwen2.5-7b": 7_615_616_512,
  "qwen2.5-14b": 14_770_033_664,
  "qwen2.5-72b": 72_706_203_648,
  "qwen3-0.6b": 596_049_920,
  "qwen3-1.7b": 1_720_574_976,
  "qwen3-4b": 4_022_468_096,
  "qwen3-8b": 8_190_735_360,
  "llama-3.1-8b": 8_030_261_248,
}


@pytest.mark.parametrize("name", SHAPES)
def test_parameters(name):
  model = nnx.eval_shape(lambda: Decoder(SHAPES[name], rngs=nnx.Rngs(0)))
  assert sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))) == PARAMETERS[name]
