"""The signs of episodes: which tokens are thought, query and answer, and what repeats."""

import dataclasses

import pytest

from ragrl_jax import recipes
from ragrl_jax.prompting.tokenizer import ByteTokenizer
from ragrl_jax.run import rewards, signs
from ragrl_jax.store import episodes
from ragrl_jax.structs import ENVIRONMENT, MODEL, Episode, Example

RECIPE, TOKENIZER = recipes.get("search_r1"), ByteTokenizer()
EXAMPLE = Example("1", "Who?", ("Ann",))
RESULT = (ENVIRONMENT, "\n\n<information>Doc 1(Title: A) Ann.\n</information>\n\n")


def played(*turns, prompt=0):
  episode = Episode.from_text(RECIPE, EXAMPLE, turns, tokenizer=TOKENIZER)
  return dataclasses.replace(episode, prompt_index=prompt)


def of(*made):
  return [signs.written(RECIPE.parser, TOKENIZER, one) | own for one, own in zip(made, signs.asked(made))]


def test_the_signs_of_an_episode():
  ask = (MODEL, "<think>who was it</think><search>who</search>")
  (found,) = of(played(ask, RESULT, ask, RESULT, (MODEL, "<think>it was Ann</think><answer> Ann </answer>")))
  assert (found["tokens/thought"], found["tokens/query"], found["tokens/answer"]) == (2 * 10 + 10 + 2, 6, 3)
  assert found["queries/repeated"] == 1 / 2 and found["queries/shared"] == 0 and found["broken_tags"] == 0
  assert found["answered"] == 1 and of(played(ask, RESULT, ask))[0]["answered"] == 0
  assert found["searches"] == 2 and "repeats/within" not in found  # no thought of four words
  assert of(played((MODEL, "<answer>Ann</answer>")))[0]["tokens/thought"] == 0  # so a thought that dies lowers the mean


def test_entropy_is_the_mean_surprise_of_a_kind_of_tokens():
  episode = played((MODEL, "<think>ab</think><answer>c</answer>"))
  (turn,) = [segment for segment in episode.segments if segment.owner == MODEL]
  surprise = [9.0] * len(turn.ids)
  surprise[7:9], surprise[25] = [1.0, 1.0], 3.0  # a, b and c
  said = dataclasses.replace(turn, logprobs=tuple(-nats for nats in surprise))
  segments = tuple(said if one is turn else one for one in episode.segments)
  (found,) = of(dataclasses.replace(episode, segments=segments))
  assert (found["entropy/thought"], found["entropy/answer"]) == (1.0, 3.0)
  assert found["entropy"] == pytest.approx((32 * 9.0 + 2 * 1.0 + 3.0) / 35)


def test_a_query_is_shared_only_between_questions():
  ask = lambda query, prompt: played((MODEL, f"<search>{query}</search>"), RESULT, prompt=prompt)
  found = of(ask("Who", 0), ask("who ", 0), ask("where", 1))
  assert [one["queries/shared"] for one in found] == [0, 0, 0]
  found = of(ask("Who", 0), ask("why", 0), ask("who", 1))
  assert [one["queries/shared"] for one in found] == [1, 0, 1]


def test_a_thought_that_the_prompt_opens_is_not_broken():
  episode = played((MODEL, "a</think><search>b</search>"), RESULT, (MODEL, "yes</think><answer>c</answer>"))
  opened = [
    dataclasses.replace(one, text=one.text + "<think>\n" * (one.owner == ENVIRONMENT)) for one in episode.segments
  ]
  for opens, broken in ((0, 1), (1, 1), (3, 0)):  # segments that open a thought: none, the prompt, the results too
    segments = (*opened[:opens], *episode.segments[opens:])
    assert of(dataclasses.replace(episode, segments=segments))[0]["broken_tags"] == broken
  cut_off = (opened[0], *played((MODEL, "perhaps <answer>c</answer>")).segments[1:])
  assert of(dataclasses.replace(episode, segments=cut_off))[0]["answered"] == 0


def test_signs_are_metrics_and_stand_in_the_log(tmp_path):
  said = [played((MODEL, f"<think>{thought}</think><answer>Ann</answer>")) for thought in ("a b c d", "a a a a a a a")]
  scorer = rewards.Scorer(tokenizer=TOKENIZER)
  scored = scorer.score(RECIPE, [EXAMPLE] * 2, said, 1)
  metrics = rewards.summarise(scored)
  assert metrics["repeats/within"] == pytest.approx((0 + 3 / 4) / 2) and metrics["tokens/answer"] == 3
  assert metrics["noise/repeats/within"] == pytest.approx((3 / 4) / 2) and metrics["noise/tokens/answer"] == 0
  assert "noise/entropy" in metrics and "entropy" not in metrics  # the learner has its own
  rewards.write(tmp_path, 1, scored, TOKENIZER)
  rows = episodes.read_episodes(episodes.steps(tmp_path)[1])
  assert [row["signs"]["repeats/within"] for row in rows] == [0.0, 0.75]
  assert set(rows[0]["signs"]) >= {f"unearned/{name}" for name in scored[0].unearned}
