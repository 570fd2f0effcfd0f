"""Loads any tokenizer: a Hugging Face folder, a SentencePiece file, or bytes."""

import os
import pathlib
from collections.abc import Callable
from typing import Any

from ragrl_jax.prompting import chat as chat_lib
from ragrl_jax.prompting import declared
from ragrl_jax.prompting.bytes import ByteTokenizer
from ragrl_jax.prompting.sentencepiece import SentencePieceTokenizer
from ragrl_jax.prompting.tokenizer import Tokenizer


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
    thinking: one of `chat.THINKING`, for a folder's chat messages.
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
    # Imported here: transformers takes a second to import, and the other tokenizers do not need it.
    from ragrl_jax.prompting.huggingface import HuggingFaceTokenizer

    tokenizer = HuggingFaceTokenizer(path, chat=chat, markers=markers, thinking=thinking)
    check(tokenizer)
    return tokenizer
  if pieces.is_file():
    return SentencePieceTokenizer(pieces, eos_ids=declared.eos_ids(path))
  if path.is_file() and path.suffix == ".model":
    return SentencePieceTokenizer(path)
  raise ValueError(
    f"no tokenizer at {str(path_or_name)!r}: it must be a folder with tokenizer.json, a SentencePiece .model file, or "
    "'bytes' (config.prompting.tokenizer)."
  )
