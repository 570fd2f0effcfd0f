"""Rewards for queries: for short keyword queries, and for queries that differ from each other."""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ragrl_jax.core.text import forms

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")  # "whatIsIt" and "what_is_it" are three words
_CAPITALISED = re.compile(r"[A-Z][\w']*(?:[ -]+[A-Z][\w']*)*")
_QUALIFIER = re.compile(r"(?:(?<!\s)\s+)?\([^()]*\)\s*$")
INTERROGATIVES = frozenset("what who whom whose which when where why how".split())
FUNCTION_WORDS = INTERROGATIVES | frozenset(
  "a about after against all also am an and any are as at be been before being between both but by can could did do "
  "does during each for from had has have having he her here his i if in into is it its me more most my no nor not of "
  "off on once only or other our out over own she should so some such than that the their them then there these they "
  "this those through to too under until up very was we were while will with would you your".split()
)


def is_keywords(query: str, titles: Sequence[str] = (), *, max_words: int = 12, max_share: float = 0.5) -> bool:
  """Whether a query consists of a few keywords and is not a question.

  False for a query with a question word, with a "?" after its last word, with more than `max_words` words, with a share
  of function words above `max_share`, or without a word. A contraction is one word, and the part before its apostrophe
  decides: "what's" is a question word, "Dickinson's" is not. Full-width characters count as normal ones.

  Args:
    titles: names of at least two words. A word of the query that belongs to one of them, as in "Who Framed Roger Rabbit
      director", is neither a question word nor a function word. Wikipedia's qualifier at a title's end, as in "(2000
      film)", may be missing.

  Source: When to Search (sec. 3.3) names such rules and publishes none; these are ours.
  """
  words = _words(query)
  if not words or len(words) > max_words or "?" in re.split(r"\w", _whole(query))[-1]:
    return False
  names = [name for title in titles for name in (title, _QUALIFIER.sub("", title))]
  free = _without(words, [_words(name) for name in names])
  return INTERROGATIVES.isdisjoint(free) and sum(word in FUNCTION_WORDS for word in free) <= max_share * len(words)


def names_in(question: str) -> list[str]:
  """Runs of two or more capitalised words in a question, except at its start: names, perhaps titles."""
  question = forms.typed(question).lstrip()
  several = lambda run: " " in run or "-" in run
  return [match[0] for match in _CAPITALISED.finditer(question) if match.start() and several(match[0])]


def _whole(text: str) -> str:
  return forms.typed(unicodedata.normalize("NFKC", text))


def _words(text: str) -> list[str]:
  return [word.partition("'")[0] for word in _WORD.findall(_CAMEL.sub(" ", _whole(text)).lower())]


def _without(words: list[str], titles: Sequence[list[str]]) -> list[str]:
  """The words that are not part of a complete title."""
  in_titles: set[int] = set()
  for title in titles:
    size = len(title)
    for at in range(len(words) - size + 1) if size > 1 else ():  # a title of one word would excuse every "who"
      if words[at : at + size] == title:
        in_titles.update(range(at, at + size))
  return [word for place, word in enumerate(words) if place not in in_titles]


# Rules for a single query and known titles, by name.
CONCISE: Mapping[str, Callable[..., bool]] = {
  "keywords": is_keywords,
  "no_question": lambda query, titles=(): is_keywords(query, titles, max_words=10**9, max_share=1.0),
  "any": lambda query, titles=(): True,
}


def plain(query: str) -> str:
  """The form in which queries are compared: `forms.plain`, with single spaces. Underscores count as spaces."""
  return " ".join(forms.plain(query).replace("_", " ").split())


def ngram_vectors(texts: Sequence[str], n: int = 3) -> np.ndarray:
  """Counts of character n-grams, [texts, n-grams]; texts as `plain`, with a space at each end."""
  places: dict[str, int] = {}
  rows = []
  for text in texts:
    padded = f" {plain(text)} ".ljust(n)
    rows.append([places.setdefault(padded[i : i + n], len(places)) for i in range(len(padded) - n + 1)])
  return np.stack([np.bincount(row, minlength=len(places)) for row in rows]) if rows else np.zeros((0, 0))


def mean_similarity(vectors: np.ndarray | Sequence[Sequence[float]], *, halve: bool = False) -> float:
  """The mean cosine over all pairs of N vectors, 2 · Σ_{i<j} cos / (N · (N − 1)); 0 for fewer than two.

  Args:
    vectors: [N, dimensions]. A vector of length 0 has cosine 0 with all others.
    halve: return half of it, Σ_{i<j} cos / (N · (N − 1)), so that equal vectors give 0.5.

  Raises:
    ValueError: vectors of different dimensions, or with entries that are not finite.

  Source: When to Search eq. 8 has half the mean; its text says mean.
  """
  rows = np.asarray(vectors, np.float64)
  if len(rows) < 2:
    return 0.0
  if rows.ndim != 2 or not np.isfinite(rows).all():
    raise ValueError(f"similarity needs finite vectors [N, dimensions], these have the shape {rows.shape}.")
  lengths = np.linalg.norm(rows, axis=1)
  unit = rows / np.where(lengths > 0, lengths, 1.0)[:, None]
  cosines = np.clip(unit @ unit.T, -1.0, 1.0)[np.triu_indices(len(rows), 1)]
  return float(cosines.mean()) * (0.5 if halve else 1.0)
