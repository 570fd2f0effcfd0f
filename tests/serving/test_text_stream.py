"""Text of tokens, piece by piece, against a plain search of the whole text."""

import random

import pytest

from ragrl_jax.prompting.bytes import ByteTokenizer
from ragrl_jax.protocol.text_stream import TextStream


class Chunky(ByteTokenizer):
  """Ids from 300 on are tokens of several bytes."""

  many = (b"ab", b"</", b"a>b", b"\xc3\xa9x", b"\xf0\x9f", b"\x98\x80", b"b</a>b")

  def token_bytes(self, token):
    return self.many[token - 300] if token >= 300 else super().token_bytes(token)


def plainly(data, stops, keep):
  """(text, stop) by looking at every position in turn."""
  for end in range(1, len(data) + 1):
    found = [stop for stop in stops if data[:end].endswith(stop.encode())]
    if found:
      stop = max(found, key=lambda one: len(one.encode()))
      return data[: end if keep else end - len(stop.encode())].decode(errors="replace"), stop
  return data.decode(errors="replace"), None


@pytest.mark.parametrize("keep", [False, True])
def test_pieces_are_the_text_up_to_the_first_stop(keep):
  draw, tokenizer, stopped = random.Random(0), Chunky(), 0
  for _ in range(2000):
    stops = draw.sample(["</a>", "b", "ab</", "é", "aab", "😀", ">b", "x"], draw.randrange(4))
    ids = [draw.choice([*b"ab</>x", 0xC3, 0xF0, 256, *range(300, 307)]) for _ in range(draw.randrange(1, 12))]
    text, stop = plainly(b"".join(map(tokenizer.token_bytes, ids)), stops, keep)
    stream, pieces, taken = TextStream(tokenizer, stops, keep_stop=keep), [], 0
    while taken < len(ids) and stream.stop is None:
      part = ids[taken : taken + draw.randrange(1, 5)]
      kept = stream.feed(part)
      taken += kept
      pieces.append(stream.piece(last=stream.stop is not None or taken == len(ids)))
    assert ("".join(pieces), stream.stop) == (text, stop), (ids, stops)
    if stop is not None:  # the token that completes the stop is the last one that counts
      stopped += 1
      assert plainly(b"".join(map(tokenizer.token_bytes, ids[: taken - 1])), stops, keep)[1] is None
  assert stopped > 300


def test_a_piece_is_held_back_only_while_it_may_become_a_stop():
  stream = TextStream(ByteTokenizer(), ["</answer>"])
  stream.feed(b"one</ans")
  assert stream.piece() == "one"
  stream.feed(b" two \xf0\x9f")
  assert stream.piece() == "</ans two "  # the first half of a character stays
  stream.feed(b"\x98\x80")
  assert stream.piece(last=True) == "😀" and stream.stop is None
