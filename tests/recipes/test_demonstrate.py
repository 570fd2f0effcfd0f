"""Scripted players of the made-up world: a demonstration is what play would have made, and its faults are seen."""

import collections
import dataclasses
import functools
import random

import pytest
import reading_world
from papers import players

from ragrl_jax import recipes
from ragrl_jax.recipes.search_r1.recipe import demonstrate
from ragrl_jax.recipes.steps import steps
from ragrl_jax.structs import Episode
from ragrl_jax.testing import scripted

WORLD = reading_world.build(seed=2, entities=200, held_out=20, years=True)
ASKED = reading_world.questions(WORLD, 60, mix={1: 1, 2: 1, 3: 1, "comparison": 1, "yes_no": 1}, passages=6)
CHAINS = [example for example in ASKED if example.meta["type"] == "bridge"]
recipe, arena, care, veritas = map(recipes.get, ("search_r1", "arena", "care", "veritas"))


def look_up(query, world=WORLD):
  """The passage about the subject of a demonstration's query."""
  relation, _, subject = query.removeprefix("what is the ").removesuffix(" ?").rpartition(" ")
  return [world.passage(subject, relation)]


searching = lambda example, **options: demonstrate(example, look_up, random.Random(0), **options)


def test_without_faults_every_question_is_answered():
  for example in ASKED:
    episode = Episode.from_text(recipe, example, searching(example, fault=0.0))
    assert episode.num_searches == example.hops and recipe.score(example, episode) == dict(answer=1.0)
    golds = {WORLD.passages[int(name[1:])].text for name in example.meta["gold_ids"]}
    assert {p.text for s in episode.searches for p in s.found} == golds


def replayed(live, example, turns, look_up=look_up):
  """The turns that playing the demonstration's own text gives."""
  said = [text for owner, text in turns if owner == "model"]
  results = [look_up(query) for query in map(live.parser.search, said) if query is not None]
  episode, _ = scripted.play(live, example, said, results, verdicts=[1.0] * 9)
  return [(segment.owner, segment.text) for segment in episode.turns]


def test_a_demonstration_is_what_play_would_have_made():
  live = recipes.get("search_r1", max_searches=9, max_passage_tokens=None)
  for fault in (0.0, 1.0):
    for example in CHAINS:
      turns = demonstrate(example, look_up, random.Random(example.id), fault=fault)
      assert replayed(live, example, turns) == turns


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
  asked = reading_world.questions(WORLD, 400, mix={2: 1})
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


@pytest.mark.parametrize(("preset", "reply", "reward"), [
  ("paper", "cited", 13.0), ("repo", "cited", 13.0), ("naive", "thought", 2.0), ("direct", "direct", 2.0),
])  # fmt: skip
def test_replies_without_faults(preset, reply, reward):
  live = recipes.get("arena", preset)
  for example in ASKED:
    turns = players.play_arena(example, WORLD, random.Random(0), reply=reply, fault=0.0)
    assert live.reward(live.score(example, Episode.from_text(live, example, turns)), 0) == reward


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


@pytest.mark.parametrize(("play", "unknown", "known"), [
  (players.play_arena, dict(reply="naive"), "cited, thought, direct"),
  (players.play_arena, dict(kinds=("guess",)), "stop, wrong"), (players.play_care, dict(kinds=("loud",)), "misquote"),
  (players.play_veritas, dict(kinds=("guess",)), "skip, ignore, stop"),
  (players.play_when_to_search, dict(kinds=("skip",)), "guess, check, repeat, ask"),
])  # fmt: skip
def test_what_no_player_does_is_refused(play, unknown, known):
  with pytest.raises(ValueError, match=known):
    play(ASKED[0], WORLD, random.Random(0), **unknown)


def quoting(example, **options):
  turns = players.play_care(example, WORLD, random.Random(example.id), **options)
  episode = Episode.from_text(care, example, turns)
  return care.score(example, episode), episode


def test_quoting_with_and_without_faults():
  missed = collections.Counter()
  for example in ASKED:
    terms, episode = quoting(example, fault=0.0)
    assert terms == dict(accuracy=1.0, format=1.0, retrieval=1.0)
    assert all(sentence in care.evidence(example, episode) for _, sentence in example.evidence)
    assert quoting(example, fault=1.0, kinds=("misquote",))[0] == dict(accuracy=1.0, format=1.0, retrieval=0.0)
    assert quoting(example, fault=1.0, kinds=("silent",))[0] == dict(accuracy=1.0, format=0.0, retrieval=0.0)
    for kind in ("stop", "wrong"):
      terms, episode = quoting(example, fault=1.0, kinds=(kind,))
      assert terms["format"] == terms["retrieval"] == 1.0
      missed[kind] += care.outcome(example, episode) == 0.0
  assert missed["stop"] == sum(example.hops > 1 for example in ASKED) and missed["wrong"] > 30


@pytest.mark.parametrize("preset", ["paper", "vanilla", "rationale", "generator"])
def test_extracting_with_and_without_faults(preset):
  recipe, missed = recipes.get("lear", preset), collections.Counter()

  def played(example, **options):
    turns = players.play_lear(example, WORLD, random.Random(example.id), reply=recipe.switches["reply"], **options)
    return Episode.from_text(recipe, example, turns)

  for example in ASKED:
    episode = played(example, fault=0.0)
    assert recipe.score(example, episode)["format"] == recipe.outcome(example, episode) == 1.0
    if preset != "generator":
      assert all(sentence in recipe.evidence(example, episode) for _, sentence in example.evidence)
    for kind in players.LEAR_FAULTS:
      faulty = played(example, fault=1.0, kinds=(kind,))
      assert recipe.score(example, faulty)["format"] == 1.0
      missed[kind] += recipe.outcome(example, faulty) == 0.0
    if preset in ("paper", "vanilla"):
      assert all(p.text in recipe.evidence(example, faulty) for p in example.passages)  # "copy"
  assert missed["stop"] == sum(example.hops > 1 for example in ASKED) and missed["wrong"] > 15 and not missed["copy"]


@pytest.mark.parametrize(("kind", "read", "right"), [(None, 1.0, 1.0), ("skip", 0.0, 1.0), ("ignore", 1.0, 1.0)])
def test_thinking_with_and_without_faults(kind, read, right):
  live = recipes.get("veritas", max_searches=9, max_passage_tokens=None)
  for example in ASKED:
    how = dict(fault=float(kind is not None), kinds=(kind or "skip",))
    turns = players.play_veritas(example, look_up, random.Random(0), **how)
    made = Episode.from_text(veritas, example, turns)
    found = steps(made.turns)
    verdicts = (1.0,) * sum(None not in pair for pair in found.information_think)
    terms = veritas.score(example, dataclasses.replace(made, facts=dict(information_think=verdicts)))
    assert (terms["information_think"], terms["answer"]) == (read, right)
    assert terms["think_answer"] == float(kind is None) or example.golds[0] in found.think_answer[0][0]
    assert replayed(live, example, turns) == turns


def test_thinking_that_stops():
  example = next(example for example in ASKED if example.hops == 3)
  turns = players.play_veritas(example, look_up, random.Random(0), fault=1.0, kinds=("stop",))
  terms = veritas.score(example, Episode.from_text(veritas, example, turns))
  assert (terms["answer"], terms["think_answer"]) == (0.0, 1.0)


@pytest.mark.parametrize("kind", [None, "check", "repeat", "ask", "guess"])
def test_searching_if_it_pays_with_and_without_faults(kind):
  world = reading_world.build(seed=2, entities=200, held_out=20, memorised=0.5)
  recipe = recipes.get("when_to_search", "exact,ngrams")
  live = recipes.get("when_to_search", "exact,ngrams", max_passage_tokens=None)
  found, searches = functools.partial(look_up, world=world), 0
  for example in reading_world.questions(world, 40, mix={1: 1, 2: 1, 3: 1}):
    how = dict(fault=float(kind is not None), kinds=(kind or "check",))
    turns = players.play_when_to_search(example, found, random.Random(0), **how)
    made = Episode.from_text(recipe, example, turns)
    terms = recipe.score(example, made)
    assert terms["format"] == 1.0 and recipe.outcome(example, made) == float(kind != "guess")
    unknown = sum(not step["memorised"] for step in example.meta["decomposition"])
    assert made.num_searches == {"check": example.hops, "repeat": 2 * unknown, "guess": 0}.get(kind, unknown)
    assert made.num_searches != 1 or terms["search"] == (-1.0 if kind == "ask" else 0.0)
    searches += made.num_searches
    assert made.num_searches > 5 or replayed(live, example, turns, found) == turns
  assert searches > 0 or kind == "guess"
