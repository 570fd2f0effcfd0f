"""A state restored from a checkpoint trains on bit for bit."""

import jax
import numpy as np
import pytest
import small_learner as small

from ragrl_jax.learner.settings import OptimizerSettings, Settings
from ragrl_jax.store import checkpoint

SETTINGS = Settings(kl="k2", kl_coef=0.1, logprob_chunk=64)
batches = lambda step: small.blocks(small.items(12, seed=step))


@pytest.mark.parametrize("kind", ["adamw", pytest.param("muon", marks=pytest.mark.long)])
def test_resume_is_exact(tmp_path, kind):
  optimizer = OptimizerSettings(kind=kind, learning_rate=1e-2, warmup_steps=2, schedule="cosine", total_steps=6)
  learner = small.learner(SETTINGS, optimizer)
  checkpoints = checkpoint.Checkpoints(tmp_path, keep=1)
  state = learner.init(0)
  for step in range(4):
    state, _ = small.update(learner, state, batches(step))
    if step == 1:
      checkpoints.save(2, state, dict(step=2))
  again = small.learner(SETTINGS, optimizer)  # as a new process would make it
  resumed, host = checkpoint.Checkpoints(tmp_path, keep=1).restore(again.init(1))
  for step in range(host["step"], 4):
    resumed, metrics = small.update(again, resumed, batches(step))
  jax.tree.map(np.testing.assert_array_equal, state, resumed)
  rate = 1e-2 * (0.1 + 0.9 * (1 + 0.5**0.5) / 2)  # of the fourth step, a quarter of the way from the peak to a tenth
  assert (metrics["optimizer_step"], metrics["learning_rate"]) == (4, pytest.approx(rate))
