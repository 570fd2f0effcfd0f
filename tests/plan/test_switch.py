"""Weights on their way from the learner to the engine: a leaf at a time, and nothing of the model a second time."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from ragrl_jax import config as config_lib, settings
from ragrl_jax.engine.loader import Caster
from ragrl_jax.models import lora
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import mesh as mesh_lib, rules
from ragrl_jax.plan import aot, compiled, switch

SHAPE = DecoderConfig(
  vocab_size=1024, d_model=128, num_layers=4, num_heads=8, num_kv_heads=4, head_dim=16, d_ff=384, rope_theta=1e4
)


def planned(**adapters):
  """The learner's mesh and settings, and its model without arrays."""
  mesh, config = mesh_lib.make(jax.devices(), data=1, fsdp=8), config_lib.default_config()
  config.model.lora.update(adapters)
  config = settings.of(config)
  return mesh, config, compiled.abstract_model(config, SHAPE, mesh)


def programs(replicas, tensor, learner):
  """(name, compiled program, bytes of the whole leaf in bfloat16) of every leaf, and the engine's weights."""
  mesh = mesh_lib.make(jax.devices(), **learner)
  config = config_lib.default_config()
  params = rules.place(mesh, nnx.state(compiled.abstract_model(settings.of(config), SHAPE, mesh)))
  cast = Caster(jnp.dtype(jnp.bfloat16), SHAPE, mesh_lib.of_engine(mesh, replicas=replicas, tensor=tensor))
  made = lambda name, one: (name, one.function.lower(one.argument).compile(), 2 * one.argument.size)
  return [made(name, one) for name, one in cast.programs(params)], cast.abstract(params)


@pytest.mark.parametrize("replicas, tensor, learner", [
  (8, 1, dict(data=1, fsdp=8)), (4, 2, dict(data=1, fsdp=8)), (2, 4, dict(data=2, fsdp=2, tensor=2)),
])  # fmt: skip
def test_a_leaf_at_a_time_and_no_second_copy(replicas, tensor, learner):
  found, weights = programs(replicas, tensor, learner)
  whole = aot.on_chip(weights)  # of the engine, on a device
  assert len({name for name, *_ in found}) == len(found) and {"embedding", "layers/gate"} < {name for name, *_ in found}
  made = 0
  for name, step, leaf in found:
    made += step.memory_analysis().output_size_in_bytes
    # The leaf may be gathered before it is cut: in float32, as CPUs gather, it is twice the bfloat16 leaf, and no more.
    assert step.memory_analysis().temp_size_in_bytes <= 2.1 * leaf + 4096, name
  # The programs make the engine's weights, once: what else they make is a pointer for each array.
  assert whole <= made < 1.02 * whole + 8 * 1024


def test_the_switch_is_counted_as_one_program_of_the_plan():
  mesh, config, model = planned()
  one = switch.program(model, config.rollout, mesh, mesh)
  # Every device of the learner has an eighth of a leaf and every replica gets the whole: all of it is sent.
  sizes = [x.size for x in jax.tree.leaves(nnx.state(model))]
  assert one.name == "switch: weights" and one.sent >= sum(sizes) and one.temporaries <= 2.1 * 2 * max(sizes) + 4096


def test_only_adapters_are_sent_if_only_they_are_trained(tmp_path):
  mesh, config, model = planned(rank=8, layers="q down")
  one = switch.program(model, config.rollout, mesh, mesh)
  assert 0 < one.sent <= 4 * 4 * sum(leaf.size for leaf in jax.tree.leaves(lora.split(model)[1])) and one.hbm > 0
  # A folder's adapters have the same sizes; its tensors are not read.
  made = Decoder(SHAPE, rngs=nnx.Rngs(0))
  lora.add(made, rank=8, alpha=16.0, layers="q down", seed=0)
  lora.save_adapters(made, tmp_path, base="")
  sizes = lambda decoder: jax.tree.map(lambda leaf: leaf.shape, lora.split(decoder)[1])
  assert sizes(planned(layers="q down", path=str(tmp_path))[2]) == sizes(model)
