"""One door to every tokenizer."""

import os
import pathlib

from ragrl_jax.prompting.bytes import ByteTokenizer
from ragrl_jax.prompting.sentencepiece import SentencePieceTokenizer
from ragrl_jax.prompting.tokenizer import Tokenizer


def load_tokenizer(path_or_name: str | os.PathLike) -> Tokenizer:
  """A tokenizer by where it lies.

  Args:
    path_or_name: a `.model` file (SentencePiece) or "bytes".

  Raises:
    ValueError: nothing of the three is there.
  """
  if str(path_or_name) == "bytes":
    return ByteTokenizer()
  path = pathlib.Path(path_or_name)
  if path.is_file() and path.suffix == ".model":
    return SentencePieceTokenizer(path)
  raise ValueError(
    f"no tokenizer at {str(path_or_name)!r}: it must be a folder with tokenizer.json, a SentencePiece .model file, or "
    "'bytes' (config.prompting.tokenizer).")
