"""The arrays on the devices while a run learns: only what is needed, and as many bytes as the planner counts."""

import dataclasses
import gc

import jax
import numpy as np
import pytest
import scale_estimate
import small_learner as small
from flax import nnx

from ragrl_jax.learner import forward
from ragrl_jax.learner.learner import Learner
from ragrl_jax.learner.settings import AdvantageSettings, CriticSettings, Settings
from ragrl_jax.models import lora
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import mesh as mesh_lib, rules
from ragrl_jax.plan import memory

CONFIG = dataclasses.replace(small.CONFIG, d_model=64, d_ff=256)
KL = dict(kl="k3", kl_coef=0.1)


def live():
  """Bytes of all live arrays on all devices. Arrays that share memory count once."""
  gc.collect()
  found = {}
  for array in jax.live_arrays():
    for shard in array.addressable_shards:
      found[shard.device.id, shard.data.unsafe_buffer_pointer()] = shard.data.nbytes
  return sum(found.values())


def size(tree):
  return sum(shard.data.nbytes for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards)


class Lives:
  """Bytes in addition to those before: after the start, the maximum during a step, and after the step."""

  def __init__(self, settings, *, rank=0, mesh=None):
    before = live()
    gc.freeze()  # what is here stays: only what is new is looked through from now on
    model = Decoder(CONFIG, rngs=nnx.Rngs(0), mesh=mesh)  # kept to the end, as a run keeps its player's model
    if mesh is not None:
      nnx.update(model, jax.device_put(nnx.state(model), rules.shardings(mesh, nnx.state(model))))
    if rank:
      lora.add(model, rank=rank, alpha=1.0, layers=".*", seed=0)
    self.trained, self.frozen = (size(tree) for tree in lora.split(model)[1:])
    learner = Learner(model, settings, small.OPTIMIZER, mesh=mesh)
    state = learner.init(0, keep=False)
    self.start = live() - before
    ready = learner.prepare(state, [[small.earning(item, 1.0) for item in small.items()]], small.pack)
    jax.block_until_ready(ready.minibatches)
    seen = []
    steps = learner.train(state, ready)
    del state
    batches = live() - before - self.start  # the blocks with their scores
    try:
      while True:
        jax.block_until_ready(next(steps))
        seen.append(live() - before - batches)
    except StopIteration as end:
      state, _ = end.value
    del ready, steps
    self.most, self.end = max(seen), live() - before
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize("kl, rank, sizes", [
  (True, 0, None),  # the others compile a learner without a reference, with adapters or for eight devices
  *(pytest.param(*case, marks=pytest.mark.long) for case in ((False, 0, None), (False, 16, None), (True, 16, None))),
  *(pytest.param(kl, 0, dict(data=2, fsdp=2, tensor=2), marks=pytest.mark.long) for kl in (False, True)),
])  # fmt: skip
def test_parameters_two_moments_a_gradient_and_a_reference_only_if_needed(kl, rank, sizes):
  """Of adapters alone, if there are any: the base is stored once."""
  mesh = None if sizes is None else mesh_lib.make(jax.devices(), **sizes)
  found = Lives(Settings(logprob_chunk=64, **(KL if kl else {})), rank=rank, mesh=mesh)
  units = [(x - found.frozen) / found.trained for x in (found.start, found.most, found.end)]
  plain = not rank and mesh is None
  assert [round(x, 2 if plain else 1) for x in units] == [3 + kl, 4 + kl, 3 + kl]
  if plain:
    planned = scale_estimate.of_learner(CONFIG, memory.Axes(), reference=kl, critic=False)
    assert found.most == pytest.approx(sum(planned.values()), rel=0.005)


@pytest.mark.parametrize("kind, models", [pytest.param("own", 2, marks=pytest.mark.long), ("shared", 1)])
def test_a_critic_of_its_own_has_a_state_and_no_copy(kind, models):
  gae = AdvantageSettings(kind="gae", gamma=1.0, lam=1.0)
  found = Lives(Settings(advantage=gae, critic=CriticSettings(kind=kind), logprob_chunk=64))
  rounded = [round(x / found.trained, 1) for x in (found.start, found.most, found.end)]
  assert rounded == [3 * models, 3 * models + 1, 3 * models]  # one gradient at a time


def test_parameters_that_were_handed_over_are_the_state_and_a_second_start_says_so():
  learner = small.learner()
  want = jax.tree.map(np.asarray, learner.params)
  state = learner.init(0, keep=False)
  assert small.distance(state.params, want) == 0
  assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(learner.params))
  with pytest.raises(ValueError, match="handed over"):
    learner.init(0)
  state, metrics = small.update(learner, state, small.blocks(small.items()))  # the names are still known, for messages
  assert metrics["optimizer_step"] == 1


def test_a_cpu_holds_few_logits_whatever_the_chunk():
  config = dataclasses.replace(small.CONFIG, vocab_size=2**15)
  graphdef, params = nnx.split(Decoder(config, rngs=nnx.Rngs(0)))
  (block,) = small.blocks(small.items(100), rows=1, lengths=(1024,))
  loss = lambda params, chunk: forward.scores(nnx.merge(graphdef, params), block, temperature=1.0, chunk=chunk)[0].sum()
  programs = [jax.jit(jax.grad(loss), static_argnums=1).lower(params, chunk).compile() for chunk in (1024, 64)]
  found = [program.memory_analysis().temp_size_in_bytes for program in programs]
  assert 1024 * 2**15 * 4 > found[0] > found[1]  # less than the logits of 1,024 tokens; 64 are fewer than it takes
