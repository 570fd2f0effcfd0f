"""Beginnings of texts of any length: what is tokenized stays as short as the number of tokens that is wanted."""

from collections.abc import Callable, Sequence

LETTERS = 16  # characters per wanted token in the first try; ordinary text has about 4, and rarely more than 8
MOST_LETTERS = 1024  # characters per wanted token in the last try; no vocabulary at hand has tokens that long


def beginning(text: str, tokens: int, enough: Callable[[str], bool]) -> str:
  """The text, or a beginning of it that is enough for its first `tokens` tokens.

  A cut changes the tokens of the word that it cuts, and no earlier ones: tokenizers split text into words first, and
  merges of letters are local. So a beginning with twice the wanted tokens has the same first `tokens` ones as the whole
  text. Where 16 characters per token have fewer (runs of spaces, drawn lines), a beginning twice as long is tried.

  Args:
    enough: whether a beginning has more than twice as many.
  """
  size = LETTERS * (tokens + LETTERS)
  while size < len(text):
    head = text[:size]
    if size >= MOST_LETTERS * (tokens + LETTERS) or enough(head):
      return head
    size *= 2
  return text


def for_ids(text: str, tokens: int, encode: Callable[[str], Sequence[int]]) -> str:
  """`beginning` for a function from a text to its ids. A shortened text has more than `tokens` ids."""
  return beginning(text, tokens, lambda head: len(encode(head)) > 2 * tokens)


def for_rows(text: str, tokens: int, tokenizer) -> str:
  """`beginning` for a `tokenizers.Tokenizer` that cuts its rows to `tokens` ids, special tokens included."""

  def enough(head: str) -> bool:
    row = tokenizer.encode(head)  # the last place that it reaches is known, not the number of ids that were cut off
    return bool(row.overflowing) and max((end for _, end in row.offsets), default=0) * 2 < len(head)

  return beginning(text, tokens, enough)
