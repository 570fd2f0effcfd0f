"""The clients of `databases`: Milvus through pymilvus, OpenSearch and Elasticsearch through opensearch-py.

A call without an answer raises `outage.Failed`; a wrong name or type of a field is a ValueError.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ragrl_jax.retrieval import api, corpus, databases, outage
from ragrl_jax.structs import Passage

CARD = "ragrl"  # under this name a database keeps what `databases.fill` has filled it with
CHECKED = 10_000  # passages of Milvus, first by id, whose contents are compared when a run resumes
LONGEST = 65_535  # bytes of a string in Milvus
AWAY = (2, 101)  # codes of Milvus: no connection, and a collection that is not loaded (after a restart)
STRINGS = ("text", "match_only_text", "keyword", "wildcard")
METRICS = dict(innerproduct="IP", max_inner_product="IP", dot_product="COSINE", cosinesimil="COSINE", cosine="COSINE")


class Milvus:
  """A collection of Milvus: Milvus Lite in this process, a server or a cluster."""

  def __init__(self, address: databases.Address, *, key: str, timeout_s: float):
    self._pymilvus, self._grpc = databases.needed(address, "pymilvus", "grpc")
    if address.local:
      databases.needed(address, "milvus_lite")
    for name in ("pymilvus", "grpc._server"):  # they log each failed call with its traceback
      logging.getLogger(name).setLevel(logging.CRITICAL)
    self._name, self._timeout, self.shown = address.name, timeout_s, address.shown
    self._exact, self._params = address.local, {n: int(v) for n, v in address.options.items() if n in databases.NUMBERS}
    try:
      self._client = self._call(self._pymilvus.MilvusClient, address.place, token=key)
    except outage.Failed as error:
      if not address.local:
        raise
      raise ValueError(
        f"{self.shown}: it cannot be opened ({error}). Only one process may have a file of Milvus Lite open: serve it "
        "from there (`ragrl serve-index`), or end the other one."
      ) from None

  def exists(self) -> bool:
    """Whether the server has the collection, which is loaded then."""
    if exists := self._call(self._client.has_collection, self._name):
      self._call(self._client.load_collection, self._name)
    return exists

  def names(self) -> list[str]:
    """All collections."""
    return sorted(self._call(self._client.list_collections))

  def fields(self, options: Mapping[str, str], encoded: bool) -> databases.Fields:
    """The fields that the options name, or that are found; `encoded`: those of a search by vectors.

    Fields that the schema does not declare are found in one passage.
    """
    kinds, schema = self._pymilvus.DataType, self._described()
    rows = self._call(self._client.query, self._name, filter="", limit=1, output_fields=["*"])
    declared = {field["name"]: field for field in schema["fields"]}
    texts = {field for field, definition in declared.items() if definition["type"] == kinds.VARCHAR}
    texts |= {field for row in rows for field, value in row.items() if isinstance(value, str)}
    primary = [field for field, definition in declared.items() if definition.get("is_primary")]
    name = databases.pick(self.shown, "id", options, {*declared, *texts}, primary)
    dim = 0
    if encoded:
      vectors = [field for field, definition in declared.items() if definition["type"] == kinds.FLOAT_VECTOR]
      vector = databases.pick(self.shown, "vector", options, vectors, ("vector", "embedding"))
      dim = int(declared[vector]["params"]["dim"])
    else:
      lexical = [one["output_field_names"][0] for one in schema["functions"] if one["type"].name == "BM25"]
      if not lexical:
        raise ValueError(
          f"{self.shown}: it has no BM25 function, so only vectors can be searched: name their encoder (encoder=…)."
        )
      vector = databases.pick(self.shown, "vector", options, lexical)
    title = databases.pick(self.shown, "title", options, texts - {name}, databases.TITLES)
    text = databases.pick(self.shown, "text", options, texts - {name, title}, databases.TEXTS)
    indexes = self._call(self._client.list_indexes, self._name, field_name=vector)
    if not indexes:
      raise ValueError(f"{self.shown}: {vector} has no index: make one, with the metric IP, COSINE or BM25.")
    index = self._call(self._client.describe_index, self._name, indexes[0])
    return databases.Fields(name, text, title, vector, dim, index["metric_type"], index["index_type"])

  def card(self) -> dict[str, Any]:
    """What `create` was given; empty if another program filled the collection."""
    return json.loads(self._described()["properties"].get(CARD, "{}"))

  def rows(self) -> int:
    """Number of passages."""
    options = dict(filter="", output_fields=["count(*)"], consistency_level="Strong")
    return int(self._call(self._client.query, self._name, **options)[0]["count(*)"])

  def contents(self, fields: databases.Fields) -> str:
    """A text that changes with the contents: a digest of the number of passages and of the first by id."""
    options = dict(batch_size=1000, limit=CHECKED, output_fields=_read(fields), consistency_level="Strong")
    pages, read = self._call(self._client.query_iterator, self._name, **options), []
    while page := self._call(lambda timeout: pages.next()):
      read += [_passage(fields, row) for row in page]
    digest = corpus.checksum(sorted(read, key=lambda passage: passage.id))
    return hashlib.sha256(f"{self.rows()} {digest}".encode()).hexdigest()

  def search(self, fields: databases.Fields, queries: list[Any], k: int, timeout_s: float) -> api.Answers:
    """The answers to texts (`fields.dim` is 0) or vectors."""
    inputs = queries if not fields.dim else [row.tolist() for row in queries]
    how = dict(anns_field=fields.vector, limit=k, output_fields=_read(fields), search_params=dict(params=self._params))
    found = self._call(self._client.search, self._name, inputs, **how, timeout=timeout_s)
    sign = float if fields.dim else abs  # Milvus Lite gives BM25's scores a minus, servers do not
    return [[_passage(fields, hit["entity"], sign(hit["distance"])) for hit in hits] for hits in found]

  def create(self, card: Mapping[str, Any]) -> None:
    """Makes an empty collection: of vectors of `card["dim"]` numbers, or of words of title and text together."""
    kinds, schema = self._pymilvus.DataType, self._client.create_schema(auto_id=False)
    indexes = self._client.prepare_index_params()
    schema.add_field("id", kinds.VARCHAR, max_length=1024, is_primary=True)
    schema.add_field("title", kinds.VARCHAR, max_length=LONGEST)
    schema.add_field("text", kinds.VARCHAR, max_length=LONGEST)
    if dim := card.get("dim"):
      schema.add_field("vector", kinds.FLOAT_VECTOR, dim=dim)
      indexes.add_index("vector", index_type="FLAT" if self._exact else "AUTOINDEX", metric_type="IP")
    else:
      schema.add_field("contents", kinds.VARCHAR, max_length=LONGEST, enable_analyzer=True)
      schema.add_field("words", kinds.SPARSE_FLOAT_VECTOR)
      bm25 = self._pymilvus.FunctionType.BM25
      schema.add_function(self._pymilvus.Function("bm25", bm25, ["contents"], ["words"]))
      indexes.add_index("words", index_type="SPARSE_INVERTED_INDEX", metric_type="BM25")
    options = dict(schema=schema, index_params=indexes, properties={CARD: json.dumps(card)})
    self._call(self._client.create_collection, self._name, **options)

  def insert(self, passages: Sequence[Passage], vectors: np.ndarray | None) -> None:
    """Adds passages, or replaces those of the same ids."""
    if vectors is None:
      searched = [dict(contents=f"{passage.title}\n{passage.text}") for passage in passages]
    else:
      searched = [dict(vector=vector.tolist()) for vector in vectors]
    rows = [
      dict(id=one.id, title=one.title, text=one.text, **more) for one, more in zip(passages, searched, strict=True)
    ]
    self._call(self._client.upsert, self._name, rows)

  def drop(self) -> None:
    """Removes the collection."""
    self._call(self._client.drop_collection, self._name)

  def _described(self) -> dict[str, Any]:
    return self._call(self._client.describe_collection, self._name)

  def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
      return function(*args, **dict(timeout=self._timeout) | kwargs)
    except self._pymilvus.MilvusException as error:  # of a missing server, its code is a status of gRPC
      away = getattr(error, "retriable", False) or error.code in AWAY or not isinstance(error.code, int)
      raise outage.Failed(f"{error.message:.500}", away=away, again=away) from None
    except self._grpc.RpcError as error:
      late = error.code() is self._grpc.StatusCode.DEADLINE_EXCEEDED
      raise outage.Failed(f"{error.code().name}: {error.details():.500}", away=late, again=late) from None


class OpenSearch:
  """An index of OpenSearch or Elasticsearch; its methods are those of `Milvus`.

  Their requests for full text are the same. Those for vectors are told apart by the field's type. Elasticsearch's own
  client is not used, because it refuses servers of another major version.
  """

  def __init__(self, address: databases.Address, *, key: str, timeout_s: float):
    module, self._errors = databases.needed(address, "opensearchpy", "opensearchpy.exceptions")
    logging.getLogger("opensearch").setLevel(logging.CRITICAL)  # it warns of each failed call
    self._elastic, self._name, self.shown = address.scheme == "elasticsearch", address.name, address.shown
    options: dict[str, Any] = {}
    if ":" in key:
      options["http_auth"] = tuple(key.split(":", 1))
    elif key:
      options["headers"] = dict(authorization=f"{'ApiKey' if self._elastic else 'Bearer'} {key}")
    self._client = module.OpenSearch([address.place], max_retries=0, timeout=timeout_s, pool_maxsize=16, **options)
    self._indices = self._client.indices

  def exists(self) -> bool:
    """See `Milvus`."""
    return bool(self._call(self._indices.exists))

  def names(self) -> list[str]:
    """See `Milvus`."""
    return sorted(name for name in self._call(self._indices.get_alias, index="*") if not name.startswith("."))

  def fields(self, options: Mapping[str, str], encoded: bool) -> databases.Fields:
    """See `Milvus`. Fields within fields have dots in their names."""
    declared = dict(_flat(self._mapping().get("properties", {})))
    texts = {name for name, how in declared.items() if how.get("type") in STRINGS}
    name = databases.pick(self.shown, "id", options, ["_id", *declared], ("_id",))
    title = databases.pick(self.shown, "title", options, texts - {name}, databases.TITLES)
    text = databases.pick(self.shown, "text", options, texts - {name, title}, databases.TEXTS)
    if not encoded:
      return databases.Fields(name, text, title, text)
    vectors = [field for field, how in declared.items() if how.get("type") in ("knn_vector", "dense_vector")]
    vector = databases.pick(self.shown, "vector", options, vectors, ("vector", "embedding"))
    how = declared[vector]
    metric = how.get("similarity") or how.get("method", {}).get("space_type") or how.get("space_type")
    metric = metric or ("cosine" if how["type"] == "dense_vector" else "l2")  # their defaults
    dim = int(how.get("dims") or how.get("dimension") or 0)
    return databases.Fields(name, text, title, vector, dim, METRICS.get(metric, metric), how["type"])

  def card(self) -> dict[str, Any]:
    """See `Milvus`."""
    return self._mapping().get("_meta", {}).get(CARD, {})

  def rows(self) -> int:
    """See `Milvus`."""
    return int(self._call(self._client.count)["count"])

  def contents(self, fields: databases.Fields) -> str:
    """See `Milvus`: the index's id, its passages, and the sum of the numbers of their last writes."""
    (settings,) = self._call(self._indices.get_settings).values()
    last = dict(sum=dict(field="_seq_no"))
    reply = self._call(self._client.search, body=dict(size=0, track_total_hits=True, aggs=dict(writes=last)))
    writes = reply["aggregations"]["writes"]["value"]
    return f"{settings['settings']['index']['uuid']} {reply['hits']['total']['value']} {writes:.0f}"

  def search(self, fields: databases.Fields, queries: list[Any], k: int, timeout_s: float) -> api.Answers:
    """See `Milvus`."""
    shared = dict(size=k, fields=_read(fields), _source=False)
    body = [part for query in queries for part in ({}, dict(_query(fields, query, k), **shared))]
    reply = self._call(self._client.msearch, body=body, params=dict(request_timeout=timeout_s))
    for one in reply["responses"]:
      if "error" in one:
        raise outage.Failed.of_status(one.get("status", 400), f"{one['error']}"[:500])
      if one.get("timed_out") or one.get("_shards", {}).get("failed"):
        raise outage.Failed("a part of the index did not answer")
    return [[_hit(fields, hit) for hit in one["hits"]["hits"]] for one in reply["responses"]]

  def create(self, card: Mapping[str, Any]) -> None:
    """See `Milvus`."""
    properties: dict[str, Any] = dict(title=dict(type="text"), text=dict(type="text"))
    body: dict[str, Any] = dict(mappings=dict(_meta={CARD: card}, properties=properties))
    dim = card.get("dim")
    if dim and self._elastic:
      properties["vector"] = dict(type="dense_vector", dims=dim, similarity="max_inner_product")
    elif dim:
      method = dict(name="hnsw", engine="faiss", space_type="innerproduct")
      properties["vector"] = dict(type="knn_vector", dimension=dim, method=method)
      body["settings"] = dict(index=dict(knn=True))
    self._call(self._indices.create, body=body)

  def insert(self, passages: Sequence[Passage], vectors: np.ndarray | None) -> None:
    """See `Milvus`."""
    body: list[dict[str, Any]] = []
    for number, passage in enumerate(passages):
      vector = {} if vectors is None else dict(vector=vectors[number].tolist())
      body += [dict(index=dict(_id=passage.id)), dict(title=passage.title, text=passage.text, **vector)]
    reply = self._call(self._client.bulk, body=body, params=dict(refresh="true"))
    if reply["errors"]:
      bad = next(item["index"] for item in reply["items"] if "error" in item["index"])
      raise outage.Failed(f"it refuses the passage {bad['_id']!r}: {bad['error']}")

  def drop(self) -> None:
    """See `Milvus`."""
    self._call(self._indices.delete)

  def _mapping(self) -> dict[str, Any]:
    return next(iter(self._call(self._indices.get_mapping).values()))["mappings"]

  def _call(self, function: Callable[..., Any], **kwargs: Any) -> Any:
    try:
      return function(**dict(index=self._name) | kwargs)
    except self._errors.TransportError as error:
      if isinstance(error.status_code, int):
        raise outage.Failed.of_status(error.status_code, f"{error.error} {error.info}"[:500]) from None
      raise outage.Failed(f"{error.error:.500}", away=True) from None
    except self._errors.SerializationError as error:
      raise outage.Failed(f"the answer is not JSON ({error!r:.200})") from None


def _query(fields: databases.Fields, query: Any, k: int) -> dict[str, Any]:
  if not fields.dim:
    names = [name for name in (fields.title, fields.text) if name]
    return dict(query=dict(multi_match=dict(query=query, fields=names, type="most_fields")))
  if fields.type == "knn_vector":
    return dict(query=dict(knn={fields.vector: dict(vector=query.tolist(), k=k)}))
  return dict(
    knn=dict(field=fields.vector, query_vector=query.tolist(), k=k, num_candidates=min(10_000, max(100, 2 * k)))
  )


def _hit(fields: databases.Fields, hit: Mapping[str, Any]) -> Passage:
  """A hit as a passage. Scores of vectors, which are above 0, become the inner product or the cosine again."""
  score = float(hit["_score"])
  if fields.metric == "COSINE":  # (1 + cosine) / 2
    score = 2 * score - 1
  elif fields.metric == "IP":  # 1 + product, or 1 / (1 - product) if it is below 0
    score = score - 1 if score >= 1 else 1 - 1 / score
  texts = {name: "\n".join(map(str, values)) for name, values in hit.get("fields", {}).items()}  # any may have several
  return _passage(fields, texts | hit, score)


def _read(fields: databases.Fields) -> list[str]:
  return [name for name in (fields.id, fields.title, fields.text) if name not in ("", "_id")]


def _passage(fields: databases.Fields, row: Mapping[str, Any], score: float | None = None) -> Passage:
  title, text = row.get(fields.title) or "", row.get(fields.text) or ""
  if not fields.title and fields.text == "contents":
    title, text = corpus.from_contents(text)
  return Passage(str(row[fields.id]), str(title), str(text), score)


def _flat(properties: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
  for name, definition in properties.items():
    yield f"{within}{name}", definition
    yield from _flat(definition.get("properties", {}), f"{within}{name}.")
