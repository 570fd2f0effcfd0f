"""An encoder's settings: what its folder declares, under any name, and a family's defaults where it is silent."""

import json
import shutil

import hf_folders
import pytest
from refusals import refused

from ragrl_jax.models import encoder, encoder_settings
from ragrl_jax.models.encoder_settings import EncoderSettings

NAMES = ("e5-base-v2", "bge-finetuned-on-my-data", "bge-small-zh", "gte-cls", "dpr-question", "Qwen3-Embedding", "x")
INSTRUCTION = "Represent this sentence for searching relevant passages: "
TASK = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"


def sentence_transformers(path, modes, modules=("Transformer", "Pooling", "Normalize"), length=200, **told):
  """The files of sentence-transformers, without a model; `told` is config_sentence_transformers.json."""
  (path / "1_Pooling").mkdir(parents=True)
  kinds = [module if "." in module else f"sentence_transformers.models.{module}" for module in modules]
  place = lambda i, kind: f"{i}_{kind.split('.')[-1]}" if i else ""
  listed = [dict(idx=i, name=str(i), path=place(i, kind), type=kind) for i, kind in enumerate(kinds)]
  (path / "modules.json").write_text(json.dumps(listed))
  (path / "1_Pooling" / "config.json").write_text(json.dumps(dict(word_embedding_dimension=16) | modes))
  (path / "sentence_bert_config.json").write_text(json.dumps(dict(max_seq_length=length)))
  (path / "config_sentence_transformers.json").write_text(json.dumps(told))
  return path


MEAN = dict(pooling_mode_mean_tokens=True, pooling_mode_cls_token=False)


@pytest.mark.parametrize("name", NAMES)
def test_the_real_minilm_has_its_own_settings_under_any_name(name, tmp_path):
  """modules.json: mean and Normalize; sentence_bert_config.json: 256 tokens; its config.json names MiniLM."""
  folder = tmp_path / name
  shutil.copytree(hf_folders.minilm(), folder, ignore=shutil.ignore_patterns("*.safetensors", "tokenizer.json"))
  assert encoder_settings.settings_for(folder) == EncoderSettings("mean", True, "", "", 256, " ")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prompts", [{}, dict(query="Q: ", document="D: ")])
def test_declared_settings_win_over_any_name(name, prompts, tmp_path):
  folder = sentence_transformers(tmp_path / name, MEAN, length=128, prompts=prompts)
  found = encoder_settings.settings_for(folder)
  prefixes = prompts.get("query", ""), prompts.get("document", "")
  assert found == EncoderSettings("mean", True, *prefixes, 128, found.title_separator)


@pytest.mark.parametrize("name, query, passage", [
  ("e5-base-v2", "query: ", "passage: "), ("intfloat_multilingual-e5-small", "query: ", "passage: "),
  ("my-finetuned-model", "", ""),
  ("0a1b2c3e5f60", "", ""),  # a name of the hub's cache, which only contains "e5"
  ("bge-base-en-v1.5", "", ""),  # BGE pools the first token: this one is not a BGE
  ("dpr-ctx", "", ""),  # DPR's vectors are not normalised
])  # fmt: skip
def test_a_familys_prefixes_only_where_no_file_has_prompts(name, query, passage, tmp_path, caplog):
  folder = sentence_transformers(tmp_path / name, MEAN)
  found = encoder_settings.settings_for(folder)
  assert (found.query_prefix, found.passage_prefix, found.max_tokens) == (query, passage, 200)
  (line,) = [record.message for record in caplog.records]
  assert "pooling='mean' (modules.json)" in line and "max_tokens=200 (sentence_bert_config.json" in line
  if query:
    assert "query_prefix='query: ' (e5, by the folder's name)" in line
    assert "max_tokens=200 (sentence_bert_config.json; e5 has 256)" in line
  if name.startswith("bge"):
    assert "the folder's name says bge, but this model differs from it" in line


def test_a_file_names_the_family_before_the_folder_does(tmp_path):
  folder = sentence_transformers(tmp_path / "e5-copy", dict(pooling_mode_cls_token=True))
  (folder / "config.json").write_text(json.dumps(dict(model_type="bert", _name_or_path="/root/BAAI_bge-base-en/")))
  assert encoder_settings.settings_for(folder).query_prefix == INSTRUCTION
  (folder / "config.json").write_text(json.dumps(dict(model_type="bert", _name_or_path="BAAI/bge-small-zh-v1.5")))
  assert encoder_settings.settings_for(folder).query_prefix.endswith("检索相关文章：")


@pytest.mark.parametrize("name, kind, want", [
  ("e5-base-v2", "bert", ("mean", True, "query: ", "passage: ", 256)),
  ("bge-large-en-v1.5", "bert", ("cls", True, INSTRUCTION)), ("gte-base", "bert", ("mean", True)),
  ("gte-modernbert-base", "modernbert", ("cls", True, "", "", 8192)),
  ("Qwen3-Embedding-0.6B", "qwen3", ("last", True, TASK, "", 8192)),
  ("multilingual-e5-large-instruct", "xlm-roberta", ("mean", True, f"{TASK} ", "", 512)),
  ("bge-m3", "xlm-roberta", ("cls", True, "", "", 8192)), ("All-MiniLM-L6", "bert", ("mean", True, "", "", 256, " ")),
  ("question-encoder", "dpr", ("cls", False, "", "", 256, " [SEP] ")),  # the architecture says it
])  # fmt: skip
def test_without_modules_a_family_gives_all_settings(name, kind, want, tmp_path):
  (tmp_path / name).mkdir()
  (tmp_path / name / "config.json").write_text(json.dumps(dict(model_type=kind)))
  assert encoder_settings.settings_for(tmp_path / name) == EncoderSettings(*want)


@pytest.mark.parametrize("name, kind", [("e5-mistral-7b-instruct", "mistral"), ("Qwen3-Embedding", "bert")])
def test_a_family_does_not_fit_another_architecture(name, kind, tmp_path):
  folder = sentence_transformers(tmp_path / name, dict(pooling_mode_lasttoken=True), ("Transformer", "Pooling"))
  (folder / "config.json").write_text(json.dumps(dict(model_type=kind)))
  assert encoder_settings.settings_for(folder) == EncoderSettings("last", False, "", "", 200, " ")


@pytest.mark.parametrize("told, want", [
  (dict(prompts=dict(query="Q", passage="P")), ("Q", "P")),
  (dict(prompts=dict(query="Q", document="D", passage="P")), ("Q", "D")),  # the order of encode_document
  (dict(prompts=dict(s2p="S"), default_prompt_name="s2p"), ("S", "S")),  # encode uses it for all texts
  (dict(prompts=dict(query="Q", s="S"), default_prompt_name="s"), ("Q", "S")),
  (dict(prompts=dict(query="", document=""), default_prompt_name=None), ("", "")),
  (dict(prompts=dict(s2p_query="S")), ("", "")),
])  # fmt: skip
def test_prompts_as_in_sentence_transformers(told, want, tmp_path):
  found = encoder_settings.settings_for(sentence_transformers(tmp_path / "e5", MEAN, **told))
  assert (found.query_prefix, found.passage_prefix) == want


@pytest.mark.parametrize("similarity, normalize", [("cosine", True), ("dot", False), (None, False)])
def test_cosines_are_inner_products_of_normalised_vectors(similarity, normalize, tmp_path):
  folder = sentence_transformers(tmp_path / "x", MEAN, ("Transformer", "Pooling"), similarity_fn_name=similarity)
  assert encoder_settings.settings_for(folder).normalize == normalize


@pytest.mark.parametrize("length, tokenizer, want", [
  (None, 128, 128), (None, int(1e30), 512), (64, 128, 64), (32768, None, 8192),  # 8192: the longest text here
])  # fmt: skip
def test_the_longest_text(length, tokenizer, want, tmp_path):
  folder = sentence_transformers(tmp_path / "x", MEAN, length=length)
  if tokenizer:
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(model_max_length=tokenizer)))
  assert encoder_settings.settings_for(folder).max_tokens == want


def test_modes_as_later_versions_write_them(tmp_path):
  modules = [f"sentence_transformers.sentence_transformer.modules.{m.lower()}.{m}" for m in ("Transformer", "Pooling")]
  folder = sentence_transformers(tmp_path / "x", dict(pooling_mode="lasttoken"), modules)
  assert encoder_settings.settings_for(folder).pooling == "last"


def test_given_settings_win_and_the_difference_is_said(tmp_path, caplog):
  folder = sentence_transformers(tmp_path / "x", MEAN, length=512)
  assert encoder_settings.settings_for(folder, "e5") == encoder_settings.PRESETS["e5"]
  assert "max_tokens=256 (given; sentence_bert_config.json has 512)" in caplog.text
  caplog.clear()
  given = encoder_settings.settings_for(folder, dict(max_tokens=64), query_prefix="q ")  # the rest is declared
  assert given == EncoderSettings("mean", True, "q ", "", 64, " ")
  stored = encoder_settings.stored(dict(pooling="cls", normalize=False, max_tokens=7, weights="0a"))
  caplog.clear()
  assert encoder_settings.settings_for(folder, stored).max_tokens == 7 and not caplog.records


@pytest.mark.parametrize("modes, modules, told, says", [
  (dict(pooling_mode_max_tokens=True), (), {}, "pooling='pooling_mode_max_tokens'"),
  (dict(pooling_mode_mean_tokens=True, pooling_mode_cls_token=True), (), {}, "pooling='mean and cls'"),
  (dict(pooling_mode="weightedmean"), (), {}, "pooling='weightedmean'"), (dict(), (), {}, "pooling='nothing'"),
  (MEAN | dict(include_prompt=False), (), {}, "include_prompt=false"),
  (MEAN, ("Transformer", "Pooling", "LSTM"), {}, r"the module sentence_transformers\.models\.LSTM"),
  (MEAN, ("Transformer", "Normalize"), {}, "must list .* a Pooling module"),
  (MEAN, ("Transformer", "Pooling", "Normalize", "Dense"), {}, "must list .* in this order"),
  (MEAN, ("custom_st.Transformer", "Pooling"), {}, "custom_st.Transformer is not supported"),
  (MEAN, (), dict(similarity_fn_name="euclidean"), "similarity_fn_name is 'euclidean'"),
  (MEAN, (), dict(model_type="SparseEncoder"), "model_type is 'SparseEncoder'"),
  (MEAN, (), dict(suffix="<|im_end|>"), "suffix is .*may change what the model computes"),
  (MEAN, (), dict(default_prompt_name="query"), "default_prompt_name is 'query': it must be one of prompts"),
])  # fmt: skip
def test_what_is_declared_and_not_supported_is_refused(modes, modules, told, says, tmp_path):
  kinds = modules or ("Transformer", "Pooling", "Normalize")
  refused(says, encoder_settings.settings_for, sentence_transformers(tmp_path / "x", modes, kinds, **told))


def test_invalid_settings_are_refused(tmp_path):
  mean = dict(pooling="mean", normalize=True)
  for given, says in (
    ("e6", "it must be one of e5"),
    (dict(pooling="mean"), r"normalize: unknown.*--encoder_options '\{\"settings\": \"e5\"\}'"),
    (mean | dict(pooling="max"), "max"), (mean | dict(prefix=""), "prefix"),
    (mean | dict(max_tokens=0), "max_tokens=0"), (None, "this encoder's normalize, pooling: unknown"),
  ):  # fmt: skip
    refused(says, encoder_settings.settings_for, tmp_path, given)


WORDS = "[PAD] [UNK] [CLS] [SEP] paris Paris a".split()


@pytest.mark.parametrize("where", ["sentence_bert_config.json", "tokenizer_config.json"])
def test_do_lower_case_makes_capitals_small(where, tmp_path):
  """Both files may say so; of a cased vocabulary, "Paris" then is the word "paris": [CLS] paris [SEP] is 2 4 3."""
  folder = hf_folders.write(tmp_path / "x", hf_folders.BERT, hf_folders.bert_shapes(hf_folders.BERT))
  sentence_transformers(folder, MEAN, length=16)
  hf_folders.give_words(folder, WORDS)
  tokenizer = json.loads((folder / "tokenizer.json").read_text()) | dict(normalizer=None)
  (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
  assert encoder.load_encoder(folder)._ids(["Paris"], "query") == [[2, 5, 3]]
  told = json.loads((folder / where).read_text()) | dict(do_lower_case=True)
  (folder / where).write_text(json.dumps(told))
  made = encoder.load_encoder(folder)
  assert made._ids(["Paris", " paris\n"], "query") == [[2, 4, 3]] * 2
  assert made.settings["lower_case"] == (where == "sentence_bert_config.json")


def test_eos_that_only_tokenizer_config_asks_for_ends_a_text(tmp_path):
  """As e5-mistral-7b-instruct is published. Here [SEP] is EOS: "paris" is 2 4, and 2 4 3 with it.

  An index stores that it was put: one of a version that did not put it would be asked with other tokens.
  """
  folder = hf_folders.write(tmp_path / "x", hf_folders.BERT, hf_folders.bert_shapes(hf_folders.BERT))
  sentence_transformers(folder, MEAN, length=16)
  hf_folders.give_words(folder, WORDS)
  file, config = folder / "tokenizer.json", folder / "tokenizer_config.json"
  whole, told = json.loads(file.read_text()), json.loads(config.read_text()) | dict(eos_token="[SEP]")
  bare = whole | dict(post_processor=whole["post_processor"] | dict(single=whole["post_processor"]["single"][:2]))
  for written, asked, ids in ((bare, False, [2, 4]), (bare, True, [2, 4, 3]), (whole, True, [2, 4, 3])):
    file.write_text(json.dumps(written))
    config.write_text(json.dumps(told | dict(add_eos_token=asked)))
    made = encoder.load_encoder(folder)
    assert made._ids(["paris"], "query") == [ids] and made.settings.get("eos", False) == (asked and written is bare)
    assert encoder_settings.stored(made.settings) == made._settings


def test_an_encoders_added_tokens_have_the_ids_that_its_files_declare(tmp_path):
  hf_folders.give_words(tmp_path, WORDS)
  file = tmp_path / "tokenizer_config.json"
  told = json.loads(file.read_text())
  file.write_text(json.dumps(told | dict(added_tokens_decoder={"7": dict(content="[Q]", special=True)})))
  assert encoder.tokenizer_of(tmp_path, 8).encode("[Q]", add_special_tokens=False).ids == [7]
  refused("tokenizer has 8 ids, and its model 7 rows", encoder.tokenizer_of, tmp_path, 7)  # JAX would take row 6
  file.write_text(json.dumps(told | dict(added_tokens_decoder={"9": dict(content="[Q]", special=True)})))
  refused(r"'\[Q\]' has the id 9, but by all files together it has 7", encoder.tokenizer_of, tmp_path, 10)
