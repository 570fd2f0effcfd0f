"""Replicas × tensor on eight simulated devices: the tokens of one device, and no traffic between replicas."""

import functools
import re

import jax
import numpy as np
import pytest
import small_engine as kit
from flax import nnx
from refusals import refused
from small_engine import requests, rollout

from ragrl_jax.engine import sizes as sizes_lib
from ragrl_jax.engine.engine import Engine
from ragrl_jax.engine.loader import Caster
from ragrl_jax.engine.programs import Programs
from ragrl_jax.engine.sizes import Sizes
from ragrl_jax.models import cache as cache_lib
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import mesh as mesh_lib, rules
from ragrl_jax.plan import aot
from ragrl_jax.settings import Rollout

SHAPE = DecoderConfig(
  vocab_size=264, d_model=64, num_layers=2, num_heads=16, num_kv_heads=8, head_dim=8, d_ff=96, rope_theta=1e4
)
SIZES = kit.SIZES | dict(lanes=8, rows=16)


@functools.cache
def model():
  return Decoder(SHAPE, rngs=nnx.Rngs(0))


def learners_mesh():
  return mesh_lib.make(jax.devices(), data=1, fsdp=8)


def played(replicas, tensor, **sizes):
  """(engine, episodes of a few turns with searches between them)."""
  mesh = params = None
  if replicas * tensor > 1:
    mesh = mesh_lib.of_engine(learners_mesh(), replicas=replicas, tensor=tensor)
    params = rules.place(learners_mesh(), nnx.state(model()))
  engine = kit.loaded(model(), params=params, mesh=mesh, replicas=replicas, **SIZES | sizes)
  return engine, rollout(engine).run(requests(6, 4), step=0)


alone = functools.cache(lambda: played(1, 1)[1])


@pytest.mark.long  # an engine for each mesh
@pytest.mark.parametrize("replicas, tensor, speculate", [(4, 2, 3), (8, 1, 0), (2, 4, 0), (1, 8, 0)])
def test_every_mesh_draws_the_tokens_of_one_device(replicas, tensor, speculate):
  engine, episodes = played(replicas, tensor, speculate=speculate)
  for one, two in zip(alone(), episodes, strict=True):
    kit.check_close(one, two)
  pages = engine._kv.cache[0]
  # A device holds the pages of its replica and its heads, and nothing twice.
  assert pages.sharding.shard_shape(pages.shape)[0] == pages.shape[0] // replicas
  assert pages.sharding.shard_shape(pages.shape)[2] == SHAPE.num_kv_heads // tensor
  assert engine._kv.weights.layers[1]["q"][...].sharding.shard_shape((64, 128)) == (64, 128 // tensor)
  assert kit.held(engine) == 0
  # Again with the weights of a later step, with the programs that were compiled for the first.
  programs = engine._kv.programs
  before = [program._cache_size() for program in (programs.decode, programs.extend, programs.copy)]
  engine.load(nnx.split(model())[1] if tensor * replicas == 1 else engine.weights, version=2)
  rollout(engine).run(requests(2, 2), step=1)
  assert [program._cache_size() for program in (programs.decode, programs.extend, programs.copy)] == before


@pytest.mark.long  # compiles two engines
def test_int8_pages_and_scales_are_split_like_their_heads():
  # The tokens need not be those of one device: another order of sums may round a key to the next of its 255 steps.
  engine, episodes = played(4, 2, kv_dtype="int8")
  forward = jax.jit(model())
  ours, theirs = (np.concatenate(x) for x in zip(*(kit.scored(episode, forward=forward) for episode in episodes)))
  gaps = np.abs(ours - theirs)
  assert 1e-6 < gaps.mean() < 5e-3 and gaps.max() < 0.05
  for x in engine._kv.cache:
    assert x.sharding.shard_shape(x.shape)[:3:2] == (x.shape[0] // 4, SHAPE.num_kv_heads // 2)


@functools.cache
def compiled(replicas, tensor):
  """The text of each program of an engine on eight devices, and the cache."""
  mesh = mesh_lib.of_engine(learners_mesh(), replicas=replicas, tensor=tensor)
  sizes = Sizes(replicas=replicas, **SIZES)
  graphdef, params = nnx.split(model())
  weights = Caster(np.float32, SHAPE, mesh).abstract(params)
  at = Programs.cache_sharding(mesh)
  layout = cache_lib.layout(SHAPE, sizes.page, np.float32, "cpu", tensor)
  make = lambda: layout.allocate(sizes.cache_pages * replicas)
  cache = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), jax.eval_shape(make))
  programs = Programs(graphdef, kit.stops().table, layout, chunk=sizes.chunk, mesh=mesh)
  ints = lambda *shape: jax.ShapeDtypeStruct(shape, np.int32)
  n = 2 * replicas
  lowered = dict(
    extend=programs.extend.lower(weights, cache, ints(n, 32), ints(n, 3), ints(n, sizes.table)),
    decode=programs.decode.lower(weights, cache, ints(8, sizes.columns), ints(8, sizes.table), ints(replicas, 2)),
    copy=programs.copy.lower(cache, ints(8, 2)),
    take=programs.take.lower(cache, ints(3 * replicas)),
  )
  return {name: one.compile().as_text() for name, one in lowered.items()}


@pytest.mark.parametrize("replicas, tensor", [(8, 1), pytest.param(4, 2, marks=pytest.mark.long)])
def test_replicas_exchange_nothing(replicas, tensor):
  for name, text in compiled(replicas, tensor).items():
    found = aot.collectives(text)
    if tensor == 1 or name in ("copy", "take"):
      assert not found, (name, found)
      continue
    assert found  # the test still understands the compiler's text
    groups = re.findall(r"replica_groups=(\{\{.*?\}\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?)", text)
    assert groups and set(groups) <= {"{{0,1},{2,3},{4,5},{6,7}}", "[4,2]<=[8]"}, (name, groups)
    # Within a replica only activations are exchanged, never weights or pages.
    assert max(one.bytes for one in found) <= 4 * 2 * 32 * max(SHAPE.d_model, SHAPE.vocab_size), name


def test_a_mesh_that_does_not_fit_is_refused():
  refused(r"config\.rollout\.mesh\.tensor=4: .* 50258 rows .* Use 2", sizes_lib.check_model, 4, 50_258, 4)
  says = r"config\.rollout\.mesh\.replicas=3, tensor=2.*8 devices"
  refused(says, mesh_lib.of_engine, learners_mesh(), replicas=3, tensor=2)
  refused("tensor=3", mesh_lib.of_engine, learners_mesh(), tensor=3)
  refused("tensor=2", mesh_lib.of_engine, None, tensor=2)
  assert mesh_lib.of_engine(None) is None
  mesh = mesh_lib.of_engine(learners_mesh(), tensor=2)
  assert (mesh.shape["data"], mesh.shape["tensor"]) == (4, 2)
  refused("lanes=6 on 4 replicas.*multiple of 4", Sizes, lanes=6, rows=8, context=8, replicas=4)
  made = sizes_lib.from_settings(Rollout(lanes=6, rows=9), mesh)  # a run's sizes are rounded up
  assert (made.lanes, made.rows, made.replicas) == (8, 12, 4)
  graphdef, params = nnx.split(kit.model())  # two key-value heads
  whole = mesh_lib.of_engine(learners_mesh(), tensor=4)
  engine = Engine(graphdef, kit.TOKENIZER, kit.stops(), Sizes(**SIZES, replicas=2), mesh=whole)
  refused(r"config\.rollout\.mesh\.tensor=4: the model's 2 key-value heads", engine.load, params, version=1)
