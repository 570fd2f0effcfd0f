import collections

import pytest
import reading_world
from refusals import refused

from ragrl_jax.data import synthetic

WORLD = reading_world.build(seed=5, entities=400, held_out=60, years=True, memorised=0.3, counterfactual=0.5)
PLAIN = reading_world.build(seed=5, entities=400, held_out=60)
EVERY = {1: 1, 2: 1, 3: 1, "comparison": 1, "yes_no": 1}
ASKED = reading_world.questions(WORLD, 300, mix=EVERY, passages=8)


def solved(world, example):
  """The answer from the question's decomposition, the facts in the passages and the question's words alone."""
  facts = {(f.subject, f.relation): f.object for f in world.stated.values()}
  steps = example.meta["decomposition"]
  for step in steps:
    assert facts[step["subject"], step["relation"]] == step["object"]
  found, kind = [step["object"] for step in steps], example.meta["type"]
  if kind == "yes_no":
    return "yes" if found[0] == found[1] else "no"
  if kind == "comparison":
    years = [int(year) for year in found]
    chosen = min(years) if "earlier" in example.question else max(years)
    return steps[years.index(chosen)]["subject"]
  for before, after in zip(steps, steps[1:]):
    assert after["subject"] == before["object"]
  assert example.question.endswith(f"of {steps[0]['subject']}?")
  return found[-1]


def test_golds_follow_from_the_passages():
  for example in ASKED:
    assert example.golds == (solved(WORLD, example),)
    assert example.hops == len(example.meta["decomposition"])


def test_supporting_evidence_and_ids_agree():
  for world, asked in ((WORLD, ASKED), (PLAIN, reading_world.questions(PLAIN, 100, mix={2: 1, 3: 1}, passages=6))):
    for example in asked:
      golds = example.meta["gold_ids"]
      assert sorted(example.passages[i].id for i in example.supporting) == sorted(golds)
      assert set(golds) == {step["passage"] for step in example.meta["decomposition"]}
      assert len(example.evidence) == example.hops
      for (place, sentence), step in zip(example.evidence, example.meta["decomposition"]):
        assert place in example.supporting and sentence in example.passages[place].text
        assert sentence == step["sentence"]
        assert step["subject"] in sentence and step["relation"] in sentence and step["object"] in sentence
        assert world.passages[int(example.passages[place].id[1:])] == example.passages[place]


def test_passages_are_different_and_as_many_as_asked_for():
  for example in ASKED:
    assert len({p.id for p in example.passages}) == len(example.passages) == 8
  places = collections.Counter(place for example in ASKED for place in example.supporting)
  assert min(places[i] for i in range(8)) > 20  # gold passages occur at every position


def test_the_mix_is_exact():
  count = collections.Counter(example.hops for example in reading_world.questions(WORLD, 200, part=synthetic.HELD_OUT))
  assert count == {1: 80, 2: 120}
  kinds = [
    e.meta["type"] if e.meta["type"] != "bridge" else e.hops for e in reading_world.questions(WORLD, 7, mix=EVERY)
  ]
  assert sorted(collections.Counter(kinds).values()) == [1, 1, 1, 2, 2]


def test_half_of_the_yes_no_answers_are_yes():
  asked = reading_world.questions(WORLD, 300, mix={"yes_no": 1})
  assert 110 < sum(example.golds == ("yes",) for example in asked) < 190


def test_chains_of_facts_visit_no_entity_twice_and_years_only_at_their_end():
  for example in reading_world.questions(WORLD, 600, mix={2: 1, 3: 1}):
    steps = example.meta["decomposition"]
    assert len({steps[0]["subject"], *(step["object"] for step in steps)}) == example.hops + 1
    assert not any("year" in step["relation"] for step in steps[:-1])


def test_held_out_questions_share_no_name_with_training():
  held_out = reading_world.questions(WORLD, 100, part=synthetic.HELD_OUT, mix=EVERY)
  names = set(WORLD.parts[synthetic.HELD_OUT].names)
  texts = [text for e in ASKED for text in (e.question, *e.golds, *(p.text for p in e.passages))]
  train_text = " ".join([*texts, *synthetic.lines(WORLD)])
  assert not [name for name in names if name in train_text]
  for example in held_out:
    assert {step["subject"] for step in example.meta["decomposition"]} <= names
    assert not any(step["memorised"] for step in example.meta["decomposition"])


def test_draws_depend_on_their_key_alone():
  again = reading_world.questions(WORLD, 300, mix=EVERY, passages=8)
  assert again == ASKED
  other = reading_world.questions(WORLD, 300, mix=EVERY, passages=8, seed=1)
  assert len({e.question for e in other} & {e.question for e in ASKED}) < 100
  assert {e.id for e in other}.isdisjoint(e.id for e in ASKED)


def test_passages_do_not_change_the_first_question():
  alone, given = (reading_world.questions(WORLD, 1, mix={2: 1}, passages=count) for count in (0, 5))
  assert alone[0].question == given[0].question


def test_distinct():
  assert synthetic.questions(WORLD, 0) == [] and len({e.question for e in synthetic.questions(WORLD, 500)}) == 500
  tiny = reading_world.build(seed=0, entities=8, held_out=8)
  refused("distinct=False", reading_world.questions, tiny, 100, mix={1: 1})
  assert len(reading_world.questions(tiny, 100, mix={1: 1}, distinct=False)) == 100


def test_hard_answers_are_sentences():
  example = reading_world.questions(WORLD, 1, mix={2: 1}, difficulty="hard", passages=12)[0]
  said = [f"he {step['relation']} of {step['subject']} is {step['object']}" for step in example.meta["decomposition"]]
  assert example.question.endswith(", step by step?") and example.golds == (f"T{said[0]}, and t{said[1]}.",)
  assert len(example.passages) == 12


def test_easy_with_one_passage():
  for example in reading_world.questions(WORLD, 20, mix={1: 1}, passages=1):
    assert example.supporting == (0,) and example.golds[0] in example.passages[0].text


def test_questions_from_memory_are_marked():
  asked = reading_world.questions(WORLD, 300, mix={1: 1})
  steps = [example.meta["decomposition"][0] for example in asked]
  marks = {(step["memorised"], step["counterfactual"]) for step in steps}
  assert marks == {(False, False), (True, False), (True, True)}
  for example, step in zip(asked, steps, strict=True):
    if step["counterfactual"]:  # the passage is right, the memory is wrong
      assert example.golds != (WORLD.memory[step["subject"], step["relation"]],)


@pytest.mark.parametrize(("wrong", "message"), [
  (dict(part="test"), "held_out"), (dict(mix={4: 1}), "1, 2 or 3"), (dict(mix={1: 0}), "positive"),
  (dict(mix={}), "positive"), (dict(difficulty="medium"), "easy"),
  (dict(mix={3: 1}, passages=2), "at least as many"), (dict(passages=100_000), "too few passages"),
])  # fmt: skip
def test_impossible_settings_are_refused(wrong, message):
  refused(message, reading_world.questions, WORLD, 3, **wrong)


def test_comparison_questions_need_years():
  refused("years=True", reading_world.questions, PLAIN, 1, mix={"comparison": 1})
