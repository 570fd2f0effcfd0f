"""SentencePiece models: ones trained here keep every space, mark and byte; files of others keep their behaviour."""

import pytest
import sentencepiece
import small_tokenizers as small
from refusals import refused

from ragrl_jax.prompting import sentencepiece as sentencepiece_lib

BLOCK = "\n\n<information>Doc 1(Title: Danbel) The spouse is Kormin.</information>\n\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  return small.small_sentencepiece(tmp_path_factory.mktemp("sentencepiece") / "a.model")


def test_the_first_ids_are_pad_unk_bos_eos_and_the_marks(trained):
  assert (trained.pad_id, trained.eos_ids) == (0, (3,)) and [trained.token_bytes(i) for i in range(4)] == [b""] * 4
  assert [trained.token_bytes(4 + i) for i in range(len(small.MARKS))] == [m.encode() for m in small.MARKS]


def test_a_mark_is_always_one_piece(trained):
  for around in ("", " ", "x", "\n", "<"):
    assert 4 + small.MARKS.index("</search>") in trained.encode(f"{around}</search>{around}")


def test_a_block_has_the_same_pieces_alone_and_inside_a_transcript(trained):
  # Guards against a library that drops or adds a space at the start of a search result.
  before, after = "<search> Danbel </search>", "<think> so"
  whole = trained.encode(before + BLOCK + after)
  assert whole == trained.encode(before) + trained.encode(BLOCK) + trained.encode(after)


def test_a_name_has_the_same_pieces_after_any_space(trained):
  name = trained.encode(" Kormin")
  ids = trained.encode("<answer> Kormin</answer>")
  assert any(ids[i : i + len(name)] == name for i in range(len(ids)))


@pytest.mark.parametrize(("text", "pieces"), [("123", [b"1", b"2", b"3"]), ("\u00f8", [b"\xc3", b"\xb8"])])
def test_digits_and_the_bytes_of_unseen_characters_are_pieces(trained, text, pieces):
  ids = trained.encode(text)
  assert [trained.token_bytes(i) for i in ids] == pieces and 1 not in ids  # no piece is unknown


def test_training_twice_gives_the_same_model_which_the_library_decodes_the_same(trained, tmp_path):
  again = small.small_sentencepiece(tmp_path / "a.model")
  pieces = lambda tokenizer: list(map(tokenizer.token_bytes, range(tokenizer.vocab_size)))
  assert pieces(again) == pieces(trained)
  assert list(tmp_path.iterdir()) == [tmp_path / "a.model"]
  pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "a.model"))
  text = "The spouse of Danbel is 42.\n <answer> x </answer> \u6771"
  assert trained.encode(text) == pieces.encode(text)
  assert trained.decode(trained.encode(text)) == pieces.decode(pieces.encode(text)) == text


def test_a_model_with_a_dummy_prefix_adds_no_space(tmp_path):
  tokenizer = small.dummy_prefix_sentencepiece(tmp_path / "a.model")
  assert tokenizer.token_bytes(tokenizer.encode("Kormin")[0])[:1] == b"K"
  assert tokenizer.decode(tokenizer.encode("  two  spaces ")) == "  two  spaces "
  assert tokenizer.pad_id == tokenizer.eos_ids[0]  # it has no padding piece


@pytest.mark.parametrize("content", [b"", b"not a model at all"])
def test_a_file_that_is_not_a_model_is_refused(tmp_path, content):
  (tmp_path / "a.model").write_bytes(content)
  refused("a.model: not a SentencePiece model", sentencepiece_lib.SentencePieceTokenizer, tmp_path / "a.model")


def test_a_model_without_eos_is_refused(tmp_path):
  with open(tmp_path / "a.model", "wb") as file:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(small.LINES), model_writer=file, model_type="bpe", vocab_size=120, eos_id=-1,
      hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
  refused("no EOS piece", sentencepiece_lib.SentencePieceTokenizer, tmp_path / "a.model")


def test_too_small_a_vocabulary_and_repeated_marks_are_refused(tmp_path):
  # 4 control pieces, 256 bytes and 2 marks take 262 ids.
  for size, marks, says in ((262, ["<a>", "<b>"], "must exceed 262"), (400, ["<a>", "<a>"], "given once")):
    refused(says, sentencepiece_lib.train, small.LINES, vocab_size=size, marks=marks, path=tmp_path / "a.model")
  assert not list(tmp_path.iterdir())
