import random

import pytest
import small_tokenizers
import tokenizers

from ragrl_jax.core.text import beginnings
from ragrl_jax.prompting import passages
from ragrl_jax.prompting.huggingface import HuggingFaceTokenizer
from ragrl_jax.prompting.tokenizer import ByteTokenizer

WORDS = [*"the spouse of Danbel is 日本の首都 İstanbul 1939-1945 😀".split(), "\n\n", "   ", "<a href='b'>", "x" * 30]


def texts(count, letters, seed=0):
  rng = random.Random(seed)
  for _ in range(count):
    yield "".join(rng.choice(WORDS) + rng.choice((" ", "", " ")) for _ in range(letters // 6))
  yield from ("x" * letters, " " * letters, "- " * (letters // 2), " " * (letters // 2) + "word " * (letters // 10))


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
  return HuggingFaceTokenizer(small_tokenizers.byte_level(tmp_path_factory.mktemp("words")))


def test_the_first_tokens_are_those_of_the_whole_text(byte_level):
  for tokenizer in (byte_level, ByteTokenizer()):
    for text in texts(20, 20_000):
      whole = tokenizer.encode(text)
      for most in (1, 50, 200):
        short = beginnings.for_ids(text, most, tokenizer.encode)
        ids = tokenizer.encode(short)
        assert text.startswith(short) and ids[:most] == whole[:most] and (len(ids) > most or short == text)


def test_a_text_of_any_length_is_tokenized_in_part(byte_level):
  # 50 tokens: beginnings of 16, 32, … 1,024 characters for each of 50 + 16 tokens, as long as these are too few.
  for text, most in (("word " * 10**6, 2 * 16 * 66), (" " * 5 * 10**6, 2 * 1024 * 66), ("x" * 5 * 10**6, 2 * 16 * 66)):
    heads = []

    def encode(head, heads=heads):
      heads.append(head)
      return byte_level.encode(head)

    beginnings.for_ids(text, 50, encode)
    assert 0 < sum(map(len, heads)) <= most


def test_the_cut_of_a_long_text_is_that_of_the_whole(byte_level):
  for text in texts(20, 20_000, seed=1):
    ids = byte_level.encode(text)
    expected, keep = text, 50
    while len(ids) > 50:  # the definition of `cut`, over all of the text
      expected = b"".join(map(byte_level.token_bytes, ids[:keep])).decode(errors="ignore")
      ids, keep = byte_level.encode(expected), keep - 1
    assert passages.cut(text, byte_level, 50) == expected


def test_rows_of_a_tokenizer_that_truncates():
  vocabulary = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "the": 3, "spouse": 4, "of": 5, "is": 6, "word": 7}
  tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
  tokenizer.enable_truncation(64)
  for text in texts(20, 20_000, seed=2):
    short = beginnings.for_rows(text, 64, tokenizer)
    assert tokenizer.encode(short).ids == tokenizer.encode(text).ids
  assert len(beginnings.for_rows("word " * 10**6, 64, tokenizer)) <= 16 * (64 + 16)
