"""Where a section lies among the sampled tokens: probes begin with the very ids that were sampled."""

import bisect
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from ragrl_jax.recipes.lear.parser import Parser


@dataclasses.dataclass(frozen=True)
class Span:
  """
  Attributes:
    body_tokens: tokens that hold a part of the body, white space at its ends and tags apart.
    end, rest: ids[:end] and then the text `rest` are everything up to the end of the section.
    lead, first, last, tail: the text `lead`, ids[first:last] and the text `tail` are `<name>body</name>`.

  The texts are "" unless a token straddles an end of the section.
  """

  body_tokens: int
  end: int
  rest: str
  lead: str
  first: int
  last: int
  tail: str


def find(tokenizer: Any, ids: Sequence[int], parser: Parser, name: str) -> Span | None:
  """The first complete section of this name among the ids; None if there is none."""
  pieces = [tokenizer.token_bytes(token) for token in ids]
  ends = list(itertools.accumulate(map(len, pieces)))
  starts = [0, *ends[:-1]]
  text = b"".join(pieces).decode("latin-1")  # a letter a byte: tags are ASCII, and places are those of the tokens
  pair = parser.pair(text, name)
  if pair is None:
    return None
  end = bisect.bisect_left(ends, pair.end)
  end += ends[end] == pair.end  # EOS behind it, which has no bytes, is left out
  rest = _text(text[ends[end - 1] if end else 0 : pair.end])
  first = bisect.bisect_left(starts, pair.start)
  if first < end:
    lead, tail = _text(text[pair.start : starts[first]]), rest
  else:  # one token or two hold all of it
    lead, first, tail = _text(text[pair.start : pair.end]), end, ""
  body = text[pair.start + len(f"<{name}>") : pair.end - len(f"</{name}>")].encode("latin-1")
  start = pair.start + len(f"<{name}>") + len(body) - len(body.lstrip())
  stop = start + len(body.strip())
  count = bisect.bisect_left(starts, stop) - bisect.bisect_right(ends, start) if stop > start else 0
  return Span(count, end, rest, lead=lead, first=first, last=end, tail=tail)


def _text(letters: str) -> str:
  return letters.encode("latin-1").decode(errors="replace")
