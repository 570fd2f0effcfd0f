"""The encoder of an index: chosen when the index is built, loaded again when it is searched."""

import collections
import functools
import hashlib
import inspect
import json
import math
import os
import pathlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ragrl_jax.models import hub
from ragrl_jax.models.encoder_settings import EOS
from ragrl_jax.retrieval import bm25, cards
from ragrl_jax.retrieval.api import Encoder
from ragrl_jax.retrieval.bm25 import RULE, Words, say_wordless, title_and_text
from ragrl_jax.retrieval.cards import write_json
from ragrl_jax.settings import stored_paths
from ragrl_jax.structs import Passage

FITTED = "encoder.json"
NONZEROS = 16  # of a word's code


def describe(
  encoder: str | os.PathLike | Encoder, options: Mapping[str, Any] | None, before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
  """The encoder's entry in build.json and index.json (JSON).

  Args:
    encoder, options: as for `build_index`.
    before: the entry of an earlier call. The hub's commits in it are kept.

  Raises:
    ValueError: `encoder` is not a known name, a model or an encoder, or it has no such option. Values of
      options are checked for "bm25" and "hashing".
  """
  options = dict(options or {})
  if not isinstance(encoder, str | os.PathLike):
    if options:
      raise ValueError("encoder_options are for an encoder given by name or folder, not for an encoder object.")
    return dict(kind="given", settings=dict(encoder.settings), dim=encoder.dim)
  try:
    json.dumps(options)
  except TypeError:
    raise ValueError(
      f"encoder_options={options!r:.200}: they must be JSON, since they are stored with the index; otherwise pass "
      "an encoder object."
    ) from None
  # Wrong options are found now, before the corpus is stored.
  if str(encoder) == "bm25":
    _check("bm25", options, bm25.checked)
    bm25.checked(**options)
    return dict(kind="bm25", options=options, words=RULE)
  if str(encoder) == "hashing":
    _check("hashing", options, HashingEncoder, fixed=("rows", "mean_length"))
    HashingEncoder({}, rows=0, mean_length=0.0, **options)
    return dict(kind="hashing", options=options, words=RULE)
  if not hub.is_name(encoder) and not (pathlib.Path(encoder) / "config.json").is_file():
    raise ValueError(
      f"encoder={str(encoder)!r}: it must be 'bm25', 'hashing', or a folder (or OWNER/NAME on the hub) with a "
      "config.json and safetensors of a BERT-type encoder or of a decoder for embeddings."
    )
  from ragrl_jax.models.encoder import load_encoder  # takes a while, and bm25 and hashing do not need it

  _check("model", options, load_encoder, fixed=("mesh",))

  def at(where: str | os.PathLike, description: Any) -> str:
    if not hub.is_name(where):
      return str(pathlib.Path(where).resolve())
    return hub.stored(description, str(where), "encoder") or hub.with_commit(str(where), "encoder")

  before = before or {}
  if second := options.get("passage_path"):
    options["passage_path"] = at(second, before.get("options", {}).get("passage_path"))
  return dict(kind="model", path=at(encoder, before.get("path")), options=options)


def _check(kind: str, options: Mapping[str, Any], made_by: Callable[..., Any], fixed: Collection[str] = ()) -> None:
  """Refuses an option that is no keyword of `made_by`, or one that is `fixed` by the index."""
  keywords = [p.name for p in inspect.signature(made_by).parameters.values() if p.kind is p.KEYWORD_ONLY]
  names = [name for name in keywords if name not in fixed]
  if unknown := sorted(map(str, options.keys() - set(names))):
    raise ValueError(
      f"encoder_options: unknown {', '.join(unknown)}: for this encoder ({kind}) use only {', '.join(names)}."
    )


def fit(
  encoder: str | os.PathLike | Encoder, settings: Mapping[str, Any], corpus: Iterable[Passage] | None, out: pathlib.Path
) -> Encoder:
  """The encoder for this corpus. "hashing" counts the corpus's words and stores them in the index's folder.

  Without a corpus, "hashing" has its dimension alone.
  """
  if settings["kind"] == "given":
    return encoder
  if settings["kind"] == "model":
    return load_model(settings["path"], spread=True, **settings["options"])
  if corpus is None:
    return HashingEncoder({}, rows=0, mean_length=0.0, **settings["options"])
  if not (out / FITTED).is_file():
    HashingEncoder.fit(corpus, **settings["options"]).save(out / FITTED)
  return HashingEncoder.load(out / FITTED)


def reload(card: Mapping[str, Any], folder: pathlib.Path, override: str | os.PathLike | Encoder | None) -> Encoder:
  """The encoder for queries to a finished index.

  Args:
    override: the encoder, or its folder or hub name if it was moved; None loads the encoder that the index names.

  Raises:
    ValueError: there is no encoder, or the vectors were made by another one.
  """
  kind = card["encoder"]["kind"]
  if kind == "hashing":
    with cards.opening(folder / FITTED):
      encoder = HashingEncoder.load(folder / FITTED)
  elif override is not None and not isinstance(override, str | os.PathLike):
    encoder = override
  elif kind == "model":
    path = override or stored_paths.found(card["encoder"]["path"], folder)
    if not pathlib.Path(path).is_dir() and not hub.is_name(path):
      raise ValueError(f"{folder}: its encoder is no longer at {path}: name it (load_index(…, encoder=PATH_OR_NAME)).")
    options = dict(card["encoder"]["options"], stored=card["encoder"]["settings"])
    if second := options.get("passage_path"):
      options["passage_path"] = stored_paths.found(second, folder)
    encoder = load_model(path, setting=f"{folder}, encoder", **options)
  else:
    raise ValueError(f"{folder}: it was built with an encoder object: pass the object, load_index(…, encoder=…).")
  settings, stored_settings = dict(encoder.settings), card["encoder"]["settings"]
  names = sorted({*stored_settings, *({EOS} & settings.keys())} - {"path"})
  pairs = {name: (settings.get(name), stored_settings.get(name)) for name in names}
  differs = [f"{name}: {own!r}, the index {stored!r}" for name, (own, stored) in pairs.items() if own != stored]
  if differs or encoder.dim != card["dim"]:
    raise ValueError(
      f"{folder}: its vectors were made with another encoder ({'; '.join(differs)}): pass that encoder, or build the "
      "index again."
    )
  return encoder


def find_name(card: Mapping[str, Any]) -> str:
  """The name of an index's encoder: that of its folder, else its kind. `card` is the contents of index.json."""
  settings = card["encoder"]
  return pathlib.Path(settings["path"]).name.partition("@")[0] if settings["kind"] == "model" else settings["kind"]


def load_model(
  path: str | os.PathLike,
  *,
  setting: str = "encoder",
  spread: bool = False,
  stored: Mapping[str, Any] | None = None,
  **options: Any,
) -> Encoder:
  """A Flax text encoder from a Hugging Face folder or a name on the hub.

  Args:
    spread: split each batch over this process's devices.
    stored: the settings that an index stores. They decide, whatever the folder declares or is called now.
    **options: those of `models.encoder.load_encoder`.
  """
  import jax  # imported here, since only such an index needs JAX and the models

  from ragrl_jax.models import encoder, encoder_settings
  from ragrl_jax.parallel import mesh

  if stored is not None:
    options |= dict(settings=encoder_settings.stored(stored), query_prefix=None)
  devices = jax.local_devices()
  if spread and len(devices) > 1:
    options["mesh"] = mesh.make(devices)
  if options.get("passage_path"):
    options["passage_path"] = hub.folder(options["passage_path"], setting)
  return encoder.load_encoder(hub.folder(path, setting), **options)


class HashingEncoder:
  """A dense encoder without weights, made by `fit` or `load`: BM25, folded into a vector by random indexing.

  Every word has a sparse random code (NONZEROS entries of ±1/sqrt(NONZEROS)), drawn from a hash of seed and word. A
  passage is the sum of its words' codes, each times BM25's term weight and sqrt(idf); a query that of its words' codes,
  each times sqrt(idf). Codes of different words are nearly orthogonal. The inner product is therefore the BM25 score
  plus noise of about idf / sqrt(dim) for every pair of different words. Splitting idf between the two sides keeps that
  noise small relative to the weight of frequent words, which often decide the ranking (such as a relation's name).

  Sources: random indexing, Kanerva et al. 2000; signed hashing, Weinberger et al. (arXiv 0902.2206); BM25, Robertson &
  Zaragoza 2009.
  """

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
  def fit(cls, passages: Iterable[Passage], *, title_weight: float = 2.0, **settings) -> "HashingEncoder":
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
  def load(cls, path: pathlib.Path) -> "HashingEncoder":
    """Reads what `save` wrote. Raises ValueError if its words are those of another version's rule."""
    counts = json.loads(path.read_text(encoding="utf-8"))
    settings = {name: value for name, value in counts["settings"].items() if name not in ("kind", "rule")}
    Words.from_settings(dict(rule=counts["settings"].get("rule", 1)), path)
    return cls(counts["frequencies"], rows=counts["rows"], mean_length=counts["mean_length"], **settings)

  def idf(self, word: str) -> float:
    """ln(1 + (N - df + 1/2) / (df + 1/2)); 0 for a word outside the corpus."""
    df = self._frequencies.get(word, 0)
    return math.log1p((self._rows - df + 0.5) / (df + 0.5)) if df else 0.0

  def queries(self, texts: Sequence[str]) -> np.ndarray:
    """float32 `[n, D]`: a vector for each query."""
    return self._vectors([collections.Counter(self._words(text)) for text in texts])

  def passages(self, passages: Sequence[Passage]) -> np.ndarray:
    """float32 `[n, D]`: a vector for each passage; words of the title count `title_weight` times."""
    k1, b, weights = self.settings["k1"], self.settings["b"], []
    for passage in passages:
      counts: collections.Counter = collections.Counter(self._words(passage.text))
      for word in self._words(passage.title):
        counts[word] += self.settings["title_weight"]
      # BM25's weights without the idf.
      floor = k1 * (1 - b + b * counts.total() / max(self._mean_length, 1e-9))
      weights.append({word: count * (k1 + 1) / (count + floor) for word, count in counts.items()})
    return self._vectors(weights)

  def num_tokens(self, texts: Sequence[str], kind: str) -> list[int]:
    """Number of words of each text; they are the same for both kinds."""
    return [len(self._words(text)) for text in texts]

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
