"""The rewards of a run: a recipe's terms, and the penalty for episodes with too many tokens."""

import concurrent.futures
import dataclasses
import threading

import numpy as np
import pytest

from ragrl_jax import recipes
from ragrl_jax.learner import advantages
from ragrl_jax.learner.settings import AdvantageSettings
from ragrl_jax.run import rewards
from ragrl_jax.store import episodes
from ragrl_jax.structs import ENVIRONMENT, MODEL, Episode, Example, Passage, Segment

ARENA = recipes.get("arena")
EXAMPLE = Example("1", "Who?", ("Ann",), (Passage("a", "A", "Ann."), Passage("b", "B", "Bob.")), supporting=(0,))
said = lambda text: Episode.from_text(ARENA, EXAMPLE, [(MODEL, text)])


def scored(*episodes, limit=10):
  penalty = rewards.overlong(limit=limit, buffer=4)
  return rewards.Scorer(penalty).score(ARENA, [EXAMPLE] * len(episodes), episodes, 1)


def test_overlong_episodes_are_penalised_and_unscorable_ones_stay_unscorable():
  # Nothing is right, so the reward is the penalty: 0 up to 10 - 4 tokens, then 1 / 4 per token, 1 from 10 tokens on.
  for tokens, penalty in ((6, 0.0), (7, -0.25), (8, -0.5), (10, -1.0), (30, -1.0)):
    (one,) = scored(said("x" * tokens))
    assert (one.reward, one.terms["overlong"], one.weights["overlong"]) == (penalty, penalty, 1.0)
    assert (one.episode.num_model_tokens, one.turns) == (tokens, (penalty,))  # the last turn gets the penalty
  (one,) = scored(said("x" * 30), limit=0)
  assert one.reward == 0.0 and "overlong" not in one.terms  # without a limit there is no penalty
  (one,) = scored(dataclasses.replace(said("x" * 30), ended="failed"))
  assert one.reward is None and set(one.terms.values()) == {None} and not one.trains


def test_an_episode_without_a_sampled_token_is_not_trained_on():
  (one,) = scored(Episode.from_text(ARENA, EXAMPLE, [(ENVIRONMENT, "no room")]))
  assert one.turns == () and not one.trains and one.reward == pytest.approx(0.0)
  metrics = rewards.summarise([one])
  assert metrics["reward"] == 0.0 and metrics["response_tokens"] == 0


def test_episodes_that_ran_out_of_tokens_are_compared_and_not_trained():
  ends = ("answer", "length", "budget", "searches")
  group = scored(*(dataclasses.replace(said("x"), ended=why) for why in ends))
  assert [item.trained for item in rewards.items(group, mask_truncated=True)] == [True, False, False, True]
  assert all(item.trained for item in rewards.items(group))


def conversation(sample, *turns):
  """An episode of (tokens, reward) turns, and its score."""
  segments = [Segment(ENVIRONMENT, (1,), "?")]
  for size, _ in turns:
    segments += [Segment(MODEL, (2,) * size, "!", (0.0,) * size), Segment(ENVIRONMENT, (9,), ".")]
  earned = tuple(reward for _, reward in turns)
  episode = Episode(tuple(segments), sample=sample, ended="answer")
  return rewards.Scored(EXAMPLE, episode, {}, {}, sum(earned), 1.0, earned)


def test_the_log_has_the_advantage_of_each_turn_or_token(tmp_path):
  """A turn without tokens has none; an episode that does not train has none at all."""
  failed = rewards.Scored(EXAMPLE, Episode((), ended="failed"), {}, {}, None, None)
  group = [conversation(0, (2, 1.0), (0, 0.0), (1, 2.0)), failed, conversation(1, (3, 1.0))]

  def logged(step, settings, values=None):
    items, *_ = advantages.assign(rewards.items(group), settings, values=values)
    rewards.write(tmp_path, step, rewards.with_advantages(group, items), None)
    rows = episodes.read_episodes(episodes.steps(tmp_path)[step])
    return [([s["advantages"] for s in row["segments"] if "advantages" in s], row["advantage"]) for row in rows]

  # Returns to go of the first: 3 and 2; the second's only return, 1, also counts for the second turn.
  by_turn = logged(1, AdvantageSettings(credit="turn", std="none"))
  assert by_turn == [([1.0, [], 0.5], pytest.approx(5 / 6)), ([], None), ([-1.0], -1.0)]
  # GAE with λ = 0 and values of 0: the reward of each token, at the last one of its turn.
  values = [np.zeros(len(item.tokens), np.float32) for item in rewards.items(group)]
  by_token = logged(2, AdvantageSettings(kind="gae", lam=0.0, gamma=1.0, whiten=False), values)
  assert by_token == [([[0.0, 1.0], [], 2.0], 1.0), ([], None), ([[0.0, 0.0, 1.0]], pytest.approx(1 / 3))]


def test_an_episode_is_measured_in_a_thread_when_it_ends():
  where, failing = [], []

  def score(example, episode):
    where.append(threading.current_thread())
    if episode.prompt_index in failing:
      raise KeyError("a mistake in a reward")
    return ARENA.score(example, episode)

  recipe = dataclasses.replace(ARENA, score=score)
  made = [dataclasses.replace(said(f"text {i}"), prompt_index=i) for i in range(2)]
  scorer = rewards.Scorer(rewards.overlong(limit=8, buffer=4))
  with concurrent.futures.ThreadPoolExecutor(1) as thread:
    for step in (1, 2):
      scorer.begin(thread, recipe, EXAMPLE, made[0])
      assert scorer.score(recipe, [EXAMPLE], made[:1], step) == scored(made[0], limit=8)
      assert len(where) == step and threading.current_thread() not in where
    failing.append(1)
    scorer.begin(thread, recipe, EXAMPLE, made[1])
    with pytest.raises(KeyError, match="a mistake"):
      scorer.score(recipe, [EXAMPLE], made[1:], 3)


def test_what_the_filter_measured_is_not_scored_again():
  """An episode that was restored, or scored by another recipe, is."""
  asked, judged = [], []
  counting = dict(
    score=lambda example, episode: asked.append(episode.prompt_index) or ARENA.score(example, episode),
    outcome=lambda example, episode: judged.append(episode.prompt_index) or ARENA.outcome(example, episode),
    weights=lambda step: {name: step * weight for name, weight in ARENA.weights(step).items()},
  )
  recipe = dataclasses.replace(ARENA, **counting)
  drawn = [dataclasses.replace(said(f"text {i}"), prompt_index=i) for i in range(4)]
  drawn[1] = dataclasses.replace(drawn[1], ended="failed")
  scorer = rewards.Scorer(rewards.overlong(limit=8, buffer=4), "total")
  assert scorer.measure(recipe, [EXAMPLE] * 4, drawn, 1)[:2] == [scored(drawn[0], limit=8)[0].reward, None]
  assert asked == judged == [0, 2, 3]
  # Prompt 0 was discarded; 1 and 2 are trained at step 1, 3 at step 2 with that step's weights.
  first, later = scorer.score(recipe, [EXAMPLE] * 2, drawn[1:3], 1), scorer.score(recipe, [EXAMPLE], drawn[3:], 2)
  assert asked == judged == [0, 2, 3]
  fresh = rewards.Scorer(rewards.overlong(limit=8, buffer=4))
  assert first == fresh.score(recipe, [EXAMPLE] * 2, drawn[1:3], 1) and asked[3:] == [2]
  assert later == fresh.score(recipe, [EXAMPLE], drawn[3:], 2) and asked[4:] == [3]
  for episode, by in ((drawn[3], ARENA), (dataclasses.replace(drawn[3]), recipe)):
    scorer.measure(recipe, [EXAMPLE], drawn[3:], 2)
    before = len(asked)
    scorer.score(by, [EXAMPLE], [episode], 2)
    assert len(asked) - before == (by is recipe)
