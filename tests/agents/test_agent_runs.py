"""A run whose episodes are a program's: it trains on every conversation, and resumes exactly."""

import pytest
import tiny_world

from ragrl_jax.jobs import train
from ragrl_jax.store import episodes as episodes_lib


@pytest.mark.long  # two runs
def test_a_run_resumes_exactly_with_rewritten_histories(world, tmp_path):
  config = tiny_world.config(world)
  config.recipe, config.preset = "agent", "paper"
  with config.unlocked():
    config.switches = dict(program="agent_programs:varied", reward="program", rewritten="split", search=True)
  rows = list(train.train(config, tmp_path / "whole"))
  assert [row["step"] for row in rows] == [1, 2, 3]
  # The sampler's log-probabilities are the learner's, in the rows of rewritten histories, too.
  assert all(row["mismatch"] < 1e-4 and row["failed_share"] == 0 and row["measure/searches"] == 1 for row in rows)
  assert rows[0]["measure/requests"] == 3 and 0 < rows[0]["measure/rewrites"] < 1 and rows[0]["term/answer"] > 0
  logged = episodes_lib.read_episodes(episodes_lib.steps(tmp_path / "whole")[1])
  conversations = [len(episodes_lib.episode_of(one).conversations) for one in logged]
  assert set(conversations) == {1, 2} and rows[0]["sequences"] == sum(conversations)
  # All rows of an episode have its advantage; the groups' are centred over episodes.
  for group in {one["prompt_index"] for one in logged}:
    own = [one["advantage"] for one in logged if one["prompt_index"] == group]
    assert sum(own) == pytest.approx(0, abs=1e-5)

  for row in train.train(config, tmp_path / "parts"):
    if row["step"] == 2:
      break
  assert [row["step"] for row in train.train(config, tmp_path / "parts")] == [3]
  tiny_world.assert_same(tmp_path / "whole", tmp_path / "parts")
