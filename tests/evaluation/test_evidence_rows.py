import dataclasses

import pytest

from ragrl_jax import recipes
from ragrl_jax.evaluation import evidence_rows, harness
from ragrl_jax.run import rewards
from ragrl_jax.structs import Episode, Example, Passage

GOLD = "The tower stands in Paris."


def test_bleu_and_rouge_by_hand():
  assert evidence_rows.bleu([GOLD, "a b c d"], [GOLD, "a b c d"]) == pytest.approx(100.0)
  assert evidence_rows.bleu(["x y z w"], ["a b c d"]) == pytest.approx(0.0, abs=15)  # with smoothing
  # The longest common subsequence "the tower in paris" is all 4 words of one and 4 of the other's 5: 2 · 4 / 9.
  assert evidence_rows.rouge_l(["the tower in paris", GOLD], [GOLD, GOLD]) == pytest.approx((8 / 9 + 1) / 2)


def test_rows_and_means():
  recipe = recipes.get("care")
  example = Example("1", "Where?", ("Paris",), (Passage("1", "T", GOLD + " It is tall."),), evidence=((0, GOLD),))
  rows = []
  for text, facts in (
    (f"<think><retrieval>{GOLD}</retrieval></think> Answer: Paris", dict(evidence_tokens=5, passage_tokens=50)),
    ("Answer: Rome", dict(evidence_tokens=0, passage_tokens=50)),
    (f"<think><retrieval>{GOLD}</retrieval></think> Answer: sirap", dict(evidence_tokens=20, passage_tokens=40)),
  ):
    episode = Episode.from_text(recipe, example, [("model", text)], facts=facts)
    rows.append(harness.prediction(recipe, rewards.score(recipe, [example], [episode], 0)[0]))
  assert rows[0]["evidence"] == rows[0]["gold_evidence"] == GOLD and rows[1]["evidence"] == ""
  found = harness.summarise(rows)
  assert found["answer_recall"] == pytest.approx(2 / 3)
  assert found["compression"] == pytest.approx((10 + 2) / 2)  # the empty one has no ratio
  assert found["compression_total"] == pytest.approx(90 / 25)  # an empty one makes no other shorter
  assert found["evidence_empty"] == pytest.approx(1 / 3)
  assert (found["evidence_tokens"], found["evidence_tokens_std"]) == (12.5, 7.5)
  assert found["evidence_rouge_l"] == pytest.approx(2 / 3) and 0 < found["evidence_bleu"] < 100
  # "paris", "rome", "sirap" against "paris": common letters 5, 1 (r), 5, of 10, 9, 10 in both together.
  assert found["char_f1"] == pytest.approx((1 + 2 / 9 + 1) / 3)
  assert found["f1"] == pytest.approx(1 / 3)


def test_the_answer_of_another_generator_counts():
  recipe = recipes.get("care")
  example = Example("1", "Where?", ("Paris",))
  episode = Episode.from_text(recipe, example, [("model", "Answer: Rome")], facts=dict(answer="Paris"))
  assert harness.answer(recipe, episode) == "Paris"
  assert harness.answer(recipe, dataclasses.replace(episode, facts={})) == "Rome"


def test_recipes_without_evidence_have_no_evidence_measures():
  assert evidence_rows.summarise([{"id": "1"}]) == {}
  recipe = recipes.get("search_r1")
  assert evidence_rows.row(recipe, Example("1", "?", ("a",)), Episode(())) == {}
