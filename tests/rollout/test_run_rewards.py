"""The rewards of a run: a recipe's terms, and the penalty for episodes with too many tokens."""

import dataclasses

import pytest

from ragrl_jax import recipes
from ragrl_jax.run import rewards
from ragrl_jax.structs import ENVIRONMENT, MODEL, Episode, Example, Passage

ARENA = recipes.get("arena")
EXAMPLE = Example("1", "Who?", ("Ann",), (Passage("a", "A", "Ann."), Passage("b", "B", "Bob.")), supporting=(0,))


def said(text):
  return Episode.from_text(ARENA, EXAMPLE, [(MODEL, text)])


def scored(*episodes, limit=10):
  penalty = rewards.overlong(limit=limit, buffer=4)
  return rewards.score(ARENA, [EXAMPLE] * len(episodes), episodes, 1, penalty=penalty)


def test_overlong_episodes_are_penalised():
  # Nothing is right, so the reward is the penalty: 0 up to 10 - 4 tokens, then 1 / 4 per token, 1 from 10 tokens on.
  for tokens, penalty in ((6, 0.0), (7, -0.25), (8, -0.5), (10, -1.0), (30, -1.0)):
    (one,) = scored(said("x" * tokens))
    assert one.episode.num_model_tokens == tokens
    assert (one.reward, one.terms["overlong"], one.weights["overlong"]) == (penalty, penalty, 1.0)
    assert one.turns == (penalty,)  # the last turn gets the penalty
  (one,) = scored(said("x" * 30), limit=0)
  assert one.reward == 0.0 and "overlong" not in one.terms  # without a limit there is no penalty


def test_the_penalty_does_not_make_an_unscorable_episode_scorable():
  failed = dataclasses.replace(said("x" * 30), ended="failed")
  (one,) = scored(failed)
  assert one.reward is None and set(one.terms.values()) == {None} and not one.trains


def test_an_episode_without_a_sampled_token_is_not_trained_on():
  (one,) = scored(Episode.from_text(ARENA, EXAMPLE, [(ENVIRONMENT, "no room")]))
  assert one.turns == () and not one.trains and one.reward == pytest.approx(0.0)
  metrics = rewards.summarise([one])
  assert metrics["reward"] == 0.0 and metrics["response_tokens"] == 0
