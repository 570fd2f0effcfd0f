"""Finds quotes in a context: word for word, or approximately, by difflib's ratio over every window of words."""

import difflib
import functools
import re
from collections.abc import Sequence

import numpy as np

from ragrl_jax.core.text import forms, tokens

SOFT = 0.85  # the threshold in CARE's code
JUNK_FROM = 200  # in quotes of at least this many characters, difflib ignores "popular" characters
MOST_ANCHORS = 4_000_000  # largest number of pairs of positions with an equal rare character that `_stretches` follows


def collapse(text: str) -> str:
  """The text in one form of Unicode (`forms.composed`), with single spaces and none at its ends."""
  return " ".join(forms.composed(text).split())


def plain(text: str) -> str:
  """The form in which quotes are compared: `collapse` and `forms.typed`."""
  return collapse(forms.typed(text))


def exact(quote: str, contexts: Sequence[str]) -> bool:
  """Whether one of the contexts contains the quote, both in the form of `plain`. False for an empty quote.

  A quote that spans two contexts is in neither.
  """
  quote = plain(quote)
  return bool(quote) and any(quote in text for text in _collapsed(tuple(contexts)))


def words(text: str) -> int:
  """The number of words (`tokens.words`); in scripts without spaces, of letters. Other signs are no words."""
  return len(tokens.words(text))


def whole_words(quote: str, contexts: Sequence[str], least: int) -> bool:
  """Whether one of the contexts contains the quote as `exact` says, and that without cutting a word.

  Args:
    quote: the text; one of fewer than `least` words is in no context.
    least: smallest number of `words`.

  Example: "tower stands in" is in "The tower stands in Paris." with least=3, "ower stands in Paris" is not.
  """
  quote = plain(quote)
  if not quote or words(quote) < least:
    return False
  pattern, size = re.compile(f"(?={re.escape(quote)})"), len(quote)
  places = ((text, match.start()) for text in _collapsed(tuple(contexts)) for match in pattern.finditer(text))
  return any(not (tokens.cuts(text, at) or tokens.cuts(text, at + size)) for text, at in places)


@functools.lru_cache(maxsize=8192)  # samples of a group often have the same quotes
def soft(quote: str, context: str, threshold: float = SOFT) -> bool:
  """Whether some window of the context, with as many words as the quote, is similar to the quote.

  Similar means SequenceMatcher(None, window, quote).ratio() >= threshold, both as `plain`, in lower case.

  The result is the same as with every window tried, but most windows are skipped by three bounds:

  1. A ratio of r needs M = r · (a + b) / 2 matching characters, where a and b are the lengths. So the two texts share
     at least M characters.
  2. The matching characters lie in blocks that both texts contain. Between two blocks at least one character of either
     text is unmatched, so there are at most K = 1 + (a + b − 2M) blocks. A block of s characters has s − 1 pairs of
     neighbours. So the two texts share at least M − K pairs.
  3. difflib grows a block only from the start of both texts or from a character that is not "popular". In a quote of
     200 characters or more, a character is popular if it makes up more than 1 % of it. So K is at most one more than
     the number of characters that are not popular, and `_reach` bounds the number of characters that can match.

  The window with the largest bound is tried first.

  Args:
    threshold: smallest ratio, above 0.

  Source: the reward of CARE's code; benchmarks/quotes.py compares the two.
  """
  quote = plain(quote.lower())
  indexed = _index(context)
  size = quote.count(" ") + 1
  if not quote or size > len(indexed.starts):
    return False
  starts, ends = indexed.starts[: len(indexed.starts) - size + 1], indexed.ends[size - 1 :]
  total = (ends - starts) + len(quote)
  matched = np.ceil(threshold * total / 2 - 1e-6).astype(np.int64)
  matcher = difflib.SequenceMatcher(None, "", quote)
  rare = vars(matcher)["b2j"]  # character → its places in the quote; the type stubs of difflib lack it
  blocks = np.minimum(1 + total - 2 * matched, 1 + sum(map(len, rare.values())))
  windows = np.flatnonzero(matched <= np.minimum(ends - starts, len(quote)))
  for keys, least, span in (
    (indexed.letters, matched, _codes(quote)),
    (indexed.pairs, matched - blocks, _pairs(_codes(quote))),
  ):
    windows = _sharing(keys, span, starts, ends - (indexed.pairs is keys), least, windows)
  if len(quote) >= JUNK_FROM and len(windows):
    reach = _reach(_codes(quote), rare, indexed.letters, starts[windows], ends[windows], matched[windows])
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
  """A context's characters, pairs of neighbouring characters, and starts and ends of its words."""

  def __init__(self, context: str):
    self.text = plain(context.lower())
    words = self.text.split()
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    self.ends = np.cumsum(lengths + 1) - 1
    self.starts = self.ends - lengths
    self.letters = _codes(self.text)
    self.pairs = _pairs(self.letters)


_index = functools.lru_cache(maxsize=64)(_Index)  # the samples of a group share one context


@functools.lru_cache(maxsize=64)
def _collapsed(contexts: tuple[str, ...]) -> tuple[str, ...]:
  return tuple(map(plain, contexts))


def _codes(text: str) -> np.ndarray:
  return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64)


def _pairs(codes: np.ndarray) -> np.ndarray:
  return codes[:-1] << 21 | codes[1:]


def _sharing(keys, span, starts, ends, least, windows) -> np.ndarray:
  """The windows that share at least `least` keys with the span, as multisets."""
  if not len(windows) or not len(keys):
    return windows
  kinds, counts = np.unique(span, return_counts=True)
  # First without multiplicity: one pass over the context leaves few windows of a short quote.
  place = np.searchsorted(kinds, keys)
  place[place == len(kinds)] = 0
  hit = kinds[place] == keys if len(kinds) else np.zeros(len(keys), bool)
  hits = np.concatenate(([0], np.cumsum(hit)))
  windows = windows[hits[ends[windows]] - hits[starts[windows]] >= least[windows]]
  if not len(windows):
    return windows
  shared = np.zeros(len(windows), np.int64)
  begin, end = starts[windows], ends[windows]
  for number, count in enumerate(counts):
    at = np.flatnonzero(hit & (place == number))
    shared += np.minimum(np.searchsorted(at, end) - np.searchsorted(at, begin), count)
  return windows[shared >= least[windows]]


def _reach(quote, rare, text, starts, ends, least) -> np.ndarray:
  """For each window, an upper bound on the number of the quote's characters in difflib's blocks.

  A block is either the common prefix, or the stretch of agreement around a position where both texts have the same rare
  (not popular) character. So all matched characters lie in the prefix or in such stretches. Matches keep their order.
  So a block that is d characters further right in the window than in the quote leaves d characters of the window
  unmatched, or −d of the quote. As `least` characters of each window must match, this bounds d. Quote and text are
  character codes, `rare` has the positions of a character in the quote.
  """
  at, place = _stretches(quote, rare, text)
  if at is None or place is None:
    return np.full(len(starts), len(quote))
  offset = place - at
  order = np.argsort(offset, kind="stable")
  at, place, offset = at[order], place[order], offset[order]
  low = np.searchsorted(offset, starts - (len(quote) - least))
  high = np.searchsorted(offset, ends - least, "right")
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
  """Pairs of positions (in the quote, in the text) that lie in a stretch of agreement around an equal rare character.

  (None, None) if there are more than MOST_ANCHORS.
  """
  anchors = [(np.asarray(places), np.flatnonzero(text == ord(letter))) for letter, places in rare.items()]
  if sum(len(places) * len(text_at) for places, text_at in anchors) > MOST_ANCHORS:
    return None, None
  none = np.zeros(0, np.int64)
  at = np.concatenate([none, *(np.repeat(places, len(text_at)) for places, text_at in anchors)])
  place = np.concatenate([none, *(np.tile(text_at, len(places)) for places, text_at in anchors)])
  rare_at = np.sort(np.concatenate([none, *(places for places, _ in anchors)]))
  bounds = np.concatenate(([-1], rare_at, [len(quote)]))
  pairs = [(at, place)]
  for step, stop in (
    (1, bounds[np.searchsorted(rare_at, at, "right") + 1]),
    (-1, bounds[np.searchsorted(rare_at, at, "left")]),
  ):
    quote_at, text_at = at, place
    while len(quote_at):  # up to the quote's next rare character, which has stretches of its own
      quote_at, text_at = quote_at + step, text_at + step
      on = np.flatnonzero((quote_at != stop) & (text_at >= 0) & (text_at < len(text)))
      on = on[quote[quote_at[on]] == text[text_at[on]]]
      quote_at, text_at, stop = quote_at[on], text_at[on], stop[on]
      pairs.append((quote_at, text_at))
  return tuple(np.concatenate(parts) for parts in zip(*pairs))
