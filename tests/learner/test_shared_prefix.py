"""A prompt computed once for its group gives the same loss and gradient."""

import types

import jax
import numpy as np
import pytest
import small_learner as small

from ragrl_jax.learner import blocks as blocks_lib
from ragrl_jax.learner import packing
from ragrl_jax.learner.settings import AdvantageSettings, Settings
from ragrl_jax.run import progress

# Sequence means, entropies and a temperature, so that everything that reads segments or positions is used.
SETTINGS = Settings(aggregation="seq_mean_token_mean", entropy_coef=0.1, temperature=0.8, logprob_chunk=64)


def groups():
  """Two groups of three samples: prompts of 6 and 5 tokens, then turns of the model and of the environment."""
  draw = np.random.default_rng(2)
  ids = lambda n: draw.integers(0, small.CONFIG.vocab_size, n)
  made = []
  for group, length in enumerate((6, 5)):
    prompt = ids(length)
    for sample in range(3):
      more = int(draw.integers(2, 6))
      tokens = np.concatenate([prompt, ids(more)]).astype(np.int32)
      mask = np.arange(len(tokens)) >= length
      mask[length + 1] = more < 4  # the longer ones have an observation in the middle
      made.append(
        packing.Item(
          tokens,
          mask,
          np.full(len(tokens), draw.normal(), np.float32),
          np.where(mask, -3.0, 0.0).astype(np.float32),
          group,
          f"{group}.{sample}",
        )
      )
  return made


@pytest.fixture(scope="module")
def learner():
  return small.learner(SETTINGS)


def test_loss_and_gradient_stay_the_same(learner):
  items = groups()
  together = packing.pack_items(items, rows=2, lengths=(24,), share_prefix=True).blocks
  assert len(together) == 1 and (together[0].prefix_ids != together[0].segment_ids).any()
  want_loss, want = small.gradient(learner, small.padded(items, rows=2))  # one sequence per row
  got_loss, got = small.gradient(learner, together)
  assert abs(got_loss - want_loss) < 1e-6
  for mine, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    assert np.linalg.norm(mine - theirs) <= 1e-5 * np.linalg.norm(theirs)


def test_counts(learner):
  items = groups()
  together, apart = (
    blocks_lib.count(packing.pack_items(items, rows=2, lengths=(24,), share_prefix=share).blocks, SETTINGS)
    for share in (True, False)
  )
  for name in ("tokens", "sequences", "weight"):
    assert together[name] == apart[name]
  # Each group's prompt, without its last token, occurs once and not three times.
  assert apart["packed_tokens"] - together["packed_tokens"] == 2 * (5 + 4)


def test_advantages_stay_the_same():
  """A KL penalty in the reward is read from the rows, where a sample has no tokens of its own for the shared prompt."""
  settings = Settings(logprob_chunk=64, kl="k1", kl_coef=0.5, kl_in="reward", advantage=AdvantageSettings(std="none"))
  other = jax.tree.map(lambda x: x + 0.02, small.learner().params)
  learner, found = small.learner(settings, reference=other), []
  items = [small.earning(item, number) for number, item in enumerate(groups())]
  for shared in (False, True):
    pack = lambda parts, shared=shared: [
      packing.pack_items(part, rows=2, lengths=(24,), share_prefix=shared) for part in parts
    ]
    ready = learner.prepare(learner.init(0), [items], pack)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(ready.minibatches))  # no step copies them again
    found.append(np.concatenate([item.advantages for item in ready.items]))
    placed = np.concatenate([np.asarray(block.advantages)[block.loss_mask] for block in ready.minibatches[0]])
    np.testing.assert_array_equal(np.sort(placed), np.sort(found[-1][found[-1] != 0]))
  np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)
  assert np.abs(found[0]).max() > 1


def test_an_update_and_empty_blocks_use_the_same_program(learner):
  blocks = packing.pack_items(groups(), rows=2, lengths=(24,), share_prefix=True).blocks
  filler = jax.tree.map(np.zeros_like, blocks[0])
  state, metrics = small.update(learner, learner.init(0), [*blocks, filler])
  assert metrics["tokens"] == blocks[0].loss_mask.sum() and np.isfinite(metrics["loss"])


def test_the_learners_speed_counts_a_shared_prompt_once():
  learner = small.learner(SETTINGS)
  seconds = {"seconds/step": 3.0, "seconds/rollout": 0.5, "seconds/scoring": 0.5, "seconds/update": 2.0}
  episodes, found = [types.SimpleNamespace(num_tokens=len(item.tokens)) for item in groups()], []
  for shared in (False, True):
    packed = packing.pack_items(groups(), rows=4, lengths=(40,), share_prefix=shared)
    metrics = small.update(learner, learner.init(0), packed.blocks)[1] | seconds
    speed = progress.throughput(metrics, learner, episodes)
    assert speed["learner_flops_per_second"] * 2.5 == metrics["flops"]
    assert speed["tokens_per_second"] * 3.0 == sum(episode.num_tokens for episode in episodes)
    found.append(metrics["flops"])
  assert found[1] < 0.8 * found[0]
