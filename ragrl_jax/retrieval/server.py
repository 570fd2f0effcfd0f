"""A retriever behind HTTP, as Search-R1's clients call it.

    POST /retrieve  {"queries": ["…"], "topk": 3, "return_scores": true}
                    → {"result": [[{"document": {"id", "contents"}, "score"}, …], …]}, one list a query;
                    without return_scores → {"result": [[{"id", "contents"}, …], …]}
    GET /health     → {"status": "ok", "retriever": …}

Requests beyond the limits are refused: 413 for a long body, 400 with {"error"} for the rest.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ragrl_jax.retrieval.api import Retriever
from ragrl_jax.retrieval.corpus import contents
from ragrl_jax.structs import Passage, ToolFailed


@dataclasses.dataclass(frozen=True)
class Limits:
  """What one request may ask for.

  Attributes:
    max_bytes: of the body.
    max_queries: in one request.
    max_topk: passages for one query.
    default_topk: when "topk" is missing, null or 0, as in Search-R1's server.
  """

  max_bytes: int = 4 << 20
  max_queries: int = 1024
  max_topk: int = 100
  default_topk: int = 3


def application(retriever: Retriever, limits: Limits = Limits()) -> Starlette:
  """The ASGI application. Searches run in a pool of threads, so the retriever's `search` must bear several at once."""

  async def retrieve(request: Request) -> Response:
    body = await _body(request, limits.max_bytes)
    if body is None:
      return _error(413, f"the body is longer than {limits.max_bytes} bytes: send fewer queries at a time.")
    try:
      queries, topk, with_scores = _asked(body, limits)
    except ValueError as error:
      return _error(400, str(error))
    try:
      answers = await anyio.to_thread.run_sync(retriever.search, queries, topk)
    except ToolFailed as error:
      return _error(502, str(error))
    return JSONResponse(dict(result=[[_hit(passage, with_scores) for passage in found] for found in answers]))

  async def health(request: Request) -> Response:
    del request
    return JSONResponse(dict(status="ok", retriever=dict(retriever.describe()), limits=dataclasses.asdict(limits)))

  return Starlette(routes=[Route("/retrieve", retrieve, methods=["POST"]), Route("/health", health, methods=["GET"])])


def serve(retriever: Retriever, *, host: str = "127.0.0.1", port: int = 8000, limits: Limits = Limits()) -> None:
  """Serves until interrupted. Only this machine is answered unless `host` says otherwise: there is no password."""
  uvicorn.run(application(retriever, limits), host=host, port=port, log_level="warning", access_log=False)


async def _body(request: Request, most: int) -> bytes | None:
  """The body, or None as soon as it is longer than `most`."""
  raw = bytearray()
  try:
    async for chunk in request.stream():
      raw += chunk
      if len(raw) > most:
        return None
  except ClientDisconnect:
    return b""
  return bytes(raw)


def _asked(body: bytes, limits: Limits) -> tuple[list[str], int, bool]:
  """(queries, topk, return_scores). Raises ValueError for anything else than the protocol's request."""
  try:
    said: Any = json.loads(body)
  except (ValueError, RecursionError):
    raise ValueError('the body must be JSON: {"queries": ["…"], "topk": 3, "return_scores": true}.') from None
  queries = said.get("queries") if isinstance(said, dict) else None
  if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
    raise ValueError('"queries" must be a list of strings.')
  if len(queries) > limits.max_queries:
    raise ValueError(f'{len(queries)} queries in one request: at most {limits.max_queries} are answered.')
  topk = said.get("topk")
  if topk is not None and (isinstance(topk, bool) or not isinstance(topk, int) or topk < 0):
    raise ValueError(f'"topk" must be a whole number or null, not {topk!r:.40}.')
  topk = topk or limits.default_topk
  if topk > limits.max_topk:
    raise ValueError(f'"topk" is {topk}: at most {limits.max_topk} passages a query are given.')
  return queries, topk, bool(said.get("return_scores"))


def _hit(passage: Passage, with_scores: bool) -> dict[str, Any]:
  document = dict(id=passage.id, contents=contents(passage))
  return dict(document=document, score=passage.score) if with_scores else document


def _error(status: int, message: str) -> JSONResponse:
  return JSONResponse(dict(error=message), status_code=status)
