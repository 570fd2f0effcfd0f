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
  """The folder's tokenizer with these tokens, each of which is one id everywhere. Nothing is written.

  They are text, as every added token is that is no control token: what the model writes of them is kept and read.

  Args:
    folder: has a tokenizer.json.
    tokens: their texts.

  Returns:
    (the tokenizer, for its `save_pretrained`; the ids of the tokens in order, which follow those that there were).

  Raises:
    ValueError: a token that is empty, holds white space, or is one already.
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
