"""Counts the texts that contain each of many phrases, in one pass over the texts."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping


class Phrases:
  """Searches phrases in texts, as whole words. A phrase is dropped when enough texts contain it.

  A phrase is searched only in texts that contain its rarest pair of neighbouring words. So a text costs little more for
  a hundred thousand phrases than for ten.

  Attributes:
    counts: phrase → number of texts that contain it, at most its `enough`.
  """

  def __init__(self, enough: Mapping[str, int], sample: Iterable[str]):
    """
    Args:
      enough: phrase → the number of texts at which counting stops. Phrases and texts are normalised in the same way:
        words separated by one space. An empty phrase is in no text.
      sample: some of the texts, for the frequencies of words.
    """
    seen = Counter(word for text in itertools.chain(sample, enough) for word in set(text.split()))
    self.counts = dict.fromkeys(enough, 0)
    self._enough = enough
    self._words: set[str] = set()  # phrases of one word
    self._pairs: dict[tuple[str, str], list[str]] = {}  # rarest pair → " phrase " of each
    for phrase in filter(None, enough):
      words = phrase.split()
      if len(words) == 1:
        self._words.add(phrase)
      else:
        rarest = min(zip(words, words[1:]), key=lambda pair: seen[pair[0]] * seen[pair[1]])
        self._pairs.setdefault(rarest, []).append(f" {phrase} ")

  def add(self, text: str) -> None:
    """Counts a text."""
    words = text.split()
    for word in self._words.intersection(words):
      if self._held(word):
        self._words.remove(word)
    whole = f" {text} "
    for pair in self._pairs.keys() & set(zip(words, words[1:])):
      phrases = self._pairs[pair]
      for padded in [padded for padded in phrases if padded in whole]:
        if self._held(padded[1:-1]):
          phrases.remove(padded)
      if not phrases:
        del self._pairs[pair]

  def _held(self, phrase: str) -> bool:
    """Counts a text that contains the phrase. Returns whether the phrase is dropped now."""
    self.counts[phrase] += 1
    return self.counts[phrase] == self._enough[phrase]
