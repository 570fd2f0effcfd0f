"""The contract check that users call on their own recipes: our recipes pass it, and it names each broken rule."""

import asyncio
import dataclasses
import itertools

import pytest

from ragrl_jax import recipes, structs, testing
from ragrl_jax.structs import Example, Passage
from ragrl_jax.testing import scripted

FACT = "Its capital is Paris."
EXAMPLE = Example(
  "q", "What is the capital of France?", ("Paris",), (Passage("a", "France", FACT),), supporting=(0,), hops=1,
  evidence=((0, FACT),),
)  # fmt: skip
TEXTS = ("<think> x </think><answer> Paris </answer>", "Paris", "<answer>")
RECIPE = recipes.get("search_r1")


async def endless(example, policy, tools):
  talk = policy.start([dict(role="user", content=example.question)])
  while True:
    await talk.generate(stop=())


async def other_stop(example, policy, tools):
  talk = policy.start([dict(role="user", content=example.question)])
  await talk.generate(stop=("</other>",))
  return talk.end()


def scoring(value):
  """A score that only failed episodes lack."""
  return lambda example, episode: dict(answer=None if episode.failure else float(value(episode)))


calls = itertools.count(1)
counting, of_ids = scoring(lambda episode: next(calls)), scoring(lambda episode: len(episode.segments[0].ids))
of_all_text = scoring(lambda episode: "Paris" in "".join(s.text for s in episode.segments[1:]))


@pytest.mark.parametrize("changed, says", [
  (dict(play=lambda example, policy, tools: None), "play must be `async def`"),
  (dict(play=endless), "does not end within 64 turns"),
  (dict(play=other_stop), "stops at .*</other>.*, which recipe.stops lacks"), (dict(stops=("",)), "non-empty strings"),
  (dict(weights=lambda step: dict(other=1.0)), "score names .*answer.*, weights names .*other"),
  (dict(score=lambda example, episode: dict(answer=float("nan"))), "term answer is nan"),
  (dict(score=lambda example, episode: dict(answer=0.0)), "a failed episode must score None"),
  (dict(outcome=lambda example, episode: 0.5), "outcome is 0.5"), (dict(score=counting), "differs from call to call"),
  (dict(score=of_ids), "depends on the token ids"),
  (dict(score=of_all_text), "text of the environment changed the score"),
  (dict(switches=dict(a=structs)), "JSON serializable"),
])  # fmt: skip
def test_a_broken_rule_is_named(changed, says):
  with pytest.raises((AssertionError, TypeError), match=says):
    testing.check_recipe(dataclasses.replace(RECIPE, **changed), EXAMPLE, TEXTS)


def test_a_recipe_is_checked_beside_a_running_event_loop():
  async def cell():  # as in a notebook, whose thread already has an event loop
    return scripted.run(asyncio.sleep(0, 42))

  assert asyncio.run(cell()) == 42
