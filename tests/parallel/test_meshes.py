"""Every mesh computes what one device computes, and no program sends a whole parameter."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_learner as small
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from ragrl_jax.learner import step
from ragrl_jax.learner.learner import Learner
from ragrl_jax.learner.settings import OptimizerSettings, Settings
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import mesh as mesh_lib, rules
from ragrl_jax.plan import aot

SETTINGS = Settings(
  aggregation="seq_mean_token_mean", kl="k3", kl_coef=0.3, entropy_coef=0.05, logprob_chunk=64, temperature=0.8
)
OPTIMIZER = OptimizerSettings(learning_rate=1e-3, total_steps=100)
# (data, fsdp, tensor, sequence)
MESHES = [(8, 1, 1, 1), (4, 2, 1, 1), (2, 2, 2, 1), (1, 8, 1, 1), (1, 2, 2, 2)]
mesh_of = lambda sizes: mesh_lib.make(jax.devices(), **dict(zip(mesh_lib.AXES, sizes)))


def trained(mesh=None):
  """(scores, state after two optimiser steps, metrics of both)."""
  learner = small.learner(SETTINGS, OPTIMIZER, mesh=mesh)
  batches = [small.blocks(small.items(16, seed=seed)) for seed in (1, 2)]
  scores = [np.asarray(learner.score(learner.params, batch)) for batch in batches[0]]
  state, metrics = learner.init(0), []
  for blocks in batches:
    state, found = small.update(learner, state, blocks)
    metrics.append(found)
  return scores, state, metrics


alone = functools.cache(trained)


@pytest.mark.long  # compiles a learner for eight devices
@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_training_and_scoring_equal_those_of_one_device(sizes):
  scores, state, metrics = alone()
  mesh = mesh_of(sizes)
  their_scores, their_state, their_metrics = trained(mesh)
  assert jax.tree.leaves(their_state.params)[0].sharding.mesh == mesh
  assert small.distance(scores, their_scores) < 1e-5 and small.distance(state.params, their_state.params) < 1e-5
  for one, two in zip(metrics, their_metrics, strict=True):
    for name in ("loss", "kl", "entropy", "grad_norm", "mismatch"):
      assert two[name] == pytest.approx(one[name], abs=1e-5), name


SHAPE = DecoderConfig(
  vocab_size=2048, d_model=64, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=16, d_ff=160, rope_theta=100.0
)
ROWS, LENGTH = 8, 4  # few tokens and one lane, so activations are smaller than any matrix


@functools.cache
def lowered(sizes):
  """{program: function that lowers it}, from shapes alone."""
  mesh = mesh_of(sizes)
  model = nnx.eval_shape(lambda: Decoder(SHAPE, rngs=nnx.Rngs(0), remat=True))
  model.mesh = mesh
  params = rules.place(mesh, nnx.state(model))
  learner = Learner(model, dataclasses.replace(SETTINGS, logprob_chunk=8), OPTIMIZER, mesh=mesh, reference=params)
  whole = NamedSharding(mesh, PartitionSpec())
  array = lambda dtype, at, *shape: jax.ShapeDtypeStruct(shape, dtype, sharding=at)
  floats = functools.partial(array, jnp.float32, whole)
  like = small.blocks(small.items(1))[0]
  block = jax.tree.map(lambda x: array(x.dtype, rules.batch_sharding(mesh), ROWS, LENGTH), like)
  one = learner.trained
  state = rules.place(mesh, jax.eval_shape(lambda p: one.init(p, 0), one.params))
  sums, p = dict.fromkeys(step.SUMS, floats()), state.params
  return dict(
    accumulate=lambda: one.accumulate.lower(p, sums, p, one.frozen, block, floats(2), state.kl_coef),
    apply=lambda: one.apply.lower(state, p, sums),
    score=lambda: learner._score.lower(one.params, one.frozen, block),
  )


PROGRAMS = ("accumulate", "apply", "score")
QUICK = ((2, 2, 2, 1), "accumulate")
CASES = [pytest.param(*x, marks=[] if x == QUICK else pytest.mark.long) for x in itertools.product(MESHES, PROGRAMS)]


@pytest.mark.parametrize("sizes, name", CASES, ids=str)
def test_no_parameter_is_gathered_outside_a_layer(sizes, name):
  mesh = mesh_of(sizes)
  found = aot.collectives(lowered(sizes)[name]().compile().as_text())
  d, tensor = SHAPE.d_model, mesh.shape["tensor"]
  narrowest, widest = SHAPE.num_kv_heads * SHAPE.head_dim * d, d * SHAPE.d_ff  # k's matrix and the MLP's, of one layer
  for c in [c for c in found if c.kind == "all-gather"]:  # in a loop, one layer's at a time
    assert c.size <= widest if c.loops else c.size < SHAPE.num_layers * narrowest // tensor, c
  if name == "accumulate":
    if mesh.shape["fsdp"] > 1:  # the test still understands the compiler's text
      assert {"all-gather", "all-to-all"} <= {c.kind for c in found}
    # Devices that share a parameter sum its gradient, each for its own part.
    pieces = mesh.shape["fsdp"] * tensor
    assert all(c.size <= SHAPE.vocab_size * d // pieces for c in found if not c.loops)
