"""Quotes that stand in a context: word for word, or nearly, by difflib's ratio over every window of words."""

import difflib
import functools
from collections.abc import Sequence

import numpy as np

SOFT = 0.85  # CARE's code
JUNK_FROM = 200  # characters of a quote from which difflib passes over popular ones
MOST_ANCHORS = 4_000_000  # pairs of places at which blocks may begin to grow that are followed up


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
  more than there are of these, and long near matches are seldom found, here as in the plain window: `_reach` bounds
  what can be found, and the most promising window is tried first.

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
  starts, ends = indexed.starts[: len(indexed.starts) - size + 1], indexed.ends[size - 1 :]
  total = (ends - starts) + len(quote)
  matched = np.ceil(threshold * total / 2 - 1e-6).astype(np.int64)
  matcher = difflib.SequenceMatcher(None, "", quote)
  blocks = np.minimum(1 + total - 2 * matched, 1 + sum(map(len, matcher.b2j.values())))
  windows = np.flatnonzero(matched <= np.minimum(ends - starts, len(quote)))
  for keys, wanted, span in (
    (indexed.letters, matched, _codes(quote)),
    (indexed.pairs, matched - blocks, _pairs(_codes(quote))),
  ):
    windows = _sharing(keys, span, starts, ends - (indexed.pairs is keys), wanted, windows)
  if len(quote) >= JUNK_FROM and len(windows):
    reach = _reach(_codes(quote), matcher.b2j, indexed.letters, starts[windows], ends[windows], matched[windows])
    likely = reach >= matched[windows]
    windows = windows[likely][np.argsort(-reach[likely], kind="stable")]
  tried = set()
  for window in windows:
    text = indexed.text[starts[window] : ends[window]]
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


def _reach(quote, rare, text, starts, ends, wanted) -> np.ndarray:
  """For each window at most how many characters of the quote difflib's blocks can hold, popular ones being passed over.

  A block is the prefix that both have, or it holds a place where both have the same rare character and is the stretch
  around it in which they agree. So what is matched lies in the prefix or in such stretches. Matches keep their order: a
  block that lies d characters further on in the window than in the quote leaves d of the window's without a match, or
  −d of the quote's; where `wanted` of them are to match, that bounds d.

  Args:
    quote, text: codes.
    rare: character → its places in the quote.
    starts, ends: places of the windows in the text.
    wanted: how many characters of each window are to match; the bound holds where so many do.
  """
  at, place = _stretches(quote, rare, text)
  if at is None:
    return np.full(len(starts), len(quote))
  offset = place - at
  order = np.argsort(offset, kind="stable")
  at, place, offset = at[order], place[order], offset[order]
  low = np.searchsorted(offset, starts - (len(quote) - wanted))
  high = np.searchsorted(offset, ends - wanted, "right")
  reach = np.zeros(len(starts), np.int64)
  for window, (begin, end) in enumerate(zip(low, high)):
    inside = (place[begin:end] >= starts[window]) & (place[begin:end] < ends[window])
    reach[window] = np.count_nonzero(np.bincount(at[begin:end][inside]))
  alive = np.arange(len(starts))
  for depth, letter in enumerate(quote):
    alive = alive[starts[alive] + depth < len(text)]
    alive = alive[text[starts[alive] + depth] == letter]
    if not len(alive):
      break
    reach[alive] += 1
  return reach


def _stretches(quote, rare, text):
  """(places in the quote, places in the text) of the pairs that lie in one stretch of agreement with a pair of the same
  rare character; (None, None) if there are too many to follow up."""
  anchors = [(np.asarray(places), np.flatnonzero(text == ord(letter))) for letter, places in rare.items()]
  if sum(len(places) * len(there) for places, there in anchors) > MOST_ANCHORS:
    return None, None
  none = np.zeros(0, np.int64)
  at = np.concatenate([none, *(np.repeat(places, len(there)) for places, there in anchors)])
  place = np.concatenate([none, *(np.tile(there, len(places)) for places, there in anchors)])
  known = np.sort(np.concatenate([none, *(places for places, _ in anchors)]))
  bounds = np.concatenate(([-1], known, [len(quote)]))
  found = [(at, place)]
  for step, stop in (
    (1, bounds[np.searchsorted(known, at, "right") + 1]),
    (-1, bounds[np.searchsorted(known, at, "left")]),
  ):
    here, there = at, place
    while len(here):  # up to the next rare character of the quote, from which others go on
      here, there = here + step, there + step
      on = np.flatnonzero((here != stop) & (there >= 0) & (there < len(text)))
      on = on[quote[here[on]] == text[there[on]]]
      here, there, stop = here[on], there[on], stop[on]
      found.append((here, there))
  return tuple(np.concatenate(parts) for parts in zip(*found))
