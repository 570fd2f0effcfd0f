"""The training loop on a tiny world: it runs, and it resumes exactly."""

import collections
import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_world

from ragrl_jax import config as config_lib
from ragrl_jax.data import readers, stream, writers
from ragrl_jax.jobs import sft, train
from ragrl_jax.rollout import collect
from ragrl_jax.run import player as player_lib, prepared
from ragrl_jax.run.prepared import prepare
from ragrl_jax.store import checkpoint, episodes as episodes_lib

ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.slow  # three runs and their programs
def test_warm_start_then_rl_then_resume(world, tmp_path):
  config = tiny_world.config(world, variant="sft")
  losses = [m["loss"] for m in sft.sft(config, tmp_path / "warm")]
  # It falls by 0.09 to 0.11 (three seeds). Threads and instruction sets change the fifth digit.
  assert losses[-1] < losses[0] - 0.03

  config = tiny_world.config(world)
  config.model.path = str(tmp_path / "warm" / "model")
  whole = tiny_world.resumed(config, tmp_path)
  assert [m["step"] for m in whole] == [1, 2, 3]
  for name in ("reward", "outcome", "searches", "loss", "term/answer", "seconds/rollout", "bottleneck", "mismatch"):
    assert name in whole[0], name
  assert whole[0]["mismatch"] < 1e-4  # the sampler's log-probabilities equal the learner's

  rows = [json.loads(line) for line in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()]
  assert [row["step"] for row in rows] == [1, 2, 3]

  logged = episodes_lib.read_episodes(episodes_lib.steps(tmp_path / "whole")[1])
  assert len(logged) == 8 and {s["owner"] for s in logged[0]["segments"]} == {"model", "environment"}

  # The saved model is a folder that can play.
  config.model.path = str(tmp_path / "whole" / "model")
  player = player_lib.build(prepare(config))
  assert player.config.d_model == 16


@pytest.mark.long  # two runs
def test_search_r1_trains_by_ppo_and_resumes_exactly(world, tmp_path):
  """The settings of configs/search_r1.py:ppo on the tiny world."""
  rules = config_lib.load(ROOT / "configs" / "search_r1.py", "ppo")
  config = tiny_world.config(world)
  config.preset = rules.preset
  for name in ("advantage", "loss", "critic"):
    config[name].update(rules[name])
  config.critic.update(dict(learning_rate=1e-2, warmup_steps=1))
  config.rollout.update(dict(prompts_per_step=6, group_size=1))
  rows = tiny_world.resumed(config, tmp_path)
  assert [row["optimizer_step"] for row in rows] == [2.0, 4.0, 6.0]  # two mini-batches a step
  assert all(row["value_loss"] >= 0 and row["explained_variance"] <= 1 and row["critic_skipped"] == 0 for row in rows)
  assert rows[-1]["kl"] != 0 and rows[0]["kl_coef"] == pytest.approx(0.001)
  logged = next(iter(episodes_lib.read_episodes(episodes_lib.steps(tmp_path / "whole")[3])))
  assert isinstance(logged["advantage"], float)


@pytest.mark.long  # two runs
def test_computing_a_prompt_once_for_its_samples_changes_nothing(world, tmp_path, rewarding):
  config = tiny_world.config(world)
  config.steps, config.learner.row_lengths, found = 1, (640,), []
  for shared in (False, True):
    config.learner.share_prompts = shared
    (row,) = train.train(config, tmp_path / str(shared))
    logged = episodes_lib.read_episodes(episodes_lib.steps(tmp_path / str(shared))[1])
    found.append((row, [episode["advantage"] for episode in logged]))
  (alone, one), (together, two) = found
  assert one == two and any(one)
  for name in ("loss", "entropy", "grad_norm", "tokens", "sequences", "mismatch"):
    assert together[name] == pytest.approx(alone[name], rel=1e-4, abs=1e-6), name
  assert together["packed_tokens"] < alone["packed_tokens"]


@pytest.fixture
def rewarding(monkeypatch):
  """Rewards that a model without training can earn. The value counts how often each played episode is scored."""
  recipe, counted = prepared.recipe, collections.Counter()

  def counting(config):
    made = tiny_world.rewarding(recipe(config))
    count = lambda episode: counted.update([(episode.prompt_index, episode.sample)] * bool(episode.num_model_tokens))
    return dataclasses.replace(made, score=lambda asked, episode: count(episode) or made.score(asked, episode))

  monkeypatch.setattr(prepared, "recipe", counting)
  return counted


@pytest.mark.slow  # three runs
def test_dynamic_sampling_fills_its_steps_and_resumes_with_kept_groups(world, tmp_path, rewarding):
  config = tiny_world.config(world)
  config.steps, config.checkpoint.every, config.rollout.prompts_per_step = 4, 4, 3
  config.rollout.filter.update(dict(metric="outcome", surplus="keep", max_draws=8))
  whole = list(train.train(config, tmp_path / "whole"))
  assert set(rewarding.values()) == {1}  # by the filter, and not again when they are trained on
  for metrics in whole:
    logged = episodes_lib.read_episodes(episodes_lib.steps(tmp_path / "whole")[metrics["step"]])
    groups = [row["prompt_index"] for row in logged]
    assert len(logged) == 12 and groups == sorted(groups) and metrics["groups/missing"] == 0
    for group in set(groups):
      assert {row["outcome"] for row in logged if row["prompt_index"] == group} == {0, 1}
  total = lambda name: sum(m[name] for m in whole)
  assert total("groups/draws") > 4 and total("groups/discarded_share") > 0 and total("groups/stale") > 0

  # Stopped at a step that kept groups for the next one, and resumed.
  config.checkpoint.every = 1
  stop = next(m["step"] for m in whole[:-1] if m["groups/surplus"])
  for metrics in train.train(config, tmp_path / "parts"):
    if metrics["step"] == stop:
      break
  host = checkpoint.Checkpoints(tmp_path / "parts" / "checkpoints", keep=9).host()
  assert host["group_sampler"]["surplus"]
  assert host["group_sampler"]["cursor"] == sum(m["groups/drawn"] for m in whole[:stop])
  rest = list(train.train(config, tmp_path / "parts"))
  assert tiny_world.untimed(rest) == tiny_world.untimed(whole[stop:])
  tiny_world.assert_same(tmp_path / "whole", tmp_path / "parts")

  # Nothing has a spread: the step reports it, and the parameters stay as they are.
  config.rollout.filter.update(dict(tolerance=2.0, max_draws=2))
  config.steps = 1
  (metrics,) = train.train(config, tmp_path / "none")
  assert metrics["groups/trained"] == 0 and metrics["groups/drawn"] == 6
  assert "none of the 6" in metrics["warning/no_groups"]
  assert metrics["tokens"] == 0 and tiny_world.arrays(tmp_path / "none")[1]["['step']"] == 0


@pytest.mark.slow  # compiles programs for its own shapes
def test_a_prompt_that_fills_the_context_trains_nothing_and_breaks_nothing(world, tmp_path):
  config = tiny_world.config(world)
  config.steps, config.rollout.context, config.switches.instructions = 1, 60, "short"
  asked = list(readers.read_examples(config.data.train))
  drawn = {at for _, at in stream.Stream(len(asked), seed=config.seed).draw(0, config.rollout.prompts_per_step)}
  spare = next(at for at in range(len(asked)) if at not in drawn)
  asked[spare] = dataclasses.replace(asked[spare], question="?")  # one that fits: a set of which none does is refused
  config.data.train = str(tmp_path / "asked.jsonl")
  writers.write_examples(tmp_path / "asked.jsonl", asked)
  (metrics,) = train.train(config, tmp_path / "run")
  assert metrics["ended/budget"] == 1.0 and metrics["tokens"] == 0 and metrics["response_tokens"] == 0


@pytest.mark.slow  # programs for one device and for four
def test_four_devices_take_the_steps_of_one(world, tmp_path):
  one = tiny_world.config(world)
  one.steps, one.optimizer.learning_rate = 2, 1e-3
  four = one.copy_and_resolve_references()
  four.mesh.update(dict(data=2, fsdp=2))
  alone, together = (list(train.train(c, tmp_path / name)) for name, c in (("one", one), ("four", four)))
  for a, b in zip(alone, together, strict=True):
    for name in ("loss", "reward", "grad_norm", "entropy", "tokens"):
      np.testing.assert_allclose(a[name], b[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.slow  # three runs
def test_a_step_sampled_ahead_equals_its_weights_samples_and_is_restored_on_resume(world, tmp_path, rewarding):
  config = tiny_world.config(world)
  config.steps, config.checkpoint.every, config.rollout.ahead = 4, 4, 1
  config.rollout.speculate = 3  # where a chunk ends, and who else draws, moves no draft
  seen = []

  def measure(step, player, params):
    seen.append(jax.tree.map(np.array, params))
    return {}

  whole = list(train.train(config, tmp_path / "whole", evaluate=measure))[1:]
  assert [m["staleness"] for m in whole] == [0, 1, 0, 1] and [m["groups/stale"] for m in whole] == [0, 2, 0, 2]
  assert whole[1]["mismatch"] > 10 * whole[0]["mismatch"]  # the policy has changed since
  # Two steps' episodes are sampled together.
  assert [m["engine/episodes"] for m in whole] == [16, 0, 16, 0]
  player = player_lib.build(prepare(config))
  for step in (1, 2, 3, 4):
    logged = episodes_lib.read_episodes(episodes_lib.steps(tmp_path / "whole")[step])
    version = (step - 1) // 2 * 2  # steps 1 and 2 by the weights of step 0, 3 and 4 by those of step 2
    player.engine.load(jax.tree.map(jnp.asarray, seen[version]), version=version)
    draws = stream.Stream(16, seed=config.seed).draw(2 * (step - 1), 2)
    examples = list(readers.read_examples(config.data.train))
    asked = [collect.Request(examples[at], index, sample) for index, at in draws for sample in range(4)]
    played, bare = player.rollout.run(asked, step=step), lambda episode: dataclasses.replace(episode, facts={})
    assert [*map(bare, played)] == [bare(episodes_lib.episode_of(row)) for row in logged]

  config.checkpoint.every = 1
  for metrics in train.train(config, tmp_path / "parts"):
    if metrics["step"] == 1:  # step 2 has been sampled
      break
  rest = list(train.train(config, tmp_path / "parts"))
  assert tiny_world.untimed(rest) == tiny_world.untimed(whole[1:])
  tiny_world.assert_same(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.slow  # compiles two runs' programs
@pytest.mark.parametrize("devices, critic", [(1, "none"), pytest.param(2, "own", marks=pytest.mark.long)])
def test_a_step_moves_no_array_between_host_and_devices_unasked(world, tmp_path, devices, critic):
  """JAX_TRANSFER_GUARD=disallow holds through a step, from the weights' way to the engine to the step's metrics."""
  config, engines = tiny_world.config(world), []
  config.steps, config.mesh.data, config.critic.kind = 1, devices, critic
  if critic != "none":
    config.advantage.kind = "gae"
    config.loss.update(kl="k1", kl_in="reward", kl_coef=0.1)

  def guarded(step, player, params):  # called before step 1, and after it
    jax.config.update("jax_transfer_guard", "allow" if step else "disallow")
    if step:
      player.engine.load(params, version=step)
    engines.append(player.engine)
    return {}

  try:
    rows = list(train.train(config, tmp_path / "run", evaluate=guarded))
  finally:
    jax.config.update("jax_transfer_guard", None)
  assert rows[-1]["step"] == 1 and engines[-1].weights is None  # released again before the model was saved
