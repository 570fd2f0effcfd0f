"""Decodes a reply's tokens to text, piece by piece, up to the first stop string."""

import codecs
from collections.abc import Sequence

from ragrl_jax.prompting.tokenizer import Tokenizer
from ragrl_jax.structs import THINK, THOUGHT


class TextStream:
  """Turns tokens into pieces of text. The joined pieces are the text of all tokens, cut at the first stop string.

  The first stop string is the one whose last byte comes first. Of two that end on the same byte, the longer one counts,
  as in `engine.stops`. A piece never ends within a character or within a possible stop string.

  Args:
    stops: stop strings, none of them empty.
    ends: stop strings that the text always includes, such as the closing mark of a tool call. In a thought they end
      nothing, because no call is in it.
    thinks: whether the text begins inside a thought.

  Attributes:
    stop: the stop string that was completed, or None.
  """

  def __init__(
    self,
    tokenizer: Tokenizer,
    stops: Sequence[str] = (),
    *,
    keep_stop: bool = False,
    ends: Sequence[str] = (),
    thinks: bool = False,
  ):
    self._tokenizer, self._keep, self._ends, self._thinks = tokenizer, keep_stop, frozenset(ends), thinks
    self._outside = {end.encode() for end in self._ends.difference(stops)}  # they count outside of thoughts alone
    self._stops = sorted((stop.encode() for stop in {*stops, *ends}), key=len, reverse=True)
    self._data, self._given, self._end = bytearray(), 0, None
    self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    self.stop: str | None = None

  def feed(self, ids: Sequence[int]) -> int:
    """Adds tokens until a stop string is complete. Returns the number of tokens added, the completing one included."""
    for number, token in enumerate(ids):
      before = len(self._data)
      self._data += self._tokenizer.token_bytes(token)
      if self._found(before):
        return number + 1
    return len(ids)

  def piece(self, *, last: bool = False) -> str:
    """The new text since the last call, up to where later tokens may change it. With `last`: all remaining text."""
    end = self._end
    if end is None:
      end = len(self._data) if last else len(self._data) - self._held()
    text = self._decoder.decode(bytes(self._data[self._given : end]), final=last)
    self._given = end
    return text

  def _found(self, before: int) -> bool:
    """Whether the bytes from `before` on complete a stop string."""
    ends = []
    for stop in self._stops:
      start = self._data.find(stop, max(0, before - len(stop) + 1))
      if start >= 0 and not (stop in self._outside and self._in_thought(start)):
        ends.append((start + len(stop), start, stop))
    if not ends:
      return False
    end, start, stop = min(ends, key=lambda one: one[:2])
    self.stop = stop.decode()
    self._end = end if self._keep or self.stop in self._ends else start
    return True

  def _in_thought(self, at: int) -> bool:
    """Whether the text has an open thought before this byte."""
    opened, closed = (self._data.rfind(tag.encode(), 0, at) for tag in (THINK, THOUGHT))
    return opened > closed or (self._thinks and opened == closed)

  def _held(self) -> int:
    """Length in bytes of the longest prefix of a stop string with which the bytes end; 0 if there is none."""
    longest = max(map(len, self._stops), default=1) - 1
    for length in range(min(longest, len(self._data)), 0, -1):
      if any(stop.startswith(bytes(self._data[-length:])) for stop in self._stops if len(stop) > length):
        return length
    return 0
