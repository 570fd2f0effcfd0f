"""Lessons: every question can be answered from the passages, replies say how, and nothing can be learnt by heart."""

import random
import re

import pytest
from papers import lessons

from ragrl_jax.data import world
from ragrl_jax.structs import ENVIRONMENT, MODEL

ALL = {1: 1.0, 2: 1.0, 3: 1.0, lessons.COMPARISON: 1.0}


def drawn(seed, **settings):
  return lessons.draw(lessons.Course(**(dict(passages=(4, 8), kinds=ALL) | settings)), random.Random(seed))


@pytest.mark.parametrize("seed", range(20))
def test_replies_quote_passages_and_end_with_the_answer(seed):
  lesson = drawn(seed)
  owners, texts = zip(*lesson.turns)
  assert owners == (ENVIRONMENT, MODEL) * len(lesson.kinds) and len(lesson.golds) == len(lesson.kinds)
  for kind, gold, reply in zip(lesson.kinds, lesson.golds, texts[1::2]):
    quoted, answer = reply.split("Answer: ")
    assert answer == gold
    sentences = [f"{sentence}." for sentence in quoted.strip(" .").split(". ")]
    if kind == lessons.COMPARISON:
      side, year, name = re.fullmatch(r"(earlier|later) is (\d+) of (\w+)\.", sentences.pop()).groups()
      assert name == gold and year in re.search(rf"[^.\n]*\b{name}\b[^.\n]*", " ".join(sentences))[0]
      years = [re.search(r"\d{4}", sentence)[0] for sentence in sentences]
      assert year == (min if side == "earlier" else max)(years)
    assert len(sentences) == (2 if kind == lessons.COMPARISON else kind)
    assert all(sentence in texts[0] for sentence in sentences)


@pytest.mark.parametrize("seed", range(20))
def test_each_hop_starts_where_the_last_one_ended(seed):
  lesson = drawn(seed, kinds={2: 1.0, 3: 1.0}, replies={lessons.STEPS: 1.0})
  for (_, question), (_, reply), gold in zip(lesson.turns[::2], lesson.turns[1::2], lesson.golds):
    steps = re.findall(r"([a-z ]+) ([A-Z]\w+) is (\w+)\. ", reply)
    assert question.rstrip().endswith(("?", ".")) and f"of {steps[0][1]}?" in question
    assert [found for _, _, found in steps[:-1]] == [subject for _, subject, _ in steps[1:]] and steps[-1][2] == gold


def test_a_comparison_reads_both_years_in_the_questions_order():
  lesson = drawn(3, kinds={lessons.COMPARISON: 1.0}, replies={lessons.STEPS: 1.0})
  question, reply = lesson.turns[0][1], lesson.turns[1][1]
  side, relation, first, second = re.search(r"the (\w+) ([a-z ]+ year), (\w+) or (\w+)\?", question).groups()
  gold = lesson.golds[0]
  both = rf" {relation}, {first} is (\d+) of {first} or {second} is (\d+) of {second}\. "
  said = re.fullmatch(rf"{both}{side} is (\d+) of {gold}\. Answer: {gold}", reply)
  assert said[3] == (min if side == "earlier" else max)(said[1], said[2])


def test_the_relation_alone_does_not_find_the_passage():
  """Further passages state a relation that another one states of another name."""

  def shared(alike):
    found = []
    for seed in range(40):
      lesson = drawn(seed, passages=(12, 12), asked=1, alike=alike, kinds={1: 1.0}, replies={lessons.STEPS: 1.0})
      relation = re.match(r" ([a-z ]+) [A-Z]", lesson.turns[1][1])[1]
      found.append(len(re.findall(rf"\b{relation}\b", lesson.turns[0][1].rsplit("?", 1)[0])) - 1)
    return sum(found) / len(found)

  assert shared(1.0) > 1.4 * shared(0.0)


def test_comparisons_name_the_older_or_the_younger():
  checked = 0
  for seed in range(30):
    lesson = drawn(seed, kinds={lessons.COMPARISON: 1.0}, wordings=(world.BESIDE,))
    for (_, question), gold in zip(lesson.turns[::2], lesson.golds):
      if found := re.search(r"Which has the (earlier|later) (\w+ year), (\w+) or (\w+)\?", question):
        when, relation, *pair = found.groups()
        year = {name: int(re.search(rf"{name} has the {relation} (\d+)", lesson.turns[0][1])[1]) for name in pair}
        assert gold == (min if when == "earlier" else max)(pair, key=year.get)
        checked += 1
  assert checked > 30


def test_passages_are_as_many_as_asked_and_numbered():
  for seed in range(30):
    lesson = drawn(seed, passages=(3, 5), layouts=lessons.LAYOUTS[:1], replies={lessons.CITED: 1.0})
    lines = dict(re.findall(r"\[(\d)\] (.+)\n", lesson.turns[0][1]))
    assert 3 <= len(lines) <= 5
    for _, reply in lesson.turns[1::2]:
      cited = re.findall(r" (\S.+?\.) \[(\d)\]", reply)
      assert cited and all(lines[number] == sentence for sentence, number in cited)


def test_numbers_alone_name_the_passages_of_the_facts():
  for seed in range(30):
    layouts, kinds = lessons.LAYOUTS[:1], {1: 1.0, 2: 1.0}
    named = drawn(seed, layouts=layouts, kinds=kinds, replies={lessons.NUMBERS: 1.0})
    quoted = drawn(seed, layouts=layouts, kinds=kinds, replies={lessons.QUOTED: 1.0}, wordings=(world.BESIDE,))
    lines = re.findall(r"\[\d\] (.+)\n", quoted.turns[0][1])
    for (_, reply), (_, other), gold in zip(named.turns[1::2], quoted.turns[1::2], named.golds, strict=True):
      numbers = [lines.index(sentence) + 1 for sentence in re.findall(r" ([^.]+\.)(?= )", other)]
      assert numbers and reply == f" {numbers} Answer: {gold}"


def test_names_and_facts_are_drawn_anew():
  names = [set(re.findall(r"[A-Z][a-z]{5,}", drawn(seed).turns[0][1])) for seed in range(50)]
  shared = sum(len(one & other) for one in names for other in names if one is not other)
  assert shared < 0.02 * sum(map(len, names)) * 50
  assert drawn(3) == drawn(3) != drawn(4)


def test_cues_tell_how_to_reply():
  for reply, cue in lessons.CUES.items():
    lesson = drawn(0, replies={reply: 1.0}, layouts=lessons.LAYOUTS[:1])
    assert all(text.endswith("?" + cue) for owner, text in lesson.turns if owner == ENVIRONMENT)


@pytest.mark.parametrize("wrong, said", [
  (dict(passages=(2, 8), kinds={3: 1.0}), "at least 3"), (dict(passages=(9, 8)), "at least"),
  (dict(kinds={4: 1.0}), "4 must be 1, 2 or 3 hops"), (dict(replies={"long": 1.0}), "'long' must be one of"),
])  # fmt: skip
def test_impossible_courses_are_refused(wrong, said):
  with pytest.raises(ValueError, match=said):
    lessons.Course(**(dict(passages=(4, 8)) | wrong))
