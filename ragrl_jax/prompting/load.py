"""One door to every tokenizer."""

import os
import pathlib

from ragrl_jax.prompting import chat as chat_lib
from ragrl_jax.prompting.bytes import ByteTokenizer
from ragrl_jax.prompting.sentencepiece import SentencePieceTokenizer
from ragrl_jax.prompting.tokenizer import Tokenizer


def load_tokenizer(path_or_name: str | os.PathLike, *, chat: bool = True, markers: str = "template") -> Tokenizer:
  """A tokenizer by where it lies.

  Args:
    path_or_name: a Hugging Face folder with tokenizer.json, a SentencePiece `.model` file (or a folder that holds one
      as tokenizer.model and no tokenizer.json), or "bytes".
    chat: render messages through the folder's chat template, where it has one; False: bare text.
    markers: "template", or "own" for role markers of ours, which never rewrite a turn.

  Raises:
    ValueError: nothing of the three is there, or the chat template rewrites earlier turns.
  """
  if str(path_or_name) == "bytes":
    return ByteTokenizer()
  path = pathlib.Path(path_or_name)
  if (path / "tokenizer.json").is_file():
    # Only here: transformers takes a second to import, and runs with the other tokenizers need nothing of it.
    from ragrl_jax.prompting.huggingface import HuggingFaceTokenizer

    tokenizer = HuggingFaceTokenizer(path, chat=chat, markers=markers)
    chat_lib.check_append_only(tokenizer)
    return tokenizer
  if (path / "tokenizer.model").is_file():
    path = path / "tokenizer.model"
  if path.is_file() and path.suffix == ".model":
    return SentencePieceTokenizer(path)
  raise ValueError(
    f"no tokenizer at {str(path_or_name)!r}: it must be a folder with tokenizer.json, a SentencePiece .model file, or "
    "'bytes' (config.prompting.tokenizer)."
  )
