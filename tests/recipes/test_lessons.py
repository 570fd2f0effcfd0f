"""Lessons that teach a judge to compare names: the digit depends on the names and on nothing else."""

import collections
import random
import re

import pytest
from papers import players

from ragrl_jax.data import synthetic
from ragrl_jax.structs import MODEL

WORLD = synthetic.build(seed=2, entities=200, held_out=20)
NAME = re.compile(r"[A-Z][a-z]{2,}")
lessons = lambda kind: players.lessons(kind, WORLD, 300, random.Random(0))


def thoughts(example, turns):
  """(thought, digit) of each, read from the transcript."""
  said = [example.question, *(re.search("<think> (.*) </think>", text)[1] for owner, text in turns if owner != MODEL)]
  return list(zip(said, [text for owner, text in turns if owner == MODEL], strict=True))


names = lambda text: set(NAME.findall(text)) - {"Doc", "Title", "The"}


@pytest.mark.parametrize("kind", players.LESSONS)
def test_a_digit_is_one_if_and_only_if_all_names_are_in_the_result(kind):
  digits = []
  for example, turns in lessons(kind):
    found = thoughts(example, turns)
    assert len(found) == 8 and example.golds == (found[0][1],)
    for thought, digit in found:
      assert names(thought) and (names(thought) <= names(example.passages[0].text)) == (digit == "1"), thought
      digits.append(digit)
  assert len(digits) == 2400 and 0.46 < digits.count("1") / len(digits) < 0.54  # four standard errors of a fair coin


def test_neither_relation_nor_length_predicts_the_digit():
  kept, lengths = collections.Counter(), collections.defaultdict(collections.Counter)
  for example, turns in lessons("statement"):
    for thought, digit in thoughts(example, turns):
      relation, *_ = thought.split()
      kept[digit, relation in example.passages[0].text.replace(".", "").split()] += 1
      lengths[digit][len(thought.split()[1]) // 3] += 1
  share = {digit: kept[digit, True] / (kept[digit, True] + kept[digit, False]) for digit in "01"}
  assert abs(share["0"] - share["1"]) < 0.08 and 0.4 < share["1"] < 0.7  # a half, and one in nine of the rest
  assert all({1, 2, 3, 4} <= set(lengths[digit]) for digit in "01")  # syllables of the subject


def test_an_unknown_lesson_is_refused():
  with pytest.raises(ValueError, match="lesson 'word'.*name, passage, statement"):
    lessons("word")
