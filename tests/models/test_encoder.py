"""Text encoders against recorded outputs of transformers, and the properties that retrieval needs."""

import dataclasses
import json
import pathlib

import hf_folders
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused

from ragrl_jax.models import bert, encoder, encoder_settings
from ragrl_jax.parallel import mesh as mesh_lib
from ragrl_jax.structs import Passage

GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "models_encoders.json").read_text())
BOTH_WAYS = hf_folders.DECODERS["gemma3_text"] | dict(vocab_size=30, use_bidirectional_attention=True, sliding_window=4)
WORDS = "[PAD] [UNK] [CLS] [SEP] query: passage: the rhine flows through cologne who is in a b c".split()


def folder_of(path, config, shapes, **changed):
  return hf_folders.give_words(hf_folders.write(path, config, shapes, **changed), WORDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return folder_of(tmp_path_factory.mktemp("bert"), hf_folders.BERT, hf_folders.bert_shapes(hf_folders.BERT))


@pytest.fixture(scope="module")
def mean(folder):
  settings = encoder_settings.EncoderSettings("mean", False, "query: ", "passage: ", max_tokens=16, title_separator=" ")
  return encoder.load_encoder(folder, settings=settings, batch=4)


@pytest.mark.parametrize("kind, pooling", [
  *((kind, pooling) for kind in ("bert", "mpnet") for pooling in ("mean", "cls", "pooler")), ("modernbert", "mean"),
])  # fmt: skip
def test_transformers_states(kind, pooling, tmp_path):
  golden, config = GOLDEN[kind], hf_folders.ENCODERS[kind]
  path = folder_of(tmp_path, config, hf_folders.bert_shapes(config))
  made = encoder.load_encoder(path, settings=dict(pooling=pooling, normalize=False))
  got = made.encode(jnp.asarray(golden["tokens"]), jnp.asarray(golden["mask"]))
  np.testing.assert_allclose(got, golden[pooling], atol=1e-5)


def test_norms_named_as_in_the_first_berts(mean, tmp_path):
  shapes = hf_folders.bert_shapes(hf_folders.BERT)
  older = lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
  path = folder_of(tmp_path, hf_folders.BERT, {}, **{older(n): hf_folders.tensor(n, s) for n, s in shapes.items()})
  made = encoder.load_encoder(path, settings=mean._settings)
  np.testing.assert_array_equal(made.queries(["a b"]), mean.queries(["a b"]))


def test_robertas_positions_begin_behind_the_padding(folder, mean, tmp_path):
  config = hf_folders.BERT | dict(model_type="xlm-roberta", max_position_embeddings=34, pad_token_id=1)
  name, unused = "embeddings.position_embeddings.weight", np.full((2, 16), 9.0, np.float32)
  rows = np.concatenate([unused, hf_folders.tensor(name, (32, 16))])
  path = folder_of(tmp_path, config, hf_folders.bert_shapes(config), **{name: rows})
  made = encoder.load_encoder(path, settings=mean._settings)
  np.testing.assert_allclose(made.queries(["a b", "the rhine"]), mean.queries(["a b", "the rhine"]), atol=1e-6)
  assert bert.load_bert(path, pooler=False)[1].max_position == 32


@pytest.mark.slow  # reads a real model of 90 MB and compiles six layers
def test_the_real_minilm():
  golden = GOLDEN["minilm"]
  made = encoder.load_encoder(hf_folders.minilm())
  assert made.settings["pooling"] == "mean" and made.settings["max_tokens"] == 256 and made.dim == 384
  got = made.queries(golden["sentences"])
  np.testing.assert_allclose(got[:, :16], golden["first"], atol=1e-5)
  np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1.0, atol=1e-5)


def test_prefixes_titles_and_order(mean):
  texts = ["who is in cologne", "a", "the rhine flows through cologne"]
  got = mean.queries(texts)
  assert got.shape == (3, 16) and got.dtype == np.float32
  # "query: a" is [CLS] query: a [SEP]: ids 2 4 14 3. The model gives their mean state.
  by_hand = lambda *ids: mean.encode(jnp.array([ids]), jnp.ones((1, len(ids)), jnp.int32))
  np.testing.assert_allclose(got[1:2], by_hand(2, 4, 14, 3), atol=1e-5)
  # The passage "a", "b c" is "passage: a b c": 2 5 14 15 16 3. Without a title it is the text alone.
  passages = mean.passages([Passage("1", "a", "b c"), Passage("2", "", "b")])
  np.testing.assert_allclose(passages[:1], by_hand(2, 5, 14, 15, 16, 3), atol=1e-5)
  np.testing.assert_allclose(passages[1:], by_hand(2, 5, 15, 3), atol=1e-5)


def test_a_vector_depends_only_on_its_text(mean):
  texts = ["a b c", "the rhine", "who is in cologne a b c a b c a b c", "c"]
  alone = np.concatenate([mean.embed_texts([text], "passage") for text in texts])
  for order in ([0, 1, 2, 3], [3, 1, 2, 0]):
    np.testing.assert_array_equal(mean.embed_texts([texts[i] for i in order], "passage"), alone[order])
  np.testing.assert_array_equal(mean.embed_texts(texts * 3, "passage"), np.tile(alone, (3, 1)))


def test_long_texts_are_cut_and_empty_texts_are_encoded(mean):
  # 16 tokens: [CLS], passage:, 13 words, [SEP]
  words = ["a"] * 13
  got = mean.embed_texts([" ".join(words), " ".join([*words, "b", "c"]), ""], "passage")
  np.testing.assert_array_equal(got[0], got[1])
  assert np.isfinite(got).all()
  assert mean.embed_texts([], "query").shape == (0, 16)


def test_a_known_length_needs_no_new_program(mean):
  mean.embed_texts(["a b", "who is in cologne"], "query")
  before = mean._run._cache_size()
  mean.embed_texts(["c"] * 30, "query")
  assert mean._run._cache_size() == before


@pytest.mark.parametrize("kind", [
  "bert", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("mpnet", "modernbert", "gemma3_text")),  # long
])  # fmt: skip
def test_a_mesh_gives_the_same_vectors(kind, mean, tmp_path):
  decodes, settings = kind == "gemma3_text", mean._settings
  config = BOTH_WAYS if decodes else hf_folders.ENCODERS[kind]
  path = folder_of(tmp_path, config, (hf_folders.decoder_shapes if decodes else hf_folders.bert_shapes)(config))
  hf_folders.give_dense(path, ((16, 8, True),) if kind == "bert" else ())
  if decodes:  # its gains of about 2 in four norms a layer make vectors long, and enlarge what is rounded
    settings = dataclasses.replace(settings, normalize=True)
  one, spread = (
    encoder.load_encoder(path, settings=settings, batch=4, mesh=mesh) for mesh in (None, mesh_lib.make(jax.devices()))
  )
  texts = ["a b c", "the rhine flows through cologne who is in a b c", "c"]
  np.testing.assert_allclose(spread.queries(texts), one.queries(texts), atol=1e-5)
  assert spread.settings == one.settings
  if not decodes:
    short = encoder.load_encoder(path, settings=settings, batch=4, dtype="bfloat16").queries(texts)
    np.testing.assert_allclose(short, one.queries(texts), atol=0.1)


@pytest.mark.slow  # four small models
def test_two_towers_without_normalisation(tmp_path):
  config = hf_folders.BERT | dict(model_type="dpr", projection_dim=0)
  question, passage = "question_encoder.bert_model.", "ctx_encoder.bert_model."
  shapes = lambda root: {n: shape for n, shape in hf_folders.bert_shapes(config, root).items() if "pooler" not in n}
  paths = [folder_of(tmp_path / f"dpr-{root[:3]}", config, shapes(root)) for root in (question, passage)]
  made = encoder.load_encoder(paths[0], passage_path=paths[1])
  assert (made.settings["pooling"], made.settings["normalize"]) == ("cls", False)  # the preset of the folder's name
  both = [made.queries(["a b"]), made.embed_texts(["a b"], "passage")]
  towers = [bert.load_bert(path, pooler=False)[0] for path in paths]
  for got, tower in zip(both, towers):  # DPR's vector is the first token's state
    want = jax.jit(lambda model: model.hidden(jnp.array([[2, 14, 15, 3]]), jnp.ones((1, 4), jnp.int32))[:, 0])(tower)
    np.testing.assert_allclose(got, want, atol=1e-5)
  assert np.abs(both[0] - both[1]).max() > 0.01


@pytest.mark.slow  # two lengths of a decoder to compile
def test_a_decoder_embeds_with_its_last_token(tmp_path):
  config = hf_folders.DECODERS["qwen3"]
  made = encoder.load_encoder(folder_of(tmp_path / "Qwen3-Embedding-tiny", config, hf_folders.decoder_shapes(config)))
  assert made.settings["query_prefix"].startswith("Instruct: ") and made.settings["max_tokens"] == 128
  tokens = jnp.array([[2, 14, 15, 3, 0, 0], [0, 0, 2, 14, 15, 3]])
  got = made.encode(tokens, jnp.array([[1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1]]))
  alone = made.encode(tokens[:1, :4], jnp.ones((1, 4), jnp.int32))
  np.testing.assert_allclose(got, jnp.concatenate([alone, alone]), atol=1e-5)  # padded on either side
  np.testing.assert_allclose(jnp.linalg.norm(got, axis=-1), 1.0, atol=1e-5)


def test_an_instruction_of_ones_own_is_put_before_queries_and_kept(folder, mean):
  own = encoder.load_encoder(folder, settings=mean._settings, query_prefix="who ")
  assert own.settings == {**mean.settings, "query_prefix": "who "}
  ids = jnp.array([own._tokenizers["query"].encode("who a").ids])
  np.testing.assert_allclose(own.queries(["a"]), mean.encode(ids, jnp.ones_like(ids)), atol=1e-5)
  np.testing.assert_array_equal(own.embed_texts(["a"], "passage"), mean.embed_texts(["a"], "passage"))


def test_folders_without_an_encoder_are_refused(tmp_path):
  plain, modern = hf_folders.BERT, hf_folders.MODERNBERT
  rope = dict(full_attention=dict(rope_type="linear", rope_theta=modern["global_rope_theta"], factor=2.0))
  for name, config, changed, says in (
    ("luke", plain | dict(model_type="luke"), {}, "model_type 'luke' is not a BERT"),
    ("relu", plain | dict(hidden_act="relu"), {}, "hidden_act is 'relu'"),
    ("short", plain, {"pooler.dense.weight": None}, "no tensor pooler.dense.weight"),
    ("more", plain, {"adapter.weight": np.zeros(2, np.float32)}, "tensor adapter.weight has no place"),
    ("code", hf_folders.DECODERS["qwen3"] | dict(auto_map=dict(AutoModel="modeling.Model")), {}, "auto_map"),
    ("few", hf_folders.MPNET | dict(relative_attention_num_buckets=16), {}, "relative_attention_num_buckets is 16"),
    ("tanh", modern | dict(hidden_activation="tanh"), {}, "hidden_activation is 'tanh'"),
    ("kinds", modern | dict(layer_types=["full_attention", "chunked_attention"]), {}, "layer_types has"),
    ("eps", modern | dict(layer_norm_eps=1e-12), {}, "layer_norm_eps is 1e-12"),
    ("null", modern | dict(local_rope_theta=None), {}, "no rope_theta"),
    ("rope", modern | dict(rope_parameters=rope), {}, "rope_type 'linear'"),
    ("scaling", modern | dict(rope_scaling=rope), {}, "rope_scaling is"),
    ("odd", modern | dict(num_attention_heads=16), {}, "each head must have an even size"),
    ("first", modern, {}, "a ModernBERT has no pooler"),
    ("head", modern, {"classifier.weight": np.zeros((1, 16), np.float32)}, "classifier.weight has no place"),
  ):
    shapes = hf_folders.bert_shapes(hf_folders.ENCODERS.get(config["model_type"], plain))
    wrong = folder_of(tmp_path / name, config, shapes, **changed)
    pooling = "last" if name == "code" else "pooler" if "pooler" in says else "cls"
    refused(says, encoder.load_encoder, wrong, settings=dict(pooling=pooling, normalize=True))
  bare = hf_folders.write(tmp_path / "bare", plain, hf_folders.bert_shapes(plain))
  refused("has no tokenizer", encoder.load_encoder, bare, settings="bge")


def test_a_mark_identifies_weights_and_tokenizer(folder, mean, tmp_path):
  shapes = hf_folders.bert_shapes(hf_folders.BERT)
  other = folder_of(tmp_path, hf_folders.BERT, shapes, **{"pooler.dense.bias": np.zeros(16, np.float32)})
  more = hf_folders.give_words(hf_folders.write(tmp_path / "more", hf_folders.BERT, shapes), [*WORDS, "new"])
  marks = [encoder.load_encoder(path, settings=mean._settings).settings for path in (folder, other, more)]
  differs = [{name for name in mean.settings if mark[name] != mean.settings[name]} for mark in marks]
  assert differs == [set(), {"weights"}, {"tokens"}]
