"""Tokens and words of any script. DPR's rule is in benchmarks/answer_rule.py, which compares it on real passages."""

import answer_rule
import hypothesis
import hypothesis.strategies as st
import pytest

from ragrl_jax.core.metrics import qa
from ragrl_jax.core.text import tokens

SIGNS = "aA éΣ's-_—.,、東京हि\u0928\u0e01\u0e34e\u0301İıß ½²€😀\u200b\u00a0\u0660٣\n"


def test_tokens_words_and_spaced_by_hand():
  for text, want in (
    ("The singer/songwriter, b. 1939-1945", "the singer / songwriter , b . 1939 - 1945"),
    ("Paris—based  a_b\u200bc\u00a0d", "paris — based a _ b c d"),
    ("O’Neill’s €5 😀", "o ’ neill ’ s € 5 😀"), ("Ünï", "u\u0308ni\u0308"),  # NFD
    ("हिन्दी。東京", "हिन्दी 。 東京"), ("", ""),
    ("ΑΣ'Β", "ας ' β"),  # each token in lower case by itself: a final sigma
  ):  # fmt: skip
    assert tokens.joined(text) == want
  assert tokens.joined("A Man", cased=True) == "A Man"
  assert tokens.words("Don't stop_it, é2") == ["Don", "t", "stop_it", "é2"]
  assert tokens.words("हिन्दी भाषा") == ["हिन्दी", "भाषा"]  # vowel signs are in the word
  assert tokens.words("NHK東京 ก\u0e34น") == ["NHK", "東", "京", "ก\u0e34", "น"]
  assert tokens.spaced(" NHK東京。ก\u0e34น  €5 a-b ") == "NHK 東 京 。 ก\u0e34 น €5 a-b"


@pytest.mark.parametrize("text, place, cut", [
  ("abc", 1, True), ("a b", 1, False), ("東京", 1, False), ("a東", 1, False), ("हिन", 2, True), ("e\u0301", 1, True),
  ("कि", 1, True), ("กร", 1, False), ("ab", 0, False), ("ab", 2, False), ("a.", 1, False),
])  # fmt: skip
def test_cuts_by_hand(text, place, cut):
  assert tokens.cuts(text, place) is cut


@hypothesis.given(st.lists(st.sampled_from(SIGNS), max_size=12), st.integers(0, 12), st.integers(1, 4))
def test_decisions_are_those_of_dprs_rule(letters, start, length):
  text, gold = "".join(letters), "".join(letters[start : start + length])
  if answer_rule.tokens(gold):  # by the script, an answer without tokens is in every text
    assert qa.has_answer(text, [gold]) is answer_rule.holds(text, [gold]), (text, gold)
  assert tokens.joined(text) == " ".join(answer_rule.tokens(text))
