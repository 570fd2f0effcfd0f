import random

import hypothesis
import hypothesis.strategies as st

from ragrl_jax.evaluation.corpus_audit import Phrases

WORDS = st.lists(st.sampled_from("a b c d".split()), max_size=6).map(" ".join)


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(st.lists(WORDS, max_size=8), st.lists(WORDS, max_size=8), st.integers(1, 3))
def test_counts_are_those_of_a_search_for_each(phrases, texts, enough):
  counted = Phrases(dict.fromkeys(phrases, enough), texts[:2])
  for text in texts:
    counted.add(text)
  held = lambda phrase: sum(f" {phrase} " in f" {text} " for text in texts) if phrase else 0
  assert counted.counts == {phrase: min(enough, held(phrase)) for phrase in phrases}


def test_whole_words_by_hand():
  counted = Phrases({"paris": 9, "new york": 9, "york city": 1, "": 9}, [])
  for text in ("new york city", "york is new", "parisian new yorker", "paris and new york city"):
    counted.add(text)
  assert counted.counts == {"paris": 1, "new york": 2, "york city": 1, "": 0}  # the city is not counted twice


def test_many_phrases_and_a_sample():
  draw = random.Random(0)
  words = [f"w{draw.randrange(200)}" for _ in range(6000)]
  texts = [" ".join(words[i : i + 60]) for i in range(0, 6000, 60)]
  phrases = [" ".join(words[i : i + draw.randint(1, 9)]) for i in range(0, 5900, 7)]
  counted = Phrases(dict.fromkeys(phrases, 5), texts[:10])
  for text in texts:
    counted.add(text)
  assert all(count == min(5, sum(f" {p} " in f" {t} " for t in texts)) for p, count in counted.counts.items())
  assert 0 < sum(count == 5 for count in counted.counts.values()) < len(counted.counts)
