import collections
import random

import pytest
from papers import players

from ragrl_jax import recipes
from ragrl_jax.data import synthetic
from ragrl_jax.recipes.search_r1.recipe import demonstrate
from ragrl_jax.structs import Episode
from ragrl_jax.testing import scripted

WORLD = synthetic.build(seed=2, entities=200, held_out=20, years=True)
ASKED = synthetic.questions(WORLD, 60, mix={1: 1, 2: 1, 3: 1, "comparison": 1, "yes_no": 1}, passages=6)
CHAINS = [example for example in ASKED if example.meta["type"] == "bridge"]
recipe, arena = recipes.get("search_r1"), recipes.get("arena")


def look_up(query):
  """The passage about the subject of a demonstration's query."""
  relation, _, subject = query.rpartition(" ")
  return [WORLD.passage(subject, relation)]


def searching(example, **options):
  return demonstrate(example, look_up, random.Random(0), **options)


def test_without_faults_every_question_is_answered():
  for example in ASKED:
    episode = Episode.from_text(recipe, example, searching(example, fault=0.0))
    assert episode.num_searches == example.hops and recipe.score(example, episode) == dict(answer=1.0)
    assert {p.text for s in episode.searches for p in s.found} == {
      WORLD.passages[int(i[1:])].text for i in example.meta["gold_ids"]
    }


def test_a_demonstration_is_what_play_would_have_made():
  """Playing the demonstration's own text live gives the demonstration, turn by turn."""
  for fault in (0.0, 1.0):
    for example in CHAINS:
      turns = demonstrate(example, look_up, random.Random(example.id), fault=fault)
      live = recipes.get("search_r1", max_searches=9, max_passage_tokens=None)
      said = [text for owner, text in turns if owner == "model"]
      results = [look_up(q) for q in (live.parser.search(text) for text in said) if q is not None]
      episode, _ = scripted.play(live, example, said, results)
      assert [(s.owner, s.text) for s in episode.turns] == turns


def test_stops_after_an_earlier_hop():
  for example in CHAINS:
    episode = Episode.from_text(recipe, example, searching(example, fault=1.0))
    steps = example.meta["decomposition"]
    if example.hops == 1:
      assert recipe.outcome(example, episode) == 1.0
    else:
      assert 1 <= episode.num_searches < example.hops
      assert recipe.parser.answer(episode.model_text) == steps[episode.num_searches - 1]["object"]
      assert recipe.outcome(example, episode) == 0.0


def test_the_planted_share():
  asked = synthetic.questions(WORLD, 400, mix={2: 1})
  draw = random.Random(1)
  counts = collections.Counter(len(demonstrate(example, look_up, draw)) for example in asked)
  # 65 % of 400 stop after one search (3 turns): 260, standard deviation 9.5
  assert set(counts) == {3, 5} and 225 < counts[3] < 295


def test_names_follow_a_space():
  for example in CHAINS:
    text = example.question + "".join(text for _, text in searching(example, fault=0.0))
    for step in example.meta["decomposition"]:
      for name in (step["subject"], step["object"]):
        assert text.count(name) == text.count(" " + name)


def test_citing_without_faults():
  for example in ASKED:
    turns = players.play_arena(example, WORLD, random.Random(0), fault=0.0)
    for preset in (arena, recipes.get("arena", "repo")):
      assert preset.reward(preset.score(example, Episode.from_text(preset, example, turns)), 0) == 13.0


@pytest.mark.parametrize(("preset", "reply"), [("naive", "thought"), ("direct", "direct")])
def test_replies_of_the_baselines(preset, reply):
  baseline = recipes.get("arena", preset)
  for example in ASKED:
    turns = players.play_arena(example, WORLD, random.Random(0), reply=reply, fault=0.0)
    assert baseline.reward(baseline.score(example, Episode.from_text(baseline, example, turns)), 0) == 2.0
  with pytest.raises(ValueError, match="cited, thought, direct"):
    players.play_arena(ASKED[0], WORLD, random.Random(0), reply="naive")


@pytest.mark.parametrize("kind", players.ARENA_FAULTS)
def test_citing_with_faults(kind):
  rewards = collections.Counter()
  for number, example in enumerate(CHAINS):
    turns = players.play_arena(example, WORLD, random.Random(number), fault=1.0, kinds=(kind,))
    terms = arena.score(example, Episode.from_text(arena, example, turns))
    assert terms["format"] == 1.0
    rewards[arena.reward(terms, 0)] += 1
    if kind == "stop" and example.hops > 1:
      assert terms["relevance"] == 0.5 and terms["accuracy"] == 0.0
  assert rewards[1.5] + rewards[1.0] > len(CHAINS) / 3


def test_unknown_faults():
  with pytest.raises(ValueError, match="stop, wrong"):
    players.play_arena(ASKED[0], WORLD, random.Random(0), kinds=("guess",))
