"""Messages as text: what a tokenizer without a chat template does with them."""

from collections.abc import Mapping, Sequence


def plain(messages: Sequence[Mapping[str, str]]) -> str:
  """The contents, joined by empty lines: the prompt of a tokenizer without a template.

  Source: Search-R1 hands the raw prompt text to such tokenizers (facts §6.1).
  """
  return "\n\n".join(message["content"] for message in messages)
