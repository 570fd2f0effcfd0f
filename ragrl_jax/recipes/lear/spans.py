"""The place of a section among the sampled tokens. Probes start with exactly the sampled ids."""

import bisect
import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import Any

from ragrl_jax.recipes.lear.parser import Parser


@dataclasses.dataclass(frozen=True)
class Span:
  """The place of a section.

  Attributes:
    body_tokens: number of tokens that contain a part of the body, without the tags and the white space at its ends.
    end, rest: ids[:end] and then the text `rest` are everything up to the end of the section.
    lead, first, last, tail: the text `lead`, ids[first:last] and the text `tail` are `<name>body</name>`.

  The texts are "" unless a token crosses the begin or the end of the section.
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
  text = b"".join(pieces).decode("latin-1")  # one letter per byte: tags are ASCII, positions are the tokens'
  pair = parser.pair(text, name)
  if pair is None:
    return None
  end = bisect.bisect_left(ends, pair.end)
  end += ends[end] == pair.end  # a following EOS has no bytes and is left out
  rest = _text(text[ends[end - 1] if end else 0 : pair.end])
  first = bisect.bisect_left(starts, pair.start)
  if first < end:
    lead, tail = _text(text[pair.start : starts[first]]), rest
  else:  # one or two tokens contain the whole section
    lead, first, tail = _text(text[pair.start : pair.end]), end, ""
  body = text[pair.start + len(f"<{name}>") : pair.end - len(f"</{name}>")].encode("latin-1")
  start = pair.start + len(f"<{name}>") + len(body) - len(body.lstrip())
  stop = start + len(body.strip())
  count = bisect.bisect_left(starts, stop) - bisect.bisect_right(ends, start) if stop > start else 0
  return Span(count, end, rest, lead=lead, first=first, last=end, tail=tail)


def whole(tokenizer: Any, ids: Sequence[int]) -> Span:
  """The span of all ids, without EOS at the end, as the body of an <extract> section."""
  sizes = [len(tokenizer.token_bytes(token)) for token in ids]
  end = len(ids)
  while end and not sizes[end - 1]:
    end -= 1
  return Span(end, end, "", lead="<extract>", first=0, last=end, tail="</extract>")


def cut(tokenizer: Any, span: Span, body: str, words: int) -> Span:
  """The span of a section with this body. If the body has more than `words` words, the rest is cut off."""
  if len(body.split()) <= words:
    return span
  short = first_words(body, words)
  text = f"<extract>{short}</extract>"
  return dataclasses.replace(span, body_tokens=len(tokenizer.encode(short)), lead=text, first=0, last=0, tail="")


def first_words(text: str, words: int | None) -> str:
  """The text up to the end of this number of words; the whole text if it has no more, or if `words` is None."""
  found = list(itertools.islice(re.finditer(r"\S+", text), words)) if words else []
  return text[: found[-1].end()] if found else text


def _text(letters: str) -> str:
  return letters.encode("latin-1").decode(errors="replace")
