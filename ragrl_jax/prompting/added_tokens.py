"""Adds tokens to the tokenizer of a Hugging Face folder, such as the tags of a reply's format."""

import os
import pathlib
from collections.abc import Sequence

import tokenizers
import transformers

from ragrl_jax.prompting import huggingface


def add(
  folder: str | os.PathLike, tokens: Sequence[str]
) -> tuple[transformers.PreTrainedTokenizerFast, tuple[int, ...]]:
  """Adds tokens to the folder's tokenizer. Each is always one id. Nothing is written to disk.

  The tokens are text and not control tokens: they stay in the text that the model writes.

  Args:
    folder: has a tokenizer.json.
    tokens: their texts.

  Returns:
    (the tokenizer, which has `save_pretrained`; the ids of the tokens in order, which follow all earlier ids).

  Raises:
    ValueError: a token is empty, contains white space, or is in the tokenizer already.
  """
  whole = huggingface.load_whole(folder)
  known = whole.get_vocab()
  for token in tokens:
    if not token or token.split() != [token]:
      raise ValueError(f"{token!r} cannot be added to the tokenizer: a token is text without white space.")
    if token in known:
      raise ValueError(f"{token!r} is a token of {pathlib.Path(folder)} already, with the id {known[token]}.")
  whole.add_tokens([tokenizers.AddedToken(token, normalized=False, special=False) for token in dict.fromkeys(tokens)])
  return whole, tuple(whole.convert_tokens_to_ids(list(tokens)))
