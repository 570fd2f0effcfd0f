"""Columns of searches, tokens and confidence, by hand."""

import math

import pytest

from ragrl_jax.core.metrics import searches
from ragrl_jax.evaluation import conduct_rows
from ragrl_jax.structs import ENVIRONMENT, MODEL, Episode, Example, Passage, Segment

PARIS, OSLO = Passage("1", "France", "Its capital is Paris."), Passage("2", "Norway", "Its capital is Oslo.")
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
  found = conduct_rows.row(
    example, played(("x", [PARIS]), ("y", [AGAIN]), logprobs=[math.log(0.5), math.log(0.125)]), "in Oslo"
  )
  # The second search brings the first one's text under another id. One of two gold documents; no passage names Oslo.
  assert found == dict(
    precision=0.5, recall=1.0, repeated_searches=0, stale_searches=1, found_answer=0.0, found_gold=0.5,
    confidence=pytest.approx(0.25),
  )  # fmt: skip
  both = conduct_rows.row(example, played(("x", [PARIS, OSLO]), logprobs=[0.0]), None)
  assert (both["found_answer"], both["found_gold"], both["confidence"], both["recall"]) == (1.0, 1.0, 1.0, 0.0)
  nothing = conduct_rows.row(example, played(("x", [])), "in Oslo")
  assert (nothing["found_answer"], nothing["found_gold"]) == (0.0, 0.0)
  assert conduct_rows.row(example, played(), "in Oslo")["found_gold"] is None


def test_what_is_not_known_is_none():
  example = Example("q", "?", ("Yes",))
  assert conduct_rows.row(example, played(("x", [OSLO])), "yes")["found_answer"] is None  # a string that says nothing
  assert conduct_rows.row(example, played(("x", [OSLO])), "yes")["found_gold"] is None
  assert conduct_rows.row(Example("q", "?", ("a",)), played(logprobs=[-1.0]), "")["found_answer"] is None  # no search
  assert conduct_rows.confidence(played()) is None  # transcripts have no log-probabilities
  assert conduct_rows.confidence(played(logprobs=[-1.0], answer="of a generator")) is None
  assert conduct_rows.row(example, played(ended="failed"), None) == {}


def test_means_and_calibration():
  rows = [
    dict(found_answer=1.0, confidence=0.9, outcome=1.0, prediction="a", episode_tokens=30, response_tokens=10),
    dict(found_answer=None, confidence=0.6, outcome=0.0, prediction="b", episode_tokens=50, response_tokens=10),
    dict(found_answer=0.0, confidence=0.7, outcome=None, prediction="c", episode_tokens=40, response_tokens=10),
    dict(found_answer=0.0, confidence=0.8, outcome=0.0, prediction=None, episode_tokens=40, response_tokens=10),
  ]
  found = conduct_rows.summarise(rows)
  assert found["found_answer"] == pytest.approx(1 / 3) and found["given_tokens"] == 30
  assert found["confidence"] == pytest.approx(0.75) and found["brier"] == pytest.approx((0.01 + 0.36) / 2)
  assert found["ece"] == pytest.approx((0.1 + 0.6) / 2)
  assert conduct_rows.summarise([]) == {} == conduct_rows.summarise([dict(em=1.0, outcome=1.0, prediction="a")])
