"""A tokenizer without a vocabulary, one id per byte: for tests, and for scoring transcripts without a model."""

from collections.abc import Mapping, Sequence

from ragrl_jax.core.text.forms import well_formed
from ragrl_jax.prompting import chat


class ByteTokenizer:
  """Ids 0 to 255 are the bytes, 256 is EOS, 257 is padding. See `prompting.tokenizer.Tokenizer`."""

  vocab_size = 258
  pad_id = 257
  eos_ids, bos = (256,), ()
  control_names = {256: "<eos>", 257: "<pad>"}

  def encode(self, text: str) -> list[int]:
    """See `prompting.tokenizer.Tokenizer`."""
    return list(well_formed(text).encode())

  def token_bytes(self, token: int) -> bytes:
    """See `prompting.tokenizer.Tokenizer`."""
    return bytes([token]) if 0 <= token < 256 else b""

  def decode(self, ids: Sequence[int]) -> str:
    """See `prompting.tokenizer.Tokenizer`."""
    return b"".join(map(self.token_bytes, ids)).decode(errors="replace")

  def render(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Token ids of chat messages as bare text, without role markers."""
    return self.encode(chat.plain(messages))
