"""Passages in a database: Milvus, OpenSearch or Elasticsearch. Its address takes the place of an index's folder.

    milvus:FILE.db/COLLECTION                 Milvus Lite, in this process
    milvus:http://HOST:19530/COLLECTION       a server or cluster (https://HOST/DATABASE/COLLECTION)
    opensearch:https://HOST:9200/INDEX        OpenSearch; elasticsearch:https://HOST:9200/INDEX

Options follow "?", separated by "&": milvus:wiki.db/pages?encoder=intfloat/e5-base-v2&text=body. Without an encoder the
database's own full-text search (BM25) answers. Passages of equal score are in the database's order.
"""

import contextlib
import dataclasses
import importlib
import logging
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tqdm import tqdm

from ragrl_jax.models.encoder_settings import TOKENS
from ragrl_jax.retrieval import api, build, corpus, dense, documents, encoders, outage
from ragrl_jax.store import addresses
from ragrl_jax.structs import Passage

NUMBERS = ("ef", "nprobe", "level")  # parameters of Milvus's approximate indexes
OPTIONS = ("encoder", "id", "text", "title", "vector", *NUMBERS)
TEXTS = ("text", "contents", "content", "passage", "body", "page_content", "chunk", "document")
TITLES = ("title", "name", "heading")
EXTRAS = {"milvus": "milvus", "opensearch": "opensearch", "elasticsearch": "opensearch"}  # scheme → extra to install


@dataclasses.dataclass(frozen=True)
class Address:
  """A collection's address, in parts. `place` is that of the server or file."""

  scheme: str
  place: str
  name: str
  options: Mapping[str, str]

  @classmethod
  def parse(cls, text: str) -> "Address":
    """Reads an address. Raises ValueError if it is none."""
    scheme, _, rest = text.partition(":")
    rest, _, query = rest.partition("?")
    place, _, name = rest.rpartition("/")
    if rest.endswith(".db") or place in ("http:/", "https:/"):
      place, name = rest, ""
    local = scheme == "milvus" and place.endswith(".db")
    if scheme not in EXTRAS or not (local or place.startswith(("http://", "https://"))):
      form = "milvus:FILE.db/COLLECTION or " * (scheme == "milvus") + f"{scheme}:http(s)://HOST:PORT/NAME"
      raise ValueError(f"{addresses.without_credentials(text)!r}: a database's address is {form}.")
    result = cls(scheme, place, name, dict(pair.partition("=")[::2] for pair in query.split("&") if pair))
    for option, value in result.options.items():
      if option not in OPTIONS:
        raise ValueError(f"{result.shown}: unknown option {option!r}: use {', '.join(OPTIONS)}.")
      if option in NUMBERS and not value.isdecimal():
        raise ValueError(f"{result.shown}: {option}={value}: it must be a whole number.")
    return result

  @property
  def local(self) -> bool:
    """Whether it is a file of Milvus Lite."""
    return "://" not in self.place

  @property
  def shown(self) -> str:
    """The address without options and credentials, for messages."""
    return addresses.without_credentials(f"{self.scheme}:{self.place}/{self.name}".rstrip("/"))


@dataclasses.dataclass(frozen=True)
class Fields:
  """The names of a collection's fields (title "": none), and how the searched one is indexed."""

  id: str
  text: str
  title: str
  vector: str
  dim: int = 0  # of the vectors; 0 for full text
  metric: str = "BM25"
  type: str = ""


class DatabaseRetriever(dense.Embeds, api.Searches):
  """Searches a database; see `api.Retriever`. Deadlines, retries and outages are as in `remote.RemoteRetriever`."""

  def __init__(self, database: Any, fields: Fields, description: Mapping[str, Any], *, calls: outage.Calls, **settings):
    super().__init__(**settings)
    self._database, self._fields, self._description, self._calls = database, fields, dict(description), calls

  def describe(self) -> dict[str, Any]:
    """The settings that are stored with every score: fields, metric, encoder, and a checksum of the contents."""
    return dict(self._description)

  def close(self) -> None:
    """Ends the waiting for the server."""
    self._calls.close()

  def _search(self, texts: list[str], k: int) -> api.Answers:
    inputs: dict[str, Any] = {text: text for text in texts}
    if self.encoder is not None:  # a zero vector, of a query without known words, finds nothing
      inputs = {text: row for text, row in zip(texts, self._vectors(texts, "query")) if row.any()}

    def call(batch: list[str], deadline: float) -> api.Answers:
      left_s = max(deadline - time.monotonic(), 0.01)
      return self._database.search(self._fields, [inputs[text] for text in batch], k, left_s)

    answers = dict(zip(inputs, self._calls.in_batches(list(inputs), call), strict=True))
    return [answers.get(text, []) for text in texts]


def open_database(
  where: str,
  *,
  encoder: str | os.PathLike | api.Encoder | None = None,
  dispatch: Callable[..., Any] | None = None,
  key: str = "",
  timeout_s: float = 30.0,
  **patience: Any,
) -> DatabaseRetriever:
  """The retriever of a collection that exists.

  Args:
    where: the address; see this module's docstring.
    encoder: the encoder of its vectors, in place of the address's.
    dispatch: see `dense.DenseRetriever`.
    key: "USER:PASSWORD" or a token; "" for none.
    timeout_s, **patience: see `outage.Calls`.

  Raises:
    ValueError: a wrong address; no such collection or field; vectors of another size, or another metric.
    RetrievalFailed: no server answers.
  """
  address = Address.parse(where)
  if address.local and not pathlib.Path(address.place).exists():
    raise ValueError(f"{address.shown}: there is no {address.place}: name another file, or fill it with `ragrl index`.")
  database, model = _connect(address, key, timeout_s), ""
  with _failing(database.shown):
    if not address.name or not database.exists():
      raise ValueError(f"{database.shown}: no such collection. There are: {', '.join(database.names()) or 'none'}.")
    card, rows = database.card(), database.rows()
    if rows < (expected := card.get("corpus", {}).get("rows", 0)):
      raise ValueError(
        f"{database.shown}: {rows} of {expected} passages: run the same `ragrl index` command to continue."
      )
    encoder = encoder or address.options.get("encoder")
    if "dim" in card:
      encoder, model = encoders.reload(card, pathlib.Path(database.shown), encoder), encoders.find_name(card)
    elif isinstance(encoder, str | os.PathLike):
      encoder, model = encoders.load_model(encoder, setting=f"{database.shown}, encoder"), pathlib.Path(encoder).name
    fields = database.fields(address.options, encoder is not None)
    if encoder is not None:
      _check_vectors(database.shown, fields, encoder)
    contents = database.contents(fields)
  names = dict(id=fields.id, title=fields.title, text=fields.text, vector=fields.vector)
  if not card and names.keys() - address.options.keys():
    logging.warning("%s: its fields are %s. Name others after '?', as in ?text=NAME.", database.shown, names)
  description: dict[str, Any] = dict(kind=address.scheme, path=database.shown, fields=list(names.values()))
  description |= dict(metric=fields.metric, type=fields.type, rows=rows, checksum=contents)
  if encoder is not None:
    # Resumed runs compare it, and those of older versions know no hash of the tokenizer. `reload` has compared that.
    description["encoder"] = {name: value for name, value in encoder.settings.items() if name != TOKENS}
  calls = outage.Calls(database.shown, lambda: _answers(database), timeout_s=timeout_s, **patience)
  return DatabaseRetriever(database, fields, description, calls=calls, encoder=encoder, model=model, dispatch=dispatch)


def fill(
  passages: str | os.PathLike | Iterable[Passage],
  encoder: str | os.PathLike | api.Encoder,
  where: str,
  *,
  chunks: documents.Chunks | None = None,
  encoder_options: Mapping[str, Any] | None = None,
  batch: int = 2048,
  overwrite: bool = False,
  progress: bool = True,
  key: str = "",
) -> None:
  """Fills a new collection, as `build.build_index` does a folder. Call it again to continue a killed one.

  Args:
    passages: the corpus. Its text is stored in a temporary folder meanwhile.
    encoder: "bm25", or what makes the vectors; not "hashing", whose words are in the index's folder.
    where: the address, with the collection's name.
    chunks, encoder_options, batch: see `build_index`.
    overwrite: replace a collection of the same name, unless it is an unfinished one with these contents.
    key: see `open_database`.

  Raises:
    ValueError: a bad corpus, encoder or address, or the collection exists and has other contents.
    RetrievalFailed: no server answers, or it refuses a passage.
  """
  address = Address.parse(where)
  if not address.name:
    raise ValueError(f"{address.shown}: name the collection too: {address.shown}/NAME.")
  described = encoders.describe(encoder, encoder_options)
  if described["kind"] == "hashing" or (described["kind"] == "bm25" and described["options"]):
    raise ValueError(f"encoder={encoder!r} {described['options']}: in a database use bm25 without options, or a model.")
  if address.local:
    pathlib.Path(address.place).parent.mkdir(parents=True, exist_ok=True)
  database = _connect(address, key, 60.0)
  # Before the corpus is read, which may take hours.
  model = None if described["kind"] == "bm25" else encoders.fit(encoder, described, None, pathlib.Path())
  with tempfile.TemporaryDirectory() as folder, _failing(database.shown):
    corpus_rows = corpus.store(build.Whole(passages, chunks), folder, progress=progress)
    card: dict[str, Any] = dict(encoder=described, corpus=dict(rows=len(corpus_rows), checksum=corpus_rows.checksum))
    if model is not None:
      card |= dict(encoder=dict(described, settings=dict(model.settings)), dim=model.dim)
    total = len(corpus_rows)
    if database.exists():
      same = database.card() == card
      if overwrite and not (same and database.rows() < total):  # a killed filling is continued
        database.drop()
      elif not same:
        raise ValueError(
          f"{database.shown}: it exists, with other contents: name another, or replace it (--overwrite)."
        )
    if not database.exists():
      database.create(card)
    stored = database.rows()
    # Any passage of a batch that was not stored whole may be missing, so the batch is sent again.
    rows = range(stored if stored == total else stored // batch * batch, total)
    with tqdm(total=total, initial=rows.start, desc="fill", unit=" passages", disable=not progress) as bar:
      for start in rows[::batch]:
        batch_rows = range(start, min(start + batch, rows.stop))
        vectors = None if model is None else dense.encode_rows(model, corpus_rows, batch_rows, "float32")
        database.insert([corpus_rows[row] for row in batch_rows], vectors)
        bar.update(len(batch_rows))


def pick(where: str, what: str, options: Mapping[str, str], names: Collection[str], usual: Sequence[str] = ()) -> str:
  """The field of a passage's text, title or vector: the option's, else one of a usual name, else the only one.

  Raises:
    ValueError: there is no such field, or none is known and the text or the vector must be.
  """
  listed = ", ".join(sorted(names))
  if (given := options.get(what, "")) and given not in names:
    raise ValueError(f"{where}: no field {given!r} for {what}=…: it has {listed}.")
  result = given or next((name for name in usual if name in names), "")
  if result or what == "title":
    return result
  if not names:
    raise ValueError(f"{where}: it has no field that can be its {what}.")
  if len(names) != 1:
    raise ValueError(f"{where}: name the field of {what}: add {what}=NAME, one of {listed}.")
  return next(iter(names))


@contextlib.contextmanager
def _failing(address: str) -> Iterator[None]:
  try:
    yield
  except outage.Failed as error:
    why = addresses.without_credentials(str(error))
    help = ": start it, or correct the address" if error.away else ""
    raise api.RetrievalFailed(f"{address} gives no answer ({why}){help}.") from None


def needed(address: Address, *modules: str) -> list[Any]:
  """A client's modules. Raises ValueError if its extra is not installed."""
  try:
    return [importlib.import_module(module) for module in modules]
  except ImportError as error:
    extra = EXTRAS[address.scheme]
    raise ValueError(f"{address.shown}: it needs an extra: pip install 'ragrl_jax[{extra}]' ({error}).") from error


def _connect(address: Address, key: str, timeout_s: float) -> Any:
  from ragrl_jax.retrieval import database_clients

  kind = database_clients.Milvus if address.scheme == "milvus" else database_clients.OpenSearch
  with _failing(address.shown):
    return kind(address, key=key, timeout_s=timeout_s)


def _answers(database: Any) -> bool:
  with contextlib.suppress(outage.Failed):
    return database.exists()
  return False


def _check_vectors(where: str, fields: Fields, encoder: api.Encoder) -> None:
  if fields.dim != encoder.dim:
    raise ValueError(
      f"{where}: {fields.vector} has {fields.dim} dimensions, but the encoder makes {encoder.dim}: name the encoder of "
      "these vectors (encoder=…), or another field (vector=…)."
    )
  if fields.metric not in ("IP", "COSINE") or (
    fields.metric == "COSINE" and not encoder.settings.get("normalize", True)
  ):
    raise ValueError(
      f"{where}: {fields.vector} is indexed with the metric {fields.metric}, but this encoder ranks by inner product: "
      "index the field with the inner product, or with the cosine if the vectors have length 1."
    )
