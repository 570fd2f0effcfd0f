"""The interface of every tokenizer, text ↔ token ids; and `load_tokenizer`, which makes any of them."""

import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ragrl_jax.core.text.forms import well_formed
from ragrl_jax.prompting import chat as chat_lib, declared


class Tokenizer(Protocol):
  """Text ↔ ids. The text of a sequence is the concatenation of its tokens' bytes.

  Attributes:
    vocab_size: the ids are below it; a model's embedding may have more rows.
    pad_id: fills empty positions. It may equal an EOS id, so masks and not this id mark padding.
    eos_ids: all ids that end a turn.
    bos: ids that stand before a whole text, BOS or none. `encode` leaves them out.
    control_names: id → name of each control token, for display. Control tokens have no bytes and occur in no text.
  """

  vocab_size: int
  pad_id: int
  eos_ids: tuple[int, ...]
  bos: tuple[int, ...]
  control_names: Mapping[int, str]

  def encode(self, text: str) -> list[int]:
    """Ids of the text only: without BOS and EOS, with leading spaces as written and no space added in front.

    Text is data: a spelled-out control token (`<|im_end|>`) is encoded as letters.
    """

  def token_bytes(self, token: int) -> bytes:
    """The bytes that this id appends; empty for EOS, padding, other control tokens and ids without a token."""

  def decode(self, ids: Sequence[int]) -> str:
    """The concatenated `token_bytes` as UTF-8 with replacement: with added tokens, without EOS and padding."""
    return b"".join(map(self.token_bytes, ids)).decode(errors="replace")

  def render(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Ids of chat messages by the template, with the generation prompt, and with BOS if the model uses one.

    Without a template they are bare text, without role markers.
    """
    return self.encode(chat_lib.plain(messages))


def tokenless(tokenizer: Tokenizer, rows: int) -> tuple[tuple[int, int], ...]:
  """Ranges (first, end) of a model's rows that stand for no token: beyond the tokenizer's ids, or between them.

  A tokenizer whose ids have gaps names them: `missing`, a collection of ids.
  """
  missing = {*getattr(tokenizer, "missing", ()), *range(tokenizer.vocab_size, rows)}.difference(tokenizer.eos_ids)
  # Of 3, 4, 5 and 9: the runs begin at 3 and 9, and end before 6 and 10.
  firsts = sorted(i for i in missing if i - 1 not in missing)
  ends = sorted(i + 1 for i in missing if i + 1 not in missing)
  return tuple(zip(firsts, ends))


def load_tokenizer(
  path_or_name: str | os.PathLike,
  *,
  chat: bool = True,
  markers: str = "template",
  thinking: str = "default",
  check: Callable[[Tokenizer], Any] = chat_lib.check_append_only,
) -> Tokenizer:
  """Loads a tokenizer.

  Args:
    path_or_name: a Hugging Face folder with tokenizer.json, or with a SentencePiece tokenizer.model and a file that
      declares its settings; a SentencePiece `.model` file, or a folder with tokenizer.model alone; or "bytes". A model
      alone says nothing of BOS, so none is put before a text.
    chat: render messages by the folder's chat template if it has one; False renders plain text.
    markers: "template", or "own" for this library's role markers, which never rewrite a turn.
    thinking: as config.prompting.thinking, for a folder's chat messages.
    check: raises ValueError if a folder's chat template cannot render the conversations that will be played.

  Raises:
    ValueError: `path_or_name` is none of the three, the tokenizer cannot be used, or `check` refuses its template.
  """
  if str(path_or_name) == "bytes":
    return ByteTokenizer()
  path = pathlib.Path(path_or_name)
  pieces = path / declared.SENTENCEPIECE
  if (path / "tokenizer.json").is_file() or (
    pieces.is_file() and any((path / name).is_file() for name in declared.BESIDE)
  ):
    # Imported here: transformers takes a second to import, and no other tokenizer needs it.
    from ragrl_jax.prompting.huggingface import HuggingFaceTokenizer

    tokenizer = HuggingFaceTokenizer(path, chat=chat, markers=markers, thinking=thinking)
    check(tokenizer)
    return tokenizer
  from ragrl_jax.prompting.sentencepiece import SentencePieceTokenizer  # as above

  if pieces.is_file():
    return SentencePieceTokenizer(pieces, eos_ids=declared.eos_ids(path))
  if path.is_file() and path.suffix == ".model":
    return SentencePieceTokenizer(path)
  raise ValueError(
    f"no tokenizer at {str(path_or_name)!r}: it must be a folder with tokenizer.json, a SentencePiece .model file, or "
    "'bytes' (config.prompting.tokenizer)."
  )


class ByteTokenizer(Tokenizer):
  """A `Tokenizer` without a vocabulary: for tests, and for scoring transcripts without a model.

  Ids 0 to 255 are the bytes, 256 is EOS, 257 is padding.
  """

  vocab_size = 258
  pad_id = 257
  eos_ids, bos = (256,), ()
  control_names = {256: "<eos>", 257: "<pad>"}

  def encode(self, text: str) -> list[int]:
    return list(well_formed(text).encode())

  def token_bytes(self, token: int) -> bytes:
    return bytes([token]) if 0 <= token < 256 else b""
