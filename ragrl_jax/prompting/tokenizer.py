"""The interface of every tokenizer: text ↔ token ids."""

from collections.abc import Mapping, Sequence
from typing import Protocol


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

  def render(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Ids of chat messages by the template, with the generation prompt, and with BOS if the model uses one."""


def tokenless(tokenizer: Tokenizer, rows: int) -> tuple[tuple[int, int], ...]:
  """Ranges (first, end) of a model's rows that stand for no token: beyond the tokenizer's ids, or between them.

  A tokenizer whose ids have gaps names them: `missing`, a collection of ids.
  """
  missing = {*getattr(tokenizer, "missing", ()), *range(tokenizer.vocab_size, rows)}.difference(tokenizer.eos_ids)
  # Of 3, 4, 5 and 9: the runs begin at 3 and 9, and end before 6 and 10.
  firsts = sorted(i for i in missing if i - 1 not in missing)
  ends = sorted(i + 1 for i in missing if i + 1 not in missing)
  return tuple(zip(firsts, ends))
