"""Faults that users of other tools reported: what a model's folder says is lost or guessed. Threads name the kind."""

import json

import hf_folders
import ml_dtypes
import numpy as np
import pytest
import small_tokenizers
import tokenizers
from safetensors.numpy import save_file

from ragrl_jax.models import encoder, encoder_settings, weights
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.prompting.huggingface import HuggingFaceTokenizer

WORDS = "[PAD] [UNK] [CLS] [SEP] paris Paris a find: is".split()
QWEN = hf_folders.DECODERS["qwen3"]
SHAPES = hf_folders.decoder_shapes(QWEN)


def encoder_folder(path, *, mode="mean", length=16, bert=None, **told):
  """A small BERT with the files of sentence-transformers; `told` is config_sentence_transformers.json."""
  folder = hf_folders.write(path, hf_folders.BERT, hf_folders.bert_shapes(hf_folders.BERT))
  hf_folders.give_words(folder, WORDS)
  tokenizer = json.loads((folder / "tokenizer.json").read_text()) | dict(normalizer=None)  # a cased vocabulary
  kinds = dict(Transformer="", Pooling="1_Pooling", Normalize="2_Normalize")
  listed = [
    dict(idx=i, name=str(i), path=where, type=f"sentence_transformers.models.{kind}")
    for i, (kind, where) in enumerate(kinds.items())
  ]
  pooling = dict(word_embedding_dimension=16, pooling_mode_cls_token=False) | {f"pooling_mode_{mode}": True}
  (folder / "1_Pooling").mkdir()
  for name, value in {
    "tokenizer.json": tokenizer,
    "modules.json": listed,
    "1_Pooling/config.json": pooling,
    "sentence_bert_config.json": dict(max_seq_length=length) | (bert or {}),
    "config_sentence_transformers.json": told,
  }.items():
    (folder / name).write_text(json.dumps(value))
  return folder


@pytest.mark.parametrize("name", ["bge-finetuned-on-my-data", "e5-small", "all-MiniLM-L12-v2", "gte-modern", "x"])
def test_an_encoders_vectors_are_those_that_its_files_declare(tmp_path, name):
  """TEI #146, #244, sentence-transformers #1865: a server's vectors differ from the model's own settings."""
  prompts = dict(query="", document="")
  found = encoder_settings.settings_for(encoder_folder(tmp_path / name, mode="mean_tokens", prompts=prompts))
  assert (found.pooling, found.normalize, found.max_tokens) == ("mean", True, 16)
  assert (found.query_prefix, found.passage_prefix) == ("", "")
  other = encoder_settings.settings_for(encoder_folder(tmp_path / "c" / name, mode="cls_token", length=12))
  assert (other.pooling, other.max_tokens) == ("cls", 12)


def test_do_lower_case_makes_capitals_small(tmp_path):
  """vLLM #11815 (#11184): do_lower_case is misread, and capitals are lost or kept."""
  cased = encoder.load_encoder(encoder_folder(tmp_path / "cased", mode="mean_tokens"))
  lower = encoder.load_encoder(encoder_folder(tmp_path / "lower", mode="mean_tokens", bert=dict(do_lower_case=True)))
  # [CLS] paris [SEP] is 2 4 3; the cased vocabulary has a word "Paris", 5.
  assert cased._ids(["Paris", "paris"], "query") == [[2, 5, 3], [2, 4, 3]]
  assert lower._ids(["Paris", "paris"], "query") == [[2, 4, 3], [2, 4, 3]]


def test_the_default_prompt_is_put_before_every_text(tmp_path):
  """TEI #244: the default prompt of config_sentence_transformers.json is not used."""
  told = dict(prompts=dict(s2p="find: "), default_prompt_name="s2p")
  made = encoder.load_encoder(encoder_folder(tmp_path / "e", mode="mean_tokens", **told))
  assert made._ids(["paris"], "query") == made._ids(["paris"], "passage") == [[2, 7, 4, 3]]


def test_a_trained_head_beside_a_tied_flag_is_used(tmp_path):
  """transformers #45127: a head that was trained is lost, because config.json says that it is the embedding."""
  assert QWEN["tie_word_embeddings"]
  head = hf_folders.tensor("trained head", SHAPES["model.embed_tokens.weight"])
  model, config = weights.load_pretrained(hf_folders.write(tmp_path, QWEN, SHAPES, **{"lm_head.weight": head}))
  np.testing.assert_array_equal(model.unembedding(), head)
  assert not config.tied


def test_weights_of_eight_bits_are_not_read_without_their_scale(tmp_path):
  """unsloth #6978 (#6200): FP8 weights are read without weight_scale_inv."""
  name = "model.layers.0.self_attn.q_proj.weight"
  small = hf_folders.tensor(name, SHAPES[name]).astype(ml_dtypes.float8_e4m3fn)
  scaled = {name: small, f"{name}_scale_inv": np.ones((1, 1), np.float32)}
  for changed, says in ((scaled, f"{name}_scale_inv has no place"), ({name: small}, f"{name} is F8_E4M3")):
    folder = hf_folders.write(tmp_path / str(len(changed)), QWEN, {})
    save_file({one: hf_folders.tensor(one, shape) for one, shape in SHAPES.items()} | changed,
              folder / "model.safetensors")  # fmt: skip
    with pytest.raises(ValueError, match=says):
      weights.load_pretrained(folder)


@pytest.mark.parametrize(
  "key, value",
  [
    ("rope_scaling", dict(rope_type="yarn", factor=4.0)),
    ("rope_scaling", dict(rope_type="dynamic", factor=2.0)),
    ("rope_scaling", dict(rope_type="mrope", mrope_section=[1, 1, 2])),
    ("layer_types", ["full_attention", "sliding_attention"]), ("hidden_act", "gelu"), ("rms_norm_eps", None),
    ("text_config", dict(hidden_size=16)), ("partial_rotary_factor", 0.5),
    ("dual_chunk_attention_config", dict(chunk_size=8)), ("no_rope_layers", [0, 1]),
    ("auto_map", dict(AutoModel="modeling.Model")),
  ],
)  # fmt: skip
def test_a_key_that_changes_the_model_is_refused_and_not_ignored(key, value):
  """Scaled positions, windows and a model's own code, which a loader that skips unknown keys computes wrongly."""
  plain = {name: one for name, one in QWEN.items() if name != "rope_parameters"} | dict(rope_theta=100.0)
  DecoderConfig.from_hf(plain)
  with pytest.raises(ValueError, match=key if key != "rope_scaling" else "rope_type"):
    DecoderConfig.from_hf(plain | {key: value})


def test_truncation_and_padding_of_a_tokenizers_file_do_not_cut_prompts(tmp_path):
  """A fast tokenizer's file that was saved while it cut and padded its texts goes on doing so."""
  folder = small_tokenizers.byte_level(tmp_path)
  messages = [dict(role="user", content="The spouse of Danbel is Kormin. " * 4)]
  whole = HuggingFaceTokenizer(folder).render(messages)
  cutting = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
  cutting.enable_truncation(max_length=8)
  cutting.enable_padding(length=32)
  cutting.save(str(folder / "tokenizer.json"))
  assert HuggingFaceTokenizer(folder).render(messages) == whole and len(whole) > 32
