"""Loading tokenizers of every kind, and the text of token sequences that no text encodes to."""

import json
import re
import subprocess
import sys

import pytest
import small_tokenizers as small
import transformers
from refusals import refused

from ragrl_jax.prompting import declared
from ragrl_jax.prompting.huggingface import HuggingFaceTokenizer
from ragrl_jax.prompting.sentencepiece import SentencePieceTokenizer
from ragrl_jax.prompting.tokenizer import ByteTokenizer, load_tokenizer, tokenless


def test_each_kind_is_recognised_by_its_files(tmp_path):
  small.small_sentencepiece(tmp_path / "tokenizer.model")
  assert isinstance(load_tokenizer("bytes"), ByteTokenizer)
  assert isinstance(load_tokenizer(tmp_path / "tokenizer.model"), SentencePieceTokenizer)
  assert isinstance(load_tokenizer(str(tmp_path)), SentencePieceTokenizer)
  small.byte_level(tmp_path)  # a folder with both, like Llama 2's
  assert isinstance(load_tokenizer(str(tmp_path)), HuggingFaceTokenizer)


def test_the_rows_of_a_model_without_a_token(tmp_path):
  # 258 ids. A model of 264 rows has six more; one of 258 rows has none.
  assert tokenless(ByteTokenizer(), 264) == ((258, 264),) and tokenless(ByteTokenizer(), 258) == ()
  folder = small.byte_level(tmp_path)
  assert tokenless(HuggingFaceTokenizer(folder), HuggingFaceTokenizer(folder).vocab_size) == ()
  # Two rows between the pieces and the added tokens, as in cl100k, whose 100,256 pieces are followed by id 100,257.
  gap = HuggingFaceTokenizer(folder).encode_template("<|endoftext|>")[0]  # the first added token

  def shift(settings):
    for token in settings["added_tokens"]:
      token["id"] += 2
      settings["model"]["vocab"][token["content"]] = token["id"]

  small.edit(folder, "tokenizer.json", shift)
  (folder / "generation_config.json").write_text("{}")
  tokenizer = HuggingFaceTokenizer(folder)
  size = tokenizer.vocab_size
  assert tokenless(tokenizer, size + 5) == ((gap, gap + 2), (size, size + 5))
  assert tokenizer.decode([gap, size + 1]) == ""
  tokenizer.eos_ids = (*tokenizer.eos_ids, gap)  # whatever ends a turn may be drawn
  assert tokenless(tokenizer, size) == ((gap + 1, gap + 2),)


@pytest.mark.parametrize("name", ["", "nowhere", "Qwen/Qwen2.5-7B", "bytes.model"])
def test_missing_tokenizers_are_refused(name, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  refused(r"no tokenizer at .*config.prompting.tokenizer", load_tokenizer, name)


@pytest.mark.slow  # starts another Python, which imports
def test_a_run_without_hugging_face_does_not_import_it():
  code = "import sys; from ragrl_jax.prompting import tokenizer; tokenizer.load_tokenizer('bytes')"
  assert subprocess.run([sys.executable, "-c", f"{code}; sys.exit('transformers' in sys.modules)"]).returncode == 0


LLAMA = dict(tokenizer_class="LlamaTokenizer", bos_token="<s>", eos_token="</s>", unk_token="<unk>")


@pytest.mark.parametrize("told, bos", [
  (dict(add_bos_token=True), (1,)), (dict(add_bos_token=False), ()),
  (dict(add_bos_token=True, add_eos_token=True), (1,)),  # no EOS before a reply
])  # fmt: skip
def test_a_sentencepiece_folder_does_what_its_files_declare(told, bos, tmp_path):
  pieces = small.dummy_prefix_sentencepiece(tmp_path / "tokenizer.model")
  added = {"480": dict(content="<|im_end|>", special=True)}
  (tmp_path / "tokenizer_config.json").write_text(json.dumps(LLAMA | told | dict(added_tokens_decoder=added)))
  (tmp_path / "special_tokens_map.json").write_text(json.dumps(dict(eos_token="<|im_end|>")))
  made = load_tokenizer(tmp_path, chat=False)
  theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
  assert made.eos_ids == (theirs.eos_token_id,) and made.bos == bos
  ids = made.render([dict(role="user", content="Kormin has")])
  assert ids == [i for i in theirs("Kormin has")["input_ids"] if i != theirs.eos_token_id] and ids[:1] != [480]
  for text in (" The spouse  of Danbel", "x\n\n12 \u00e9\U0001f600"):
    assert made.encode(text) == pieces.encode(text) and made.decode(made.encode(text)) == text


def folder_of(kind, folder):
  """A tokenizer's folder, the first free id, and an added token's text and id."""
  if kind == "byte_level":
    return small.byte_level(folder), 383, "<|im_end|>", 380
  folder.mkdir()
  small.dummy_prefix_sentencepiece(folder / "tokenizer.model")
  (folder / "tokenizer_config.json").write_text(json.dumps(LLAMA))
  return folder, 480, "</s>", 2


def declare(folder, name, tokens):
  file = folder / name
  told = json.loads(file.read_text()) if file.is_file() else {}
  if name == "tokenizer_config.json":
    told["added_tokens_decoder"] = {i: dict(content=text, special=True) for text, i in tokens.items()}
  file.write_text(json.dumps(told if name == "tokenizer_config.json" else tokens))


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
@pytest.mark.parametrize("name", ["added_tokens.json", "tokenizer_config.json"])
def test_added_tokens_have_the_ids_that_the_files_declare_or_are_refused(kind, name, tmp_path):
  folder, free, known, i = folder_of(kind, tmp_path / "x")
  declare(folder, name, {"<x>": free + 1, "<y>": free, known: i})
  tokenizer = load_tokenizer(folder)
  assert tokenizer.encode_template("<y><x>") == [free, free + 1] and tokenizer.encode_template(known) == [i]
  for text, told, has in (("<x>", free + 7, free), (known, free, i), ("<x>", i, "")):  # that id is another token's
    declare(folder, name, {text: told})
    says = f"{name}: the token {text!r} has the id {told}, but by all files together it has {has}"
    refused(re.escape(says), load_tokenizer, folder)


def test_added_tokens_that_get_no_such_id_or_cannot_be_read_are_refused(tmp_path):
  folder = small.byte_level(tmp_path / "two")  # transformers does not read the one file beside the other
  declare(folder, "tokenizer_config.json", {"<x>": 383})
  declare(folder, "added_tokens.json", {"<y>": 384})
  refused("'<y>' has the id 384, but by all files together it has none", load_tokenizer, folder)
  folder = small.byte_level(tmp_path / "shifted")
  shifted = lambda its: its | dict(added_tokens=[added | dict(id=added["id"] + 5) for added in its["added_tokens"]])
  small.edit(folder, "tokenizer.json", shifted)
  refused(r"endoftext.* has the id 383, but .* 378: .*write the token with its id into", load_tokenizer, folder)
  folder = small.byte_level(tmp_path / "list")
  (folder / "tokenizer_config.json").write_text(json.dumps(dict(added_tokens_decoder=["<x>"])))
  refused("added tokens cannot be read.*an object of ids with such tokens", load_tokenizer, folder)


def test_a_model_alone_takes_the_eos_ids_of_its_folder(tmp_path):
  small.small_sentencepiece(tmp_path / "tokenizer.model")  # pad 0, unk 1, bos 2, eos 3
  assert load_tokenizer(tmp_path).eos_ids == (3,) and load_tokenizer(tmp_path).bos == ()
  for name, told, ids in (("config.json", 2, (2, 3)), ("generation_config.json", [0, 3], (0, 3))):
    (tmp_path / name).write_text(json.dumps(dict(eos_token_id=told)))
    assert load_tokenizer(tmp_path).eos_ids == ids
  for told, says in ((99, "EOS id 99 .* is no control piece"), ("</s>", "eos_token_id is '</s>': it must be an id")):
    (tmp_path / "generation_config.json").write_text(json.dumps(dict(eos_token_id=told)))
    refused(says, load_tokenizer, tmp_path)


def test_files_that_disagree_about_bos_are_named(tmp_path, caplog):
  folder = small.llama_like(tmp_path)
  small.edit(folder, "tokenizer_config.json", lambda its: its | dict(add_bos_token=False))
  assert load_tokenizer(folder).bos == (1,) and "add_bos_token is False" in caplog.text
  assert transformers.AutoTokenizer.from_pretrained(str(folder))("a")["input_ids"][0] == 1


def test_adapters_with_another_chat_template_than_their_base_are_said(tmp_path, caplog):
  base, same, other = (tmp_path / name for name in ("base", "same", "other"))
  named = [dict(name="default", template="{{ a }}"), dict(name="tool_use", template="{{ tools }}")]
  for folder, template in ((base, named), (same, "{{ a }}"), (other, "{{ b }}")):
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(chat_template=template)))
  (same / "tokenizer_config.json").rename(same / "none.json")
  (same / "chat_template.jinja").write_text("{{ a }}")
  for adapters in (same, tmp_path):  # the latter has no tokenizer
    declared.say_other_template(adapters, base)
  assert not caplog.records
  declared.say_other_template(other, base)
  assert f"{other}: these adapters have a chat template that is not the one of {base}" in caplog.text


def test_declared_sampling_is_said_where_it_differs(tmp_path, caplog):
  told = dict(temperature=0.6, top_p=1.0, top_k=20, repetition_penalty=1.0, do_sample=True, eos_token_id=1)
  (tmp_path / "generation_config.json").write_text(json.dumps(told))
  for _ in range(2):
    declared.say_sampling(str(tmp_path), dict(temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=5))
  (line,) = [record.message for record in caplog.records]
  assert "has temperature=0.6, top_k=20: not used; config.rollout has temperature=1.0, top_p=1.0" in line
  declared.say_sampling(str(tmp_path), dict(temperature=0.6, top_p=1.0, top_k=20))
  declared.say_sampling("", {})
  assert len(caplog.records) == 1
