import random

import numpy as np
import pytest

from ragrl_jax.retrieval import build_index, load_index
from ragrl_jax.retrieval.encoders import HashingEncoder, _code
from ragrl_jax.structs import Passage

RELATIONS = ("spouse", "mentor", "employer", "birthplace", "founder", "rival", "seat", "mayor", "twin")
WORDINGS = ("The {r} of {s} is {o}.", "{o} is the {r} of {s}.", "{s} has {o} as {r}.")


def facts(entities):
  """[(relation, subject)], passages: about three facts per entity, each stated once. Objects are subjects elsewhere."""
  draw = random.Random(0)
  syllables = [a + v + b for a in "bdfgklmprstvz" for v in "aeiou" for b in "nrlskm" if a != b]
  names = {"".join(draw.choice(syllables) for _ in range(draw.choice((2, 3)))).capitalize() for _ in range(entities)}
  names = sorted(names)
  keys = [(relation, subject) for subject in names for relation in draw.sample(RELATIONS, draw.choice((3, 3, 3, 4)))]
  texts = [draw.choice(WORDINGS).format(r=relation, s=subject, o=draw.choice(names)) for relation, subject in keys]
  return keys, [Passage(f"f{i}", subject, text) for i, ((_, subject), text) in enumerate(zip(keys, texts))]


@pytest.mark.slow  # thousands of searches in 13,000 passages
def test_the_passage_with_the_fact_comes_first(tmp_path):
  keys, passages = facts(4100)
  assert len(passages) > 12_500
  build_index(passages, "hashing", tmp_path / "i", encoder_options=dict(seed=0), progress=False)
  retriever, asked = load_index(tmp_path / "i"), random.Random(0).sample(range(len(keys)), 500)
  for wording in ("{} {}", "Who is the {} of {}?"):
    answers = retriever.search([wording.format(*keys[i]) for i in asked], 1)
    right = sum(found[0].id == f"f{i}" for i, found in zip(asked, answers))
    assert right / len(asked) >= 0.995


def test_the_inner_product_estimates_bm25():
  # Without the title both sides are the same BM25; ours keeps the factor k1 + 1, bm25s drops it. So the mean over many
  # seeds of the codes is close to it.
  draw = random.Random(0)
  passages = [Passage(str(i), "", " ".join(draw.choices([f"w{j}" for j in range(30)], k=12))) for i in range(40)]
  frequencies = {f"w{j}": sum(f"w{j}" in p.text.split() for p in passages) for j in range(30)}
  query = "w1 w2 w3"
  exact = []
  for p in passages:
    counts = {w: p.text.split().count(w) for w in query.split()}
    idf = lambda w: np.log1p((40 - frequencies[w] + 0.5) / (frequencies[w] + 0.5))
    exact.append(sum(idf(w) * c * 1.9 / (c + 0.9) for w, c in counts.items()))
  encoders = [HashingEncoder.fit(passages, dim=256, seed=seed) for seed in range(60)]
  estimates = [one.passages(passages) @ one.queries([query])[0] for one in encoders]
  # The standard deviation of one estimate is below 0.5, of the mean of 60 below 0.07.
  np.testing.assert_allclose(np.mean(estimates, axis=0), exact, atol=0.25)
  assert np.std(estimates) > 0


def test_codes_never_change():
  # The first little-endian 32-bit words of BLAKE2b-512("kaltun"), with a salt of eight zero bytes, are 3754442524,
  # 2006015842, 1605008304, 705454856. Entry p is at 32 p + (draw >> 1) % 32, and negative for an even draw.
  at, signs = _code("kaltun", 0, 512)
  assert at[:4].tolist() == [14, 32 + 17, 64 + 24, 96 + 4] and signs[:4].tolist() == [-1.0, -1.0, -1.0, -1.0]


def test_title_words_count_more_and_unknown_words_and_stop_words_find_nothing():
  passages = [Passage("a", "Kaltun", "The mentor of Kaltun is Belmor."), Passage("b", "Belmor", "A mentor: Kaltun.")]
  encoder = HashingEncoder.fit(passages)
  scores = encoder.passages(passages) @ encoder.queries(["mentor Kaltun"])[0]
  assert scores[0] > scores[1]
  assert not encoder.queries(["xyzzy of the", "", "山"]).any()
  assert (encoder.queries(["mentor xyzzy"]) == encoder.queries(["the MENTOR"])).all()


def test_it_is_read_back_from_disk_unchanged(tmp_path):
  passages = [Passage("a", "Kaltun", "The mentor of Kaltun is Belmor."), Passage("b", "山", "x")]
  encoder = HashingEncoder.fit(passages, dim=64, seed=5, title_weight=1.5)
  encoder.save(tmp_path / "e.json")
  again = HashingEncoder.load(tmp_path / "e.json")
  assert again.settings == encoder.settings and again.dim == 64
  assert (again.passages(passages) == encoder.passages(passages)).all()
  assert (again.queries(["mentor 山"]) == encoder.queries(["mentor 山"])).all()
