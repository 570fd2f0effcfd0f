import numpy as np
import pytest

from ragrl_jax.core.rewards import queries

KEYWORDS = ["Lavinia Dickinson father death date", "Oslo", "Albert III, Count of Namur birth date", "Jeopardy? cast"]
KEYWORDS += [" ".join(["Oslo"] * 12), "whatever band", "Dickinson's father"]
KEYWORDS += ["mayor of Oslo and Rome"]  # 2 of 5 are function words
QUESTIONS = ["when did Lavinia Norcross Dickinson's father die"]  # the paper's example of a good query
QUESTIONS += ["Oslo founder?", "Oslo founder ? ", "Oslo founder ? .", "Oslo founder？", '"Oslo founder?"', "?!", ""]
QUESTIONS += ["founder of what", "of the in Oslo", " ".join(["Oslo"] * 13), "what＇s Oslo", "it's she's Oslo"]
QUESTIONS += ["what's the capital city of France", "WHO’S the mayor of Oslo", "ʼhowʼd Oslo grow"]
QUESTIONS += ["where's Norsk Film seat located"]


def test_keywords_and_other_rules():
  for query in (*KEYWORDS, *QUESTIONS):
    assert bool(queries.is_keywords(query)) is (query in KEYWORDS), query
  long = " ".join(["Oslo"] * 13)
  assert queries.CONCISE["no_question"](long) and not queries.CONCISE["no_question"]("who?")
  assert not any(map(queries.CONCISE["no_question"], (f"who's {long}", f"who’s {long}", f"{long} ? .", f"{long}？")))
  assert queries.CONCISE["any"]("what on earth is it?")


def test_ngrams_by_hand():
  # " ab " has the trigrams " ab" and "ab "; " abc " has " ab", "abc", "bc ".
  assert queries.ngram_vectors(["ab", "AB", " abc"]).tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 1, 1]]
  assert queries.mean_similarity(queries.ngram_vectors(["ab", "abc"])) == pytest.approx(1 / np.sqrt(6))
  assert queries.ngram_vectors(["", "a"]).sum(axis=1).tolist() == [1, 1] and len(queries.ngram_vectors([])) == 0


def test_mean_similarity_by_hand():
  # Cosines of (1,0), (0,2), (-1,0): 0, −1, 0. As the paper prints it: their sum −1 over 3 · 2.
  vectors = [[1.0, 0.0], [0.0, 2.0], [-1.0, 0.0]]
  assert queries.mean_similarity(vectors) == pytest.approx(-1 / 3)
  assert queries.mean_similarity(vectors, halve=True) == pytest.approx(-1 / 6)
  assert queries.mean_similarity(vectors[::-1]) == queries.mean_similarity(vectors)
  assert queries.mean_similarity([[0.0, 0.0], [1.0, 0.0]]) == 0.0 == queries.mean_similarity([[1.0]])
  with pytest.raises(ValueError, match="finite"):
    queries.mean_similarity([[1.0], [float("nan")]])
  for count in (2, 3, 5):
    equal = queries.ngram_vectors(["Oslo founder"] * count)
    assert queries.mean_similarity(equal) == pytest.approx(1.0)
    assert queries.mean_similarity(equal, halve=True) == pytest.approx(0.5)


def test_forms_of_a_query_are_no_other_query():
  wide = "".join(chr(ord(one) + 0xFEE0) if one.isalpha() else one for one in "capital of france")
  for one, other in (
    ("capital of france", "c\u0430pit\u0430l of fr\u0430nce"),  # Cyrillic a
    ("capital of france", wide), ("capital of france", "Capital_of_France"),
    ("o'brien's wife 1939-40", "O’Brienʼs\u00a0wife 1939–40"),
  ):  # fmt: skip
    assert queries.mean_similarity(queries.ngram_vectors([one, other])) == pytest.approx(1.0)
  mayors = [f"{who} the mayor of Oslo" for who in ("who's", "who’s", "whoʼs", "who＇s", "who‘s")]
  for question in ("what_is_the_capital_of_the_country_france", "whatIsTheCapitalOfTheCountryFrance", *mayors):
    assert not queries.is_keywords(question)
  assert queries.is_keywords("iPhone_14 release")
  title = "Who's Who's-Friend"
  for asked in (title, "Who’s Who’s‑Friend", "Who‘s\u00a0Whoʼs–Friend"):
    assert queries.names_in(f"Where was {asked} made?") == [title] and queries.is_keywords(f"{asked} maker", [title])
  assert queries.names_in(f"a {'A' * 200_000}") == []  # at once, and so is the end of a title found
  assert queries.is_keywords("oslo mayor", [f"{' ' * 200_000}x"])
