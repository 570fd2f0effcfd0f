"""Counts the texts that hold each of many phrases, in one pass over the texts."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping


class Phrases:
  """Phrases to look for, as whole words; a phrase is dropped once enough texts hold it.

  A phrase is looked for only in texts that hold its rarest pair of neighbouring words, so that a text costs little more
  for a hundred thousand phrases than for ten.

  Attributes:
    counts: phrase → number of texts that hold it, at most its `enough`.
  """

  def __init__(self, enough: Mapping[str, int], sample: Iterable[str]):
    """
    Args:
      enough: phrase → the number of texts after which it need not be counted further. Phrases and texts are normalised
        alike: words with one space between them. An empty phrase is in no text.
      sample: some of the texts, which say which words are rare.
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
    """Counts a text that holds the phrase; whether it is dropped now."""
    self.counts[phrase] += 1
    return self.counts[phrase] == self._enough[phrase]
