"""A server with the requests and replies of OpenSearch and Elasticsearch that searches and fills an index need.

It keeps its indexes in memory, compares all vectors, and refuses what it does not know, as the real ones do.
"""

import contextlib
import json
import re
import time

import numpy as np
import served

KNOWN = {"size", "fields", "_source", "query", "knn", "track_total_hits", "aggs"}
SHARDS = dict(total=1, successful=1, skipped=0, failed=0)


class Refused(Exception):
  def __init__(self, status, kind, reason):
    self.status, self.body = status, dict(error=dict(type=kind, reason=reason, root_cause=[]), status=status)


class Index:
  def __init__(self, body):
    self.mappings, self.knn = body.get("mappings", {}), body.get("settings", {}).get("index", {}).get("knn", False)
    self.uuid, self.docs, self.writes = f"u{time.monotonic_ns()}", {}, 0

  def put(self, name, source):
    self.docs[name] = (self.writes, source)
    self.writes += 1

  def field(self, name):
    how = self.mappings
    for part in name.split("."):
      how = how.get("properties", {}).get(part, {})
    return how

  def search(self, body):
    if unknown := body.keys() - KNOWN:
      raise Refused(400, "parsing_exception", f"Unknown key for a VALUE in [{sorted(unknown)[0]}].")
    scored = [(self.score(body, source), -number, name) for name, (number, source) in self.docs.items()]
    best = sorted((one for one in scored if one[0] is not None), reverse=True)
    hits = []
    for score, _, name in best[: body.get("size", 10)]:
      hit = dict(_index="i", _id=name, _score=score)
      values = {field: at(self.docs[name][1], field) for field in body.get("fields", [])}
      listed = lambda value: value if isinstance(value, list) else [value]
      if values := {field: listed(value) for field, value in values.items() if value is not None}:
        hit["fields"] = values
      hits.append(hit)
    found = dict(total=dict(value=len(best), relation="eq"), max_score=best[0][0] if best else None, hits=hits)
    said = dict(took=1, timed_out=False, _shards=SHARDS, hits=found)
    for name, how in body.get("aggs", {}).items():
      assert how == dict(sum=dict(field="_seq_no"))
      said["aggregations"] = {name: dict(value=float(sum(number for number, _ in self.docs.values())))}
    return said

  def score(self, body, source):
    if "knn" in body:  # Elasticsearch's
      asked = body["knn"]
      assert asked.keys() == {"field", "query_vector", "k", "num_candidates"} and asked["num_candidates"] >= asked["k"]
      return self.near(asked["field"], "dense_vector", asked["query_vector"], source)
    query = body.get("query", {})
    if "knn" in query:  # OpenSearch's
      ((field, asked),) = query["knn"].items()
      assert asked.keys() == {"vector", "k"} and self.knn
      return self.near(field, "knn_vector", asked["vector"], source)
    if "multi_match" in query:
      asked = query["multi_match"]
      assert asked.keys() == {"query", "fields", "type"}
      words = set(re.findall(r"\w+", asked["query"].lower()))
      found = [re.findall(r"\w+", str(at(source, field) or "").lower()) for field in asked["fields"]]
      return sum(word in words for field in found for word in field) / 4 or None
    return 1.0

  def near(self, name, kind, vector, source):
    how = self.field(name)
    if how.get("type") != kind:
      raise Refused(400, "query_shard_exception", f"field [{name}] is not of the type [{kind}]")
    space = how.get("similarity") or how.get("method", {}).get("space_type", "cosine")
    a, b = np.asarray(vector, np.float64), np.asarray(at(source, name), np.float64)
    if len(a) != len(b):
      raise Refused(400, "query_shard_exception", f"the query vector has {len(a)} dimensions, the field {len(b)}")
    product = float(a @ b)
    if space in ("innerproduct", "max_inner_product"):
      return product + 1 if product >= 0 else 1 / (1 - product)
    return (1 + product / np.linalg.norm(a) / np.linalg.norm(b)) / 2


def at(source, field):
  for part in field.split("."):
    source = source.get(part) if isinstance(source, dict) else None
  return source


class Server(served.Threads):
  """
  Attributes:
    indexes: by name.
    script: for the next requests for `_msearch`: a status to answer with, or a function of the handler; None: as usual.
    asked: (method, path, headers, body) of all requests.
  """

  def __init__(self, port=0, indexes=None):
    self.indexes, self.script, self.asked = {} if indexes is None else indexes, [], []
    super().__init__(Handler, port)


class Handler(served.Handler):
  def handle_any(self):
    raw = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
    path = self.path.partition("?")[0].strip("/")
    self.server.asked.append((self.command, path, dict(self.headers), raw))
    try:
      self.reply(200, self.answer(path, raw))
    except Refused as error:
      self.reply(error.status, error.body)

  do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = handle_any

  def answer(self, path, raw):
    indexes = self.server.indexes
    name, _, page = path.partition("/")
    if page == "_alias":
      return {name: dict(aliases={}) for name in indexes}
    if self.command == "PUT":
      indexes[name] = Index(json.loads(raw))
      return dict(acknowledged=True, shards_acknowledged=True, index=name)
    if name not in indexes:
      raise Refused(404, "index_not_found_exception", f"no such index [{name}]")
    index = indexes[name]
    if page == "" and self.command == "DELETE":
      del indexes[name]
    elif page == "_mapping":
      return {name: dict(mappings=index.mappings)}
    elif page == "_settings":
      return {name: dict(settings=dict(index=dict(uuid=index.uuid)))}
    elif page == "_count":
      return dict(count=len(index.docs), _shards=SHARDS)
    elif page == "_search":
      return index.search(json.loads(raw))
    elif page == "_bulk":
      return self.bulk(name, [json.loads(line) for line in raw.splitlines()])
    elif page == "_msearch":
      return self.many(index, [json.loads(line) for line in raw.splitlines()])
    return dict(acknowledged=True)

  def bulk(self, name, lines):
    index, items = self.server.indexes[name], []
    for action, source in zip(lines[::2], lines[1::2], strict=True):
      given, wanted = action["index"]["_id"], index.field("vector").get("dimension")
      item = dict(_index=name, _id=given, status=201)
      if wanted and len(source["vector"]) != wanted:
        item |= dict(status=400, error=dict(type="mapper_parsing_exception", reason="wrong dimension"))
      else:
        index.put(given, source)
      items.append(dict(index=item))
    return dict(took=1, errors=any("error" in item["index"] for item in items), items=items)

  def many(self, index, lines):
    action = self.server.script.pop(0) if self.server.script else None
    if isinstance(action, int):
      raise Refused(action, "so_it_goes", "scripted")
    if action is not None:
      return action(self)
    said = []
    for head, body in zip(lines[::2], lines[1::2], strict=True):
      assert head == {} and body["_source"] is False
      try:
        said.append(dict(index.search(body), status=200))
      except Refused as error:
        said.append(error.body)
    return dict(took=1, responses=said)

  def reply(self, status, body):
    with contextlib.suppress(OSError):
      super().reply(status, json.dumps(body).encode(), content_type="application/json; charset=UTF-8")
