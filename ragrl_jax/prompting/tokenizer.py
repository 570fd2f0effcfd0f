"""The tokenizer contract: everything the other rooms know of text and ids."""

from collections.abc import Mapping, Sequence
from typing import Protocol


class Tokenizer(Protocol):
  """Text ↔ ids, where a sequence's text is the join of its tokens' bytes.

  Attributes:
    vocab_size: number of ids the tokenizer knows; a model's embedding may have more rows.
    pad_id: what empty places are filled with; never used to find padding.
    eos_ids: every id that ends a turn.
    control_names: id → name of the control tokens, for a reader: they have no bytes, and no text holds them.
  """

  vocab_size: int
  pad_id: int
  eos_ids: tuple[int, ...]
  control_names: Mapping[int, str]

  def encode(self, text: str) -> list[int]:
    """Ids of the text alone: no BOS or EOS added, a leading space kept as written, no space put in front.

    Text is data: what spells out a control token (`<|im_end|>`) is encoded as letters.
    """

  def token_bytes(self, token: int) -> bytes:
    """The bytes this id appends. Empty for EOS, padding, other control tokens and rows without a token."""

  def decode(self, ids: Sequence[int]) -> str:
    """The join of `token_bytes`, as UTF-8 with replacement: added tokens stay, EOS and padding are gone."""

  def render(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Ids of chat messages through the template, the generation prompt (and BOS, if the model wants one) included."""
