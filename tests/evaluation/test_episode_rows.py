import dataclasses
import math

import pytest

from ragrl_jax import recipes
from ragrl_jax.core.metrics import searches
from ragrl_jax.evaluation import episode_rows, harness
from ragrl_jax.recipes import parts
from ragrl_jax.run import rewards
from ragrl_jax.structs import ENVIRONMENT, MODEL, Episode, Example, Passage, Segment

PARIS, OSLO = Passage("1", "France", "Its capital is Paris."), Passage("2", "Norway", "Its capital is Oslo.")
GOLD = "The tower stands in Paris."
AGAIN = Passage("other id", "France", "Its capital is Paris.")


def played(*turns, logprobs=(), ended="answer", **facts):
  """An episode of (query, passages found) and a last turn of the model."""
  said = [Segment(ENVIRONMENT, (1,), "prompt")]
  for query, found in turns:
    said += [Segment(MODEL, (2,), query, (-9.0,)), Segment(ENVIRONMENT, (3,), "…", query=query, found=tuple(found))]
  said.append(Segment(MODEL, (4,) * len(logprobs), "answer", tuple(logprobs)))
  return Episode(tuple(said), facts=facts, ended=ended)


def test_repeated_and_stale_searches_by_hand():
  asked = [("capital of France", ["a"]), ("the France, capital of!", ["a", "b"]), ("Norway", ["b"]), ("Peru", [])]
  assert searches.repeated_searches(asked) == 1  # the same words
  assert searches.stale_searches(asked) == 1  # b was shown; nothing found is not stale
  assert searches.repeated_searches([("O'Neill 1939-40", []), ("１９３９–４０ O’Neill", [])]) == 1
  assert searches.repeated_searches([]) == searches.stale_searches([]) == 0


def test_a_row_by_hand():
  example = Example("q", "?", ("Oslo",), (OSLO, PARIS), (0, 1))
  twice = played(("x", [PARIS]), ("y", [AGAIN]), logprobs=[math.log(0.5), math.log(0.125)])
  found = episode_rows.conduct(example, twice, "in Oslo")
  # The second search brings the first one's text under another id. One of two gold documents; no passage names Oslo.
  counts = dict(repeated_searches=0, stale_searches=1, found_answer=0.0, found_gold=0.5)
  assert found == dict(precision=0.5, recall=1.0, confidence=pytest.approx(0.25), **counts)
  both = episode_rows.conduct(example, played(("x", [PARIS, OSLO]), logprobs=[0.0]), None)
  assert (both["found_answer"], both["found_gold"], both["confidence"], both["recall"]) == (1.0, 1.0, 1.0, 0.0)
  nothing = episode_rows.conduct(example, played(("x", [])), "in Oslo")
  assert nothing["found_answer"] == nothing["found_gold"] == 0.0
  assert episode_rows.conduct(example, played(), "in Oslo")["found_gold"] is None


def test_what_is_not_known_is_none():
  found = episode_rows.conduct(Example("q", "?", ("Yes",)), played(("x", [OSLO])), "yes")
  assert found["found_answer"] is found["found_gold"] is None
  assert episode_rows.conduct(Example("q", "?", ("a",)), played(logprobs=[-1.0]), "")["found_answer"] is None
  assert episode_rows.confidence(played()) is None  # transcripts have no log-probabilities
  assert episode_rows.confidence(played(logprobs=[-1.0], answer="of a generator")) is None
  assert episode_rows.conduct(Example("q", "?", ("Yes",)), played(ended="failed"), None) == {}


def test_means_and_calibration():
  rows = [
    dict(found_answer=1.0, confidence=0.9, outcome=1.0, prediction="a", episode_tokens=30, response_tokens=10),
    dict(found_answer=None, confidence=0.6, outcome=0.0, prediction="b", episode_tokens=50, response_tokens=10),
    dict(found_answer=0.0, confidence=0.7, outcome=None, prediction="c", episode_tokens=40, response_tokens=10),
    dict(found_answer=0.0, confidence=0.8, outcome=0.0, prediction=None, episode_tokens=40, response_tokens=10),
  ]
  found = episode_rows.summarise(rows)
  assert found["found_answer"] == pytest.approx(1 / 3) and found["given_tokens"] == 30
  assert found["confidence"] == pytest.approx(0.75) and found["brier"] == pytest.approx((0.01 + 0.36) / 2)
  assert found["ece"] == pytest.approx((0.1 + 0.6) / 2)
  bare = [dict(id="1"), dict(em=1.0, outcome=1.0, prediction="a")]
  assert episode_rows.summarise([]) == {} == episode_rows.summarise(bare)
  assert episode_rows.evidence(recipes.get("search_r1"), Example("1", "?", ("a",)), Episode(())) == {}


def test_bleu_and_rouge_by_hand():
  assert episode_rows.bleu([GOLD, "a b c d"], [GOLD, "a b c d"]) == pytest.approx(100.0)
  assert episode_rows.bleu(["x y z w"], ["a b c d"]) == pytest.approx(0.0, abs=15)  # with smoothing
  # The longest common subsequence "the tower in paris" is all 4 words of one and 4 of the other's 5: 2 · 4 / 9.
  assert episode_rows.rouge_l(["the tower in paris", GOLD], [GOLD, GOLD]) == pytest.approx((8 / 9 + 1) / 2)


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
  assert found["compression"] == pytest.approx((10 + 2) / 2)  # the empty one has no ratio
  assert found["compression_total"] == pytest.approx(90 / 25)  # an empty one makes no other shorter
  of = found["evidence_tokens"], found["evidence_tokens_std"], found["evidence_empty"]
  assert of == (12.5, 7.5, pytest.approx(1 / 3)) and 0 < found["evidence_bleu"] < 100
  assert found["evidence_rouge_l"] == pytest.approx(2 / 3) == found["answer_recall"]
  # "paris", "rome", "sirap" against "paris": common letters 5, 1 (r), 5, of 10, 9, 10 in both together.
  assert found["char_f1"] == pytest.approx((1 + 2 / 9 + 1) / 3) and found["f1"] == pytest.approx(1 / 3)
  # The answer of another generator counts.
  episode = Episode.from_text(recipe, example, [("model", "Answer: Rome")], facts=dict(answer="Paris"))
  assert parts.last_answer(recipe.parser, episode) == "Paris"
  assert parts.last_answer(recipe.parser, dataclasses.replace(episode, facts={})) == "Rome"
