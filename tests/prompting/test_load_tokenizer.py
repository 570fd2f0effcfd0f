"""Loading tokenizers of every kind, and the text of token sequences that no text encodes to."""

import json
import subprocess
import sys

import pytest
import small_tokenizers as small

from ragrl_jax.prompting.bytes import ByteTokenizer
from ragrl_jax.prompting.huggingface import HuggingFaceTokenizer
from ragrl_jax.prompting.load import load_tokenizer
from ragrl_jax.prompting.sentencepiece import SentencePieceTokenizer
from ragrl_jax.prompting.tokenizer import tokenless


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
  file = folder / "tokenizer.json"
  settings = json.loads(file.read_text())
  gap = settings["added_tokens"][0]["id"]
  for token in settings["added_tokens"]:
    token["id"] += 2
    settings["model"]["vocab"][token["content"]] = token["id"]
  file.write_text(json.dumps(settings))
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
  with pytest.raises(ValueError, match=r"no tokenizer at .*config.prompting.tokenizer"):
    load_tokenizer(name)


@pytest.mark.slow  # starts another Python, which imports
def test_a_run_without_hugging_face_does_not_import_it():
  code = (
    "import sys; from ragrl_jax.prompting.load import load_tokenizer; load_tokenizer('bytes'); "
    "sys.exit('transformers' in sys.modules)"
  )
  assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_broken_utf8_is_replaced_in_the_text_and_kept_in_the_ids(tmp_path):
  for tokenizer in (
    ByteTokenizer(),
    load_tokenizer(small.byte_level(tmp_path / "b")),
    small.small_sentencepiece(tmp_path / "a.model"),
  ):
    known = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    # A model may sample any bytes: a lone continuation byte, a surrogate, an overlong slash, the first of four bytes.
    for broken in (b"\x80", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf0\x9f\x98"):
      ids = [known[b"a"], *(known[bytes([b])] for b in broken), known[b"z"]]
      view = tokenizer.decode(ids)
      assert view[0] == "a" and view[-1] == "z" and set(view[1:-1]) == {"\ufffd"}
      assert b"".join(map(tokenizer.token_bytes, ids)) == b"a" + broken + b"z"


def test_a_character_split_over_two_segments_is_whole_only_in_the_joined_text(tmp_path):
  tokenizer = load_tokenizer(small.byte_level(tmp_path))
  ids = tokenizer.encode("\U0001f9d1")
  first, rest = ids[:1], ids[1:]
  assert "\U0001f9d1" not in tokenizer.decode(first) + tokenizer.decode(rest)
  assert tokenizer.decode(first + rest) == "\U0001f9d1"


def test_eos_and_control_tokens_leave_no_gap_in_the_text(tmp_path):
  tokenizer = load_tokenizer(small.byte_level(tmp_path))
  start, end = tokenizer.encode("<think>")[0], tokenizer.eos_ids[0]
  ids = [start, *tokenizer.encode("a"), end, tokenizer.pad_id, *tokenizer.encode("b"), tokenizer.vocab_size + 5]
  assert tokenizer.decode(ids) == "<think>ab"
