import math

import pytest

from ragrl_jax.core.metrics import qa
from ragrl_jax.evaluation import answer_recall
from ragrl_jax.structs import Example, Passage


def test_recall_and_ndcg_by_hand():
  example = Example("1", "Where?", ("Paris",))
  hit, miss = Passage("1", "", "It is in Paris."), Passage("2", "", "A comparison of Parisians.")
  titled = Passage("3", "Paris", "A city.")
  found = answer_recall.measured([example] * 4, [[hit, miss], [miss, hit, titled], [miss, miss, hit], []], 2)
  # Recall@2: yes, yes (second), no (third), no. nDCG@2: 1; (1 / log2 3) over the best of the first two, 1; 0; 0.
  assert found["n"] == 4 and found["recall@2"] == 0.5
  assert found["ndcg@2"] == pytest.approx((1 + 1 / math.log2(3)) / 4)
  deeper = answer_recall.measured([example], [[miss, hit, titled]], 3)
  gain = 1 / math.log2(3) + 1 / math.log2(4)
  assert deeper["ndcg@3"] == pytest.approx(gain / (1 + 1 / math.log2(3)))
  with pytest.raises(ValueError, match="no questions"):
    answer_recall.measured([], [], 5)


def test_whole_words():
  assert qa.has_answer("In the U.S., they say.", ["US"]) and qa.has_answer("Is it in Paris?", ["Rome", "the Paris"])
  assert not qa.has_answer("A comparison", ["Paris"]) and not qa.has_answer("anything", ["?"])
