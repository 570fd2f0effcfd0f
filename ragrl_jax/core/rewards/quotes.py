"""Quotes that stand in a context: word for word, or nearly, by difflib's ratio over every window of words."""

import difflib
import functools
from collections.abc import Sequence

import numpy as np

SOFT = 0.85  # CARE's code


def collapse(text: str) -> str:
  """The text with each stretch of white space as one space, none at its ends."""
  return " ".join(text.split())


def exact(quote: str, contexts: Sequence[str]) -> bool:
  """Whether one of the contexts holds the quote, white space of any kind being one space. Nothing is no quote.

  A quote that runs from one context into the next stands in neither.
  """
  quote = collapse(quote)
  return bool(quote) and any(quote in text for text in _collapsed(tuple(contexts)))


@functools.lru_cache(maxsize=8192)  # samples of a group quote the same
def soft(quote: str, context: str, threshold: float = SOFT) -> bool:
  """Whether some window of as many words as the quote is like it: SequenceMatcher(None, window, quote).ratio() at or
  above the threshold, both in lower case and with single spaces.

  The same verdict as trying every window, without trying most of them. A ratio of r asks for M = r · (a + b) / 2
  matching characters, a and b being the lengths. They lie in blocks that both texts hold; between two blocks some
  character of either text is left over, so there are at most K = 1 + (a + b − 2M) blocks, and a block of s characters
  holds s − 1 pairs of neighbours. The two texts hence share at least M − K pairs, and at least M characters: windows
  that do not are left out by counting. Besides, difflib grows a block only from the two beginnings or from a character
  that is not "popular": in a quote of 200 characters or more, one that makes up 1 % of it at most. So K is at most one
  more than there are of these, and long near matches are seldom found, here as in the plain window.

  Args:
    quote: the text.
    context: what it may come from.
    threshold: least ratio, above 0.

  Source: the reward of CARE's code; benchmarks/quotes.py compares the two.
  """
  quote = collapse(quote.lower())
  indexed = _index(context)
  size = quote.count(" ") + 1
  if not quote or size > len(indexed.starts):
    return False
  starts, ends = indexed.starts[:len(indexed.starts) - size + 1], indexed.ends[size - 1:]
  total = (ends - starts) + len(quote)
  matched = np.ceil(threshold * total / 2 - 1e-6).astype(np.int64)
  matcher = difflib.SequenceMatcher(None, "", quote)
  blocks = np.minimum(1 + total - 2 * matched, 1 + sum(map(len, matcher.b2j.values())))
  windows = np.flatnonzero(matched <= np.minimum(ends - starts, len(quote)))
  for keys, wanted, span in (
      (indexed.letters, matched, _codes(quote)), (indexed.pairs, matched - blocks, _pairs(_codes(quote)))):
    windows = _sharing(keys, span, starts, ends - (indexed.pairs is keys), wanted, windows)
  tried = set()
  for window in windows:
    text = indexed.text[starts[window]:ends[window]]
    if text not in tried:
      tried.add(text)
      matcher.set_seq1(text)
      if matcher.ratio() >= threshold:
        return True
  return False


class _Index:
  """A context's characters, pairs of neighbours, and where its words begin and end."""

  def __init__(self, context: str):
    words = context.lower().split()
    self.text = " ".join(words)
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    self.ends = np.cumsum(lengths + 1) - 1
    self.starts = self.ends - lengths
    self.letters = _codes(self.text)
    self.pairs = _pairs(self.letters)


_index = functools.lru_cache(maxsize=64)(_Index)  # the samples of a group quote from one context


@functools.lru_cache(maxsize=64)
def _collapsed(contexts: tuple[str, ...]) -> tuple[str, ...]:
  return tuple(map(collapse, contexts))


def _codes(text: str) -> np.ndarray:
  return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64)


def _pairs(codes: np.ndarray) -> np.ndarray:
  return codes[:-1] << 21 | codes[1:]


def _sharing(keys, span, starts, ends, wanted, windows) -> np.ndarray:
  """Those of the windows that share at least `wanted` keys with the span, each counted as often as both have it."""
  if not len(windows) or not len(keys):
    return windows
  kinds, counts = np.unique(span, return_counts=True)
  # First without the counts: one pass over the context leaves few windows of a short quote.
  place = np.searchsorted(kinds, keys)
  place[place == len(kinds)] = 0
  known = kinds[place] == keys if len(kinds) else np.zeros(len(keys), bool)
  hits = np.concatenate(([0], np.cumsum(known)))
  windows = windows[hits[ends[windows]] - hits[starts[windows]] >= wanted[windows]]
  if not len(windows):
    return windows
  shared = np.zeros(len(windows), np.int64)
  begin, end = starts[windows], ends[windows]
  for number, count in enumerate(counts):
    at = np.flatnonzero(known & (place == number))
    shared += np.minimum(np.searchsorted(at, end) - np.searchsorted(at, begin), count)
  return windows[shared >= wanted[windows]]
