"""Small judge models as Hugging Face folders: random weights, real tokenizers."""

import hf_folders
import sentencepiece
import small_tokenizers

LINES = [
  "premise: the Rhine passes Basel and Cologne hypothesis: it flows through Cologne", "1", "0", "Paris 山 река",
  "think information search query reasoning answer yes no correct", "Berlin has three opera houses",
] * 20  # fmt: skip


def t5(folder):
  """A T5 with a SentencePiece model like Google's: unigram, leading space, </s> 1, and text normalisation."""
  folder.mkdir(parents=True, exist_ok=True)
  with open(folder / "spiece.model", "wb") as file:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(LINES), model_writer=file, model_type="unigram", vocab_size=100, hard_vocab_limit=False,
      user_defined_symbols=["\u25811"], pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2, num_threads=1,
    )  # fmt: skip
  config = hf_folders.T5S["v1.1"] | dict(vocab_size=128)
  return hf_folders.write(folder, config, hf_folders.t5_shapes(config))


def decoder(folder, template=small_tokenizers.CHATML):
  """A Qwen-like decoder with its byte-level tokenizer and the ChatML template, or another one."""
  small_tokenizers.byte_level(folder, template=template)
  config = hf_folders.DECODERS["qwen2"] | dict(vocab_size=420)
  return hf_folders.write(folder, config, hf_folders.decoder_shapes(config))
