"""Combines retrievers: joins a corpus's parts, fuses rankings, or reranks passages with a model that reads both texts.

A file FUSED.json has the settings. Pass its path in place of an index's folder (`config.retrieval.index`, --index):

    {"indexes": ["wiki_bm25", "wiki_e5"], "fusion": "rrf", "rerank": {"kind": "cross-encoder", "path": "MiniLM"}}

Paths are relative to the file. See `Fused` and `Reranked` for the other entries.
"""

import collections
import concurrent.futures
import dataclasses
import itertools
import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ragrl_jax.chat.client import daemon
from ragrl_jax.retrieval import api
from ragrl_jax.retrieval.cards import read_card
from ragrl_jax.retrieval.remote import RemoteRetriever
from ragrl_jax.settings import DTYPES, fields, stored_paths
from ragrl_jax.settings.fields import setting
from ragrl_jax.structs import Passage

FUSIONS = ("rrf", "weighted")
SCORING = ("kind", "encoder", "dtype", "k1", "b", "words")  # entries of a description on which the scores depend
Key = tuple[str, str, str]  # id, title and text


@dataclasses.dataclass(frozen=True)
class Fusion(fields.Checked):
  """How rankings are fused, see `Fused`."""

  fusion: str = setting("rrf", choices=FUSIONS)
  weights: tuple[float, ...] | None = None
  depth: int = setting(100, least=1)
  rrf_k: float = setting(60.0, least=0)

  def rules(self) -> fields.Rules:
    fits = lambda weight: type(weight) in (int, float) and 0 < weight < math.inf
    numbers = self.weights is None or isinstance(self.weights, tuple) and all(map(fits, self.weights))
    yield numbers, self.refusal("weights", self.weights, "numbers above 0, one per index")


@dataclasses.dataclass(frozen=True)
class Rerank(fields.Checked):
  """The model that reranks. None: as `models.scorers.load_scorer` has it."""

  WHERE = "rerank."
  kind: str = setting(dataclasses.MISSING)
  path: str = setting(dataclasses.MISSING)
  depth: int = setting(50, least=1)
  title_separator: str | None = None
  max_tokens: int | None = setting(None, least=1)
  dtype: str | None = setting(None, choices=DTYPES)
  batch: int | None = setting(None, least=1)


class Scorer(Protocol):
  """Scores (query, passage) pairs, see `models.scorers`. Its settings (JSON) are stored with every score."""

  @property
  def settings(self) -> Mapping[str, Any]:
    """The scorer's own settings."""

  def scores(self, pairs: Sequence[tuple[str, Passage]]) -> np.ndarray:
    """float32 [n], higher is better."""


class _Around(api.Searches):
  """Base class of retrievers that wrap others. Documents are read from the first wrapped retriever."""

  def __init__(self, parts: Sequence[Any]):
    self._parts, self._first = list(parts), parts[0]

  def read(self, requests: Sequence[tuple[str, str]], k: int) -> api.Answers:
    """See `documents.read`; the first retriever opens the documents. Raises ValueError: it cannot open documents."""
    if not hasattr(self._first, "read"):
      raise ValueError(
        f"the first retriever ({type(self._first).__name__}) opens no documents: name first an index's folder or "
        "the address of `ragrl serve-index`."
      )
    return self._first.read(requests, k)

  def close(self) -> None:
    """Stops waiting for servers."""
    for part in self._parts:
      if hasattr(part, "close"):
        part.close()


def _checksum(part: api.Retriever) -> str | None:
  """The checksum of a retriever's corpus, or of its server's; None if it is unknown."""
  description: Any = part.describe()
  for name in ("server", "retriever"):
    description = description.get(name, description) if isinstance(description, Mapping) else {}
  return description.get("checksum") if isinstance(description, Mapping) else None


class Fused(_Around):
  """Fuses the rankings of several retrievers. Passages with the same id, title and text are the same passage.

  If two parts have corpora with different checksums, and an id is in both, the later one's passage has the number of
  its part before its id ("1:17"). Servers and recordings that tell no checksum keep their ids.

  "rrf" (reciprocal rank fusion, Cormack et al. 2009): a passage's score is the sum of weight / (rrf_k + rank) over the
  rankings that have it, with ranks from 1. "weighted" (convex combination, arXiv 2210.11934): the score is the sum of
  weight · score. Each ranking's scores are first scaled linearly: its last passage gets 0, its first 1. A missing
  passage counts 0, and one that a ranking has twice counts at its first rank.

  Passages of equal score are in the order of the first retriever's corpus. If that is not on this machine, they are in
  the order in which they were found, retriever by retriever.

  Args:
    weights: one per retriever, above 0; None for 1 each.
    depth: passages fetched from each retriever, at least k.
    rrf_k: the constant of "rrf". A larger constant makes the first ranks less important.

  Raises:
    ValueError: a bad setting.
  """

  def __init__(self, parts: Sequence[api.Retriever], **settings: Any):
    how = fields.build(Fusion, settings, "fusion")
    self._weights = [1.0] * len(parts) if how.weights is None else [float(weight) for weight in how.weights]
    if not parts or len(self._weights) != len(parts):
      raise ValueError(f"weights={self._weights}: there must be {len(parts)} weights, one per index.")
    super().__init__(parts)
    self._fusion, self._depth, self._rrf_k = how.fusion, how.depth, how.rrf_k
    self._checksums = [_checksum(part) for part in parts]

  def describe(self) -> dict[str, Any]:
    """The settings that are stored with every score: those of the fusion and of every part."""
    options: dict[str, Any] = dict(fusion=self._fusion, weights=self._weights, depth=self._depth)
    if self._fusion == "rrf":
      options["rrf_k"] = self._rrf_k
    return dict(kind="fused", **options, parts=[dict(part.describe()) for part in self._parts])

  def _search(self, texts: list[str], k: int) -> api.Answers:
    rankings = [part.search(texts, max(self._depth, k)) for part in self._parts]
    return [self._fused(found, k) for found in zip(*rankings, strict=True)]

  def _fused(self, rankings: Sequence[list[Passage]], k: int) -> list[Passage]:
    scores: dict[Key, float] = collections.defaultdict(float)
    passages: dict[Key, Passage] = {}
    for number, (weight, found) in enumerate(zip(self._weights, rankings)):
      seen: set[Key] = set()
      for passage, points in zip(found, self._points(found), strict=True):
        name = self._name(number, passage.id)
        key = (name, passage.title, passage.text)
        passages.setdefault(key, dataclasses.replace(passage, id=name))
        scores[key] += 0.0 if key in seen else weight * points
        seen.add(key)
    best = sorted(passages, key=lambda key: -scores[key])  # stable
    if row_of := getattr(self._first, "row_of", None):
      best = self._by_rows(best, scores, k, row_of)
    return [dataclasses.replace(passages[key], score=scores[key]) for key in best[:k]]

  def _name(self, number: int, name: str) -> str:
    """The id of a passage of this part: not one of another corpus before it."""
    for before, part in zip(self._checksums[:number], self._parts):
      if self._checksums[number] and before and before != self._checksums[number] and hasattr(part, "row_of"):
        if part.row_of(name) is not None:
          return f"{self._checksums.index(self._checksums[number])}:{name}"
    return name

  @staticmethod
  def _by_rows(best: list[Key], scores: Mapping[Key, float], k: int, row_of: Callable[[str], int | None]) -> list[Key]:
    """The first k passages and those that tie with the last. Equal scores are in the order of the first corpus."""
    out: list[Key] = []
    for _, tied in itertools.groupby(best, key=lambda key: scores[key]):
      some = list(tied)
      if len(some) > 1:
        rows = {key: row_of(key[0]) for key in some}
        some.sort(key=lambda key: (rows[key] is None, rows[key] or 0))
      out += some
      if len(out) >= k:
        break
    return out

  def _points(self, passages: list[Passage]) -> list[float]:
    if self._fusion == "rrf":
      return [1.0 / (self._rrf_k + rank) for rank in range(1, len(passages) + 1)]
    scores = [passage.score for passage in passages]
    if any(score is None for score in scores):
      raise api.RetrievalFailed("a retriever gives no scores: use fusion 'rrf', which needs only ranks.")
    high, low = (scores[0], scores[-1]) if scores else (0.0, 0.0)
    return [1.0 if high == low else (score - low) / (high - low) for score in scores]


class Reranked(_Around):
  """Reranks the best passages of a retriever with a model that reads query and passage together.

  Passages of equal score keep the retriever's order.

  Args:
    depth: number of candidates, and so the most passages of an answer.
    dispatch: `dispatch(function, *arguments)` runs the scorer, see `dense.DenseRetriever`.
  """

  def __init__(
    self, retriever: api.Retriever, scorer: Scorer, *, depth: int = 50, dispatch: Callable[..., Any] | None = None
  ):
    super().__init__([retriever])
    self._scorer, self._depth = scorer, depth
    self._dispatch = dispatch or (lambda function, *arguments: function(*arguments))

  def describe(self) -> dict[str, Any]:
    """The settings that are stored with every score: those of the scorer and of the retriever."""
    return dict(
      kind="reranked", scorer=dict(self._scorer.settings), depth=self._depth, retriever=dict(self._first.describe())
    )

  def _search(self, texts: list[str], k: int) -> api.Answers:
    result = self._first.search(texts, self._depth)
    pairs = [(text, passage) for text, passages in zip(texts, result, strict=True) for passage in passages]
    if not pairs:
      return result
    scores = iter(np.asarray(self._dispatch(self._scorer.scores, pairs), np.float32).tolist())
    again = [[dataclasses.replace(passage, score=next(scores)) for passage in passages] for passages in result]
    return [sorted(passages, key=lambda passage: -passage.score)[:k] for passages in again]  # stable


def load(path: str | os.PathLike, open_index: Callable[..., api.Retriever], **settings: Any) -> api.Retriever:
  """Loads the retriever that a file FUSED.json describes; `dispatch` of the settings also runs its scorer.

  Raises:
    ValueError: the file has an unknown, missing or wrong entry, or an index or a scorer cannot be loaded.
  """
  path = pathlib.Path(path)
  card = read_card(path, dict(indexes=list))
  names, again = card.pop("indexes"), card.pop("rerank", None)
  try:
    fields.build(Fusion, card, "fusion")
    rerank = None if again is None else _rerank(again)
  except ValueError as error:
    raise ValueError(f"{path}: {error}") from None
  if not names or not all(isinstance(name, str) for name in names):
    must = "a list of the folders or addresses of at least one index"
    raise ValueError(f"{path}: indexes={names!r:.80}: it must be {must}.")
  _refuse_circles(path, ())
  parts = [open_index(_beside(path, name), **settings) for name in names]
  result = parts[0] if len(parts) == 1 and not card else Fused(parts, **card)
  if rerank is None:
    return result
  from ragrl_jax.models import hub, scorers  # imported here, since only this needs JAX and the models

  options = {name: value for name, value in vars(rerank).items() if value is not None}
  where, kind, depth = options.pop("path"), options.pop("kind"), options.pop("depth")
  folder = path.parent / where
  if hub.is_name(where) and not folder.is_dir():
    if not hub.parts(where)[1]:
      known = hub.with_commit(where, f"{path}: rerank.path")
      raise ValueError(f"{path}: rerank.path={where!r} may become another model: write its commit too, {known!r}.")
    folder = hub.folder(where, f"{path}: rerank.path")
  return Reranked(result, scorers.load_scorer(folder, kind, **options), depth=depth, dispatch=settings.get("dispatch"))


def _beside(path: pathlib.Path, name: str) -> str | pathlib.Path:
  """An index's name, or the place that it has beside FUSED.json."""
  here = lambda part: str(path.parent / part) if (path.parent / part).exists() else part
  return stored_paths.in_address(name, here) or (name if "://" in name else path.parent / name)


def _refuse_circles(path: pathlib.Path, within: tuple[pathlib.Path, ...]) -> None:
  """Raises ValueError if the file is among its own indexes, or among theirs."""
  own_path = path.resolve()
  if own_path in within:
    raise ValueError(f"{path}: it is among its own indexes: name other indexes in {within[-1].name}.")
  for name in read_card(own_path, dict(indexes=list))["indexes"]:
    if isinstance(name, str) and name.endswith(".json") and (own_path.parent / name).is_file():
      _refuse_circles(own_path.parent / name, (*within, own_path))


def _rerank(entries: Any) -> Rerank:
  if not isinstance(entries, dict) or not {"kind", "path"} <= entries.keys():
    raise ValueError(f"rerank={entries!r:.80}: it must be an object with a kind and the path of a model.")
  return fields.build(Rerank, entries, "rerank")


class ShardedRetriever(_Around):
  """Searches all parts at the same time. The answer is that of one index over the whole corpus.

  Each part waits and retries as `RemoteRetriever` does. If a part does not answer, the search fails, because an answer
  without it would look like that of a smaller corpus. Passages with equal scores keep the order of the parts.

  Args:
    parts: clients of the servers. Parts made by `build_index` are sorted; others keep the given order.

  Raises:
    ValueError: the servers do not have each part of one corpus exactly once.
  """

  def __init__(self, parts: Sequence[RemoteRetriever]):
    shards = [_shard(part) for part in parts]
    known = [shard for shard in shards if shard is not None]
    if known:
      numbers = sorted(shard["number"] for shard in known)
      wanted = list(range(1, known[0]["of"] + 1))
      same = all(shard["of"] == known[0]["of"] and shard["made"] == known[0]["made"] for shard in known)
      if len(known) < len(parts) or not same or numbers != wanted:
        listing = "; ".join(f"{part.name}: {_label(shard)}" for part, shard in zip(parts, shards))
        raise ValueError(
          f"{listing}: together they must be all parts of one corpus, each once, with the same encoder "
          "(config.retrieval.index)."
        )
      parts = [parts[place] for place in sorted(range(len(parts)), key=lambda place: known[place]["number"])]
    super().__init__(parts)

  def describe(self) -> dict[str, Any]:
    """The settings of all parts, which are stored with every score."""
    return dict(kind="sharded", parts=[part.describe() for part in self._parts])

  def read(self, requests: Sequence[tuple[str, str]], k: int) -> api.Answers:
    """See `documents.read`. If a document is split over two parts, only the part with the opened passage is read."""
    everywhere = self._asked(lambda part: part.read(requests, k))
    return [next((passages for passages in found if passages), []) for found in zip(*everywhere, strict=True)]

  def _search(self, texts: list[str], k: int) -> api.Answers:
    return [self._merged(found, k) for found in zip(*self._asked(lambda part: part.search(texts, k)), strict=True)]

  def _asked(self, call: Callable[[RemoteRetriever], api.Answers]) -> list[api.Answers]:
    """The result of `call` for each part. All parts are called at the same time."""
    answers = [daemon(call, part, name="part") for part in self._parts]
    concurrent.futures.wait(answers)
    return [answer.result() for answer in answers]

  def _merged(self, answers: tuple[list, ...], k: int) -> list:
    for part, passages in zip(self._parts, answers):
      if any(passage.score is None for passage in passages):
        raise api.RetrievalFailed(f"{part.name} returns no scores: parts of a corpus cannot be merged without them.")
    together = [passage for passages in answers for passage in passages]
    return sorted(together, key=lambda passage: -passage.score)[:k]  # stable: equal scores keep the order of the parts


def _shard(part: RemoteRetriever) -> dict[str, Any] | None:
  """A server's description of its part: {"number", "of", "made": corpus and settings}; None if it gives none."""
  index = part.describe()["server"].get("retriever")
  shard = index.get("shard") if isinstance(index, dict) else None
  if not isinstance(shard, dict) or not all(isinstance(shard.get(name), int) for name in ("number", "of")):
    return None
  contents = dict(corpus=shard.get("corpus"), **{name: index[name] for name in SCORING if name in index})
  return dict(number=shard["number"], of=shard["of"], made=contents)


def _label(shard: Mapping[str, Any] | None) -> str:
  if shard is None:
    return "a whole index"
  return f"part {shard['number']} of {shard['of']} of {str(shard['made']['corpus'])[:12]} ({shard['made'].get('kind')})"
