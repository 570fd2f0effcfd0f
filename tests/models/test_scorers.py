"""Rerankers: what the two texts become, scores by hand, and independence of the batch."""

import shutil

import hf_folders
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scorer_folders
from refusals import refused
from safetensors.numpy import load_file

from ragrl_jax.models import bert, scorers
from ragrl_jax.structs import Passage

PAIRS = [
  ("a b", Passage("1", "", "the rhine flows")), ("a b", Passage("2", "c", "a , b .")),
  ("cologne", Passage("3", "", "a b c d the rhine flows through cologne a b c d a b c d")),
]  # fmt: skip
TOLD = dict(query_maxlen=8, doc_maxlen=12)


@pytest.fixture(scope="module")
def cross(tmp_path_factory):
  return scorer_folders.cross_encoder(tmp_path_factory.mktemp("m") / "cross")


@pytest.fixture(scope="module")
def colbert(tmp_path_factory):
  return scorer_folders.colbert(tmp_path_factory.mktemp("m") / "colbert", **TOLD)


@pytest.mark.slow  # compiles small models
def test_a_cross_encoder_reads_both_texts_with_their_types(cross):
  made = scorers.load_scorer(cross, "cross-encoder", batch=2)
  scores = made.scores(PAIRS)
  model, _ = bert.load_bert(cross, pooler=True, head="classifier")
  head = load_file(cross / "model.safetensors")
  # Title and text: "c a , b ."
  ids = [scorer_folders.WORDS.index(w) for w in "[CLS] a b [SEP] c a , b . [SEP]".split()]
  tokens, types = jnp.array([ids]), jnp.array([[0] * 4 + [1] * 6])
  want = jax.jit(lambda m: m.pooled(m.hidden(tokens, jnp.ones_like(tokens), types=types)[:, 0]))(model)
  want = np.asarray(want) @ head["classifier.weight"].T + head["classifier.bias"]
  assert scores[1] == pytest.approx(float(want[0, 0]), abs=1e-5)
  np.testing.assert_array_equal(np.concatenate([made.scores([pair]) for pair in PAIRS]), scores)
  assert made.settings["max_tokens"] == model.config.max_position


@pytest.mark.slow  # compiles small models
def test_late_interaction_by_hand(colbert):
  made = scorers.load_scorer(colbert, "late-interaction", batch=2)
  at = scorer_folders.WORDS.index
  ids, mask, counts = made._query("a b")
  assert ids.tolist() == [at(w) for w in "[CLS] [unused0] a b [SEP] [MASK] [MASK] [MASK]".split()]
  assert mask.tolist() == [1] * 5 + [0] * 3 and counts.tolist() == [1] * 8
  ids, mask, counts = made._passage("c a , b .")
  assert ids.tolist() == [at(w) for w in "[CLS] [unused1] c a , b . [SEP]".split()]
  assert mask.all() and counts.tolist() == [1, 1, 1, 1, 0, 1, 0, 1]
  assert len(made._passage(PAIRS[2][1].text)[0]) == TOLD["doc_maxlen"]  # cut, and still ends with [SEP]
  query = made._run([made._query("a b")])[0][:8]
  passage = made._run([made._passage("c a , b .")])[0][:8]
  np.testing.assert_allclose(np.linalg.norm(query, axis=1), 1.0, atol=1e-5)
  best = [max(float(q @ d) for d, counted in zip(passage, counts) if counted) for q in query]
  scores = made.scores(PAIRS)
  assert scores[1] == pytest.approx(sum(best), abs=1e-5)
  np.testing.assert_array_equal(np.concatenate([made.scores([pair]) for pair in PAIRS]), scores)


def test_folders_with_mistakes(cross, colbert, tmp_path):
  refused("it must be one of cross-encoder, late-interaction", scorers.load_scorer, cross, "poly-encoder")
  refused("linear.weight has no place", scorers.load_scorer, colbert, "cross-encoder")
  refused("classifier.bias has no place", scorers.load_scorer, cross, "late-interaction")
  modern = hf_folders.write(tmp_path, hf_folders.MODERNBERT, hf_folders.modernbert_shapes(hf_folders.MODERNBERT))
  refused("a ModernBERT: late interaction is only supported", scorers.load_scorer, modern, "late-interaction")


@pytest.mark.parametrize("text, message", [
  ('{"query_maxlen": "8"}', "query_maxlen is '8': it must be a whole number"), ("{", "artifact.metadata is not JSON"),
])  # fmt: skip
def test_bad_settings_of_late_interaction_name_their_file(colbert, tmp_path, text, message):
  shutil.copytree(colbert, tmp_path / "bad")
  (tmp_path / "bad" / "artifact.metadata").write_text(text)
  refused(message, scorers.load_scorer, tmp_path / "bad", "late-interaction")
