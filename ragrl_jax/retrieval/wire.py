"""Bodies of the server's requests and responses: Search-R1's protocol, and OpenAI's for embeddings.

Source: Search-R1's retrieval server; OpenAI's API reference, "Create embeddings"; `input_type` as in NVIDIA's NIM.
"""

import base64
import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ragrl_jax.retrieval.corpus import contents, from_contents
from ragrl_jax.structs import Passage


@dataclasses.dataclass(frozen=True)
class Limits:
  """Limits of one request, and of all requests together.

  Attributes:
    max_bytes: largest body of a request.
    max_queries: most queries, or texts to embed, in one request.
    max_topk: most passages for one query.
    default_topk: passages when "topk" is missing, null or 0, as in Search-R1's server.
    max_waiting: most texts of all requests that may wait for a search; the same number may wait for an embedding.
    deadline_s: most seconds from a request's last byte to its response. A request may ask for less ("timeout_s").
  """

  max_bytes: int = 4 << 20
  max_queries: int = 1024
  max_topk: int = 100
  default_topk: int = 3
  max_waiting: int = 4096
  workers: int = 2
  batch: int = 64
  deadline_s: float = 60.0


LIMITS = Limits()


@dataclasses.dataclass(frozen=True)
class Request:
  """A request.

  Attributes:
    texts: queries, texts to embed, or (passage id, words) to read.
    key: requests with equal keys may share a batch. It is the number of passages, or "query" or "passage".
    option: whether results are rendered with scores, or in base64.
    timeout_s: most seconds until the response.
  """

  texts: list[Any]
  key: Any
  option: bool
  timeout_s: float


def parse_search(body: bytes, limits: Limits) -> Request:
  """Parses a body of POST /retrieve. Raises ValueError unless it follows the protocol."""
  values = _parsed(body, '{"queries": ["…"], "topk": 3, "return_scores": true}')
  queries = values.get("queries")
  if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
    raise ValueError('"queries" must be a list of strings.')
  _few(queries, limits, "queries")
  return Request(queries, _topk(values, limits), bool(values.get("return_scores")), _timeout(values, limits))


def parse_reading(body: bytes, limits: Limits) -> Request:
  """Parses a body of POST /read. Raises ValueError unless it follows the protocol."""
  values = _parsed(body, '{"documents": [{"id": "…", "find": "…"}], "topk": 3}')
  documents = values.get("documents")
  if not isinstance(documents, list) or not all(
    isinstance(document, dict) and isinstance(document.get("id"), str) and isinstance(document.get("find", ""), str)
    for document in documents
  ):
    raise ValueError('"documents" must be a list of {"id": "…"}, with "find" to look for words in it.')
  _few(documents, limits, "documents")
  requests = [(document["id"], document.get("find", "")) for document in documents]
  return Request(requests, _topk(values, limits), True, _timeout(values, limits))


def render_passages(passages: list[Passage], with_scores: bool) -> bytes:
  """One query's passages as JSON."""
  return json.dumps([_hit(passage, with_scores) for passage in passages], ensure_ascii=False).encode()


def render_results(rendered: Sequence[bytes]) -> bytes:
  """The body of the response to /retrieve and /read, from the `render_passages` of each query."""
  return b'{"result":[' + b",".join(rendered) + b"]}"


def parse_embedding(body: bytes, limits: Limits, model: str) -> Request:
  """Parses a body of POST /v1/embeddings for the encoder `model`. Raises ValueError if it cannot be answered."""
  values = _parsed(body, '{"input": ["…"], "model": "…"}')
  texts = values.get("input")
  texts = [texts] if isinstance(texts, str) else texts
  if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
    raise ValueError('"input" must be a non-empty string or a list of them; token ids are not supported.')
  _few(texts, limits, "texts")
  if values.get("model") not in (None, "", model):
    raise ValueError(f'"model" is {values["model"]!r:.80}: this server only has {model!r}.')
  if values.get("dimensions") is not None:
    raise ValueError('"dimensions": this encoder has vectors of one length only.')
  kind, form = values.get("input_type", "query"), values.get("encoding_format", "float")
  if kind not in ("query", "passage"):
    raise ValueError(f'"input_type" is {kind!r:.40}: it must be "query" (if missing) or "passage".')
  if form not in ("float", "base64"):
    raise ValueError(f'"encoding_format" is {form!r:.40}: it must be "float" or "base64".')
  return Request(texts, kind, form == "base64", _timeout(values, limits))


def render_vector(vector: tuple[np.ndarray, int], as_base64: bool) -> tuple[bytes, int]:
  """(a text's vector as JSON, its number of tokens). In base64 the vector is little-endian float32."""
  values, tokens = vector
  if as_base64:
    return b'"' + base64.b64encode(values.astype("<f4").tobytes()) + b'"', tokens
  return json.dumps(values.tolist()).encode(), tokens


def render_embeddings(rendered: Sequence[tuple[bytes, int]], model: str) -> bytes:
  """The body of the response to /v1/embeddings, from the `render_vector` of each text."""
  rows = (
    b'{"object":"embedding","index":%d,"embedding":%s}' % (place, values) for place, (values, _) in enumerate(rendered)
  )
  tokens = sum(tokens for _, tokens in rendered)
  rest = dict(model=model, usage=dict(prompt_tokens=tokens, total_tokens=tokens))
  return b'{"object":"list","data":[' + b",".join(rows) + b"]," + json.dumps(rest).encode()[1:]


def render_models(name: str) -> bytes:
  """The body of the response to GET /v1/models; `name` is "" without an encoder."""
  return json.dumps(dict(object="list", data=[dict(id=name, object="model")] if name else [])).encode()


def _parsed(body: bytes, field: str) -> dict[str, Any]:
  try:
    values = json.loads(body)
  except (ValueError, RecursionError):
    raise ValueError(f"the body must be JSON: {field}.") from None
  if not isinstance(values, dict):
    raise ValueError(f"the body must be {field}, with a list of strings.")
  return values


def _few(texts: list[Any], limits: Limits, what: str) -> None:
  if len(texts) > limits.max_queries:
    raise ValueError(f"{len(texts)} {what} in one request: at most {limits.max_queries} are allowed.")


def _topk(values: dict[str, Any], limits: Limits) -> int:
  topk = values.get("topk")
  if topk is not None and (isinstance(topk, bool) or not isinstance(topk, int) or topk < 0):
    raise ValueError(f'"topk" must be a whole number or null, not {topk!r:.40}.')
  topk = topk or limits.default_topk
  if topk > limits.max_topk:
    raise ValueError(f'"topk" is {topk}: at most {limits.max_topk} passages per query are returned.')
  return topk


def _timeout(values: dict[str, Any], limits: Limits) -> float:
  value = values.get("timeout_s")
  if value is None:
    return limits.deadline_s
  if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
    raise ValueError(f'"timeout_s" must be a positive number of seconds, not {value!r:.40}.')
  return float(min(value, limits.deadline_s))  # min first: a whole number may be too large for a float


def _hit(passage: Passage, with_scores: bool) -> dict[str, Any]:
  document, text = dict(id=passage.id, contents=contents(passage)), (passage.title, passage.text)
  if from_contents(document["contents"]) != text:  # such as an untitled passage of several lines
    document |= dict(title=passage.title, text=passage.text)
  return dict(document=document, score=passage.score) if with_scores else document
