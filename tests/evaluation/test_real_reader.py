"""The tiny reader's lessons: each recipe finds a search, an answer and its form in them."""

import dataclasses

import real_reader

from ragrl_jax import config as config_lib, recipes, structs
from ragrl_jax.recipes import parts

PASSAGES = (
  structs.Passage("a", "Norway", "The capital of Norway is the town of Oslo. It lies at a fjord."),
  structs.Passage("b", "Bergen", "Bergen is a town in the west."),
)
EXAMPLE = structs.Example("q", "What is the capital of Norway?", ("Oslo",), PASSAGES, supporting=(0,))
# What these are taught is no answer, but what comes before it.
WITHOUT = ("lear:filter", "lear:thoughts", "untrained:adaptive", "untrained:recomp", "untrained:filco")


def test_every_lesson_has_the_recipes_form():
  assert len(real_reader.TAUGHT) > 35
  for name in real_reader.TAUGHT:
    config = config_lib.load(name)
    recipe = recipes.get(config.recipe, config.preset, **config.switches.to_dict())
    lesson = real_reader.with_turns(recipe, EXAMPLE)
    episode = structs.Episode.from_text(recipe, lesson, lesson.meta["turns"])
    episode = dataclasses.replace(episode, ended="answer")
    if name in WITHOUT:
      assert episode.model_text and parts.last_answer(recipe.parser, episode) is None, name
      continue
    if recipe.searches and not recipe.needs_passages:
      assert episode.num_searches == 1, name
    assert parts.last_answer(recipe.parser, episode) in real_reader.ANSWERS, name
    if recipe.name in ("arena", "care") and config.preset != "original":  # which asks for no form
      assert recipe.score(lesson, episode)["format"] == 1.0, name
