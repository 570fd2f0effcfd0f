"""A dense encoder without weights: BM25, folded into a vector of fixed size by random indexing.

Every word has a sparse random code (`NONZEROS` entries of ±1/sqrt(NONZEROS)), drawn from a hash of seed and word. A
passage is the sum of its words' codes, each times BM25's term weight and sqrt(idf). A query is the sum of its words'
codes, each times sqrt(idf). The codes of different words are nearly orthogonal. The inner product is therefore the BM25
score plus noise of about idf / sqrt(dim) for every pair of different words. Splitting idf between the two sides keeps
that noise small relative to the weight of frequent words, which often decide the ranking (such as a relation's name).

Sources: random indexing, Kanerva et al. 2000; signed hashing, Weinberger et al. (arXiv 0902.2206); BM25, Robertson &
Zaragoza 2009.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import json
import math
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np

from ragrl_jax.retrieval.corpus import write_json
from ragrl_jax.retrieval.tokenize import RULE, Words, say_wordless, title_and_text
from ragrl_jax.structs import Passage

NONZEROS = 16


class HashingEncoder:
  """The encoder of this module's docstring, made by `fit` or `load`. Words outside the corpus have weight 0."""

  on_device = False  # NumPy only: it need not run on the thread that owns the accelerators

  def __init__(
    self,
    frequencies: dict[str, int],
    *,
    rows: int,
    mean_length: float,
    dim: int = 512,
    seed: int = 0,
    title_weight: float = 2.0,
    k1: float = 0.9,
    b: float = 0.4,
  ):
    """
    Args:
      frequencies: word → number of passages that contain it.
      rows: number of passages.
      mean_length: mean number of words in a passage; a title's word counts `title_weight` times.
      dim: length of a vector, a multiple of 16.
      seed: seed of the words' codes, from 0 to 2^64 - 1.
      title_weight: weight of a word in the title relative to one in the text.
      k1, b: BM25's saturation (at least 0) and length normalisation (0 to 1).

    Raises:
      ValueError: a setting is of a wrong type or outside its range.
    """
    if type(dim) is not int or dim < NONZEROS or dim % NONZEROS:
      raise ValueError(f"dim={dim!r}: the hashing encoder's dimension must be a multiple of {NONZEROS}.")
    if type(seed) is not int or not 0 <= seed < 1 << 64:
      raise ValueError(f"seed={seed!r}: the hashing encoder's seed must be a whole number from 0 to 2^64 - 1.")
    for name, value, most in (("title_weight", title_weight, math.inf), ("k1", k1, math.inf), ("b", b, 1)):
      if type(value) not in (int, float) or not 0 <= value <= most or value == math.inf:
        words = "from 0 to 1" if most == 1 else "of at least 0"
        raise ValueError(f"{name}={value!r}: it must be a number {words} (the hashing encoder's settings).")
    self.dim = dim
    self.settings = dict(kind="hashing", dim=dim, seed=seed, title_weight=title_weight, k1=k1, b=b, rule=RULE)
    self._frequencies, self._rows, self._mean_length = frequencies, rows, mean_length
    self._words = Words(pattern="all")

  @classmethod
  def fit(cls, passages: Iterable[Passage], *, title_weight: float = 2.0, **settings) -> HashingEncoder:
    """The encoder for a corpus: counts its words in one pass."""
    words, frequencies, length, rows = Words(pattern="all"), collections.Counter(), 0.0, 0
    wordless, example = 0, ""
    for passage in passages:
      title, text = words(passage.title), words(passage.text)
      if not (title or text):
        wordless, example = wordless + 1, example or title_and_text(passage)
      frequencies.update(dict.fromkeys([*title, *text], 1))
      length += title_weight * len(title) + len(text)
      rows += 1
    say_wordless("passages", wordless, rows, example)
    return cls(dict(frequencies), rows=rows, mean_length=length / max(rows, 1), title_weight=title_weight, **settings)

  def save(self, path: pathlib.Path) -> None:
    """Writes settings and word frequencies as JSON."""
    write_json(
      path, dict(settings=self.settings, rows=self._rows, mean_length=self._mean_length, frequencies=self._frequencies)
    )

  @classmethod
  def load(cls, path: pathlib.Path) -> HashingEncoder:
    """Reads what `save` wrote. Raises ValueError if its words are those of another version's rule."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    settings = {name: value for name, value in stored["settings"].items() if name not in ("kind", "rule")}
    Words.of(dict(rule=stored["settings"].get("rule", 1)), path)
    return cls(stored["frequencies"], rows=stored["rows"], mean_length=stored["mean_length"], **settings)

  def idf(self, word: str) -> float:
    """ln(1 + (N - df + 1/2) / (df + 1/2)); 0 for a word outside the corpus."""
    df = self._frequencies.get(word, 0)
    return math.log1p((self._rows - df + 0.5) / (df + 0.5)) if df else 0.0

  def queries(self, texts: Sequence[str]) -> np.ndarray:
    """float32 `[n, D]`: a vector for each query."""
    return self._vectors([collections.Counter(self._words(text)) for text in texts])

  def passages(self, passages: Sequence[Passage]) -> np.ndarray:
    """float32 `[n, D]`: a vector for each passage; words of the title count `title_weight` times."""
    weights = []
    for passage in passages:
      counts: collections.Counter = collections.Counter(self._words(passage.text))
      for word in self._words(passage.title):
        counts[word] += self.settings["title_weight"]
      weights.append(self._saturated(counts))
    return self._vectors(weights)

  def num_tokens(self, texts: Sequence[str], kind: str) -> list[int]:
    """Number of words of each text; they are the same for both kinds."""
    return [len(self._words(text)) for text in texts]

  def _saturated(self, counts: dict[str, float]) -> dict[str, float]:
    """Word counts → BM25's term weights, without the idf."""
    k1, b = self.settings["k1"], self.settings["b"]
    floor = k1 * (1 - b + b * sum(counts.values()) / max(self._mean_length, 1e-9))
    return {word: count * (k1 + 1) / (count + floor) for word, count in counts.items()}

  def _vectors(self, weighted: Sequence[dict[str, float]]) -> np.ndarray:
    out = np.zeros((len(weighted), self.dim), np.float32)
    for row, weights in zip(out, weighted):
      for word, weight in weights.items():
        idf = self.idf(word)
        if idf:
          at, signs = _code(word, self.settings["seed"], self.dim)
          row[at] += np.float32(weight * math.sqrt(idf / NONZEROS)) * signs
    return out


@functools.lru_cache(maxsize=1 << 16)
def _code(word: str, seed: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
  """(positions, signs): one entry in each of NONZEROS equal parts of the vector, so that positions never collide."""
  digest = hashlib.blake2b(word.encode(), digest_size=4 * NONZEROS, salt=seed.to_bytes(8, "little")).digest()
  draws = np.frombuffer(digest, dtype="<u4").astype(np.int64)
  part = dim // NONZEROS
  return np.arange(NONZEROS) * part + (draws >> 1) % part, np.where(draws & 1, 1, -1).astype(np.float32)
