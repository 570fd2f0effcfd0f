"""SentencePiece tokenizers: the adapter for a `.model` file, and the training of a small model."""

import os
import pathlib
from collections.abc import Iterable, Sequence

import sentencepiece
from google.protobuf import message
from sentencepiece import sentencepiece_model_pb2

from ragrl_jax.core.text.forms import well_formed
from ragrl_jax.prompting.tokenizer import Tokenizer

SPACE = "\u2581"  # stands for a space in pieces, so the character itself is also decoded as a space


class SentencePieceTokenizer(Tokenizer):
  """Text ↔ ids by a SentencePiece model; no BOS is put before a text. See `prompting.tokenizer.Tokenizer`.

  Many models put a space before a text and remove repeated spaces. Both are switched off here, since a text always
  continues another one and must decode to itself. The model's own normalisation (such as NFKC) is kept; models made by
  `train` have none.

  Args:
    eos_ids: ids that end a turn beside the model's own EOS, which comes last.

  Raises:
    ValueError: the file is not a SentencePiece model, or the model has no EOS piece.
  """

  def __init__(self, path: str | os.PathLike, *, eos_ids: Sequence[int] = ()):
    proto = sentencepiece_model_pb2.ModelProto()
    try:
      proto.ParseFromString(pathlib.Path(path).read_bytes())
      proto.normalizer_spec.add_dummy_prefix = False
      proto.normalizer_spec.remove_extra_whitespaces = False
      self._pieces = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    except (message.DecodeError, RuntimeError) as error:  # RuntimeError: the library refuses the model
      raise ValueError(f"{path}: not a SentencePiece model ({error}). Give the file that its trainer wrote.") from None
    eos, pad = self._pieces.eos_id(), self._pieces.pad_id()
    if eos < 0 and not eos_ids:
      raise ValueError(f"{path}: the model has no EOS piece, so no turn could end. Train it with eos_id >= 0.")
    self.vocab_size = self._pieces.get_piece_size()
    self.eos_ids = tuple(dict.fromkeys([*eos_ids, *([eos] if eos >= 0 else [])]))
    control = [i for i in range(self.vocab_size) if self._pieces.is_control(i) or self._pieces.is_unknown(i)]
    for i in self.eos_ids:
      if i not in control:
        raise ValueError(
          f"{path}: EOS id {i} of the model's folder is no control piece here, so no text may end by it."
        )
    self.pad_id = pad if pad >= 0 else self.eos_ids[0]
    self.bos = ()
    self.control_names = {i: self._pieces.id_to_piece(i) for i in control}
    self._bytes = [self._piece_bytes(i) for i in range(self.vocab_size)]

  def _piece_bytes(self, token: int) -> bytes:
    piece = self._pieces.id_to_piece(token)
    if token in self.control_names or self._pieces.is_unused(token):
      return b""
    if self._pieces.is_byte(token):
      return bytes([int(piece[3:5], 16)])  # "<0x0A>"
    return piece.replace(SPACE, " ").encode()

  def encode(self, text: str) -> list[int]:
    return self._pieces.encode(well_formed(text))

  def token_bytes(self, token: int) -> bytes:
    return self._bytes[token] if 0 <= token < self.vocab_size else b""


def train(
  lines: Iterable[str], *, vocab_size: int, marks: Sequence[str] = (), path: str | os.PathLike, threads: int = 2
) -> SentencePieceTokenizer:
  """Trains a BPE model on `lines` and writes it to `path`.

  Each mark (`<think>`, `</search>`, …) is always one piece. No space is added or removed, so that a text has the same
  pieces in a demonstration and in a rollout. Every digit and every byte is a piece, so that any text can be encoded. If
  the first word of a line should have the same pieces as inside a sentence, begin the line with a space.

  Args:
    lines: the texts; a line may contain newlines.
    vocab_size: largest number of pieces, including marks, 256 bytes and four control pieces (pad 0, unk 1, bos 2, eos
      3); a small corpus may give fewer.

  Raises:
    ValueError: vocab_size has no room for marks, bytes and control pieces, or a mark is given twice.
  """
  fixed = 4 + 256 + len(marks)
  if vocab_size <= fixed:
    raise ValueError(f"vocab_size={vocab_size}: it must exceed {fixed}, which marks, bytes and control pieces take.")
  if len(set(marks)) != len(marks):
    raise ValueError(f"marks={list(marks)}: each must be given once.")
  path = pathlib.Path(path)
  part = path.with_name(path.name + ".part")
  with part.open("wb") as file:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=map(well_formed, lines),
      model_writer=file,
      model_type="bpe",
      vocab_size=vocab_size,
      user_defined_symbols=list(marks),
      normalization_rule_name="identity",
      add_dummy_prefix=False,
      remove_extra_whitespaces=False,
      split_digits=True,
      character_coverage=1.0,
      byte_fallback=True,
      hard_vocab_limit=False,
      pad_id=0,
      unk_id=1,
      bos_id=2,
      eos_id=3,
      num_threads=threads,
      minloglevel=2,
    )
  part.replace(path)
  return SentencePieceTokenizer(path)
