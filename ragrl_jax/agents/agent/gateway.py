"""The endpoint of a run. Every episode has its own address, which only this machine can reach.

    POST http://127.0.0.1:PORT/KEY/v1/chat/completions, /completions     as in OpenAI's API; see docs/howto/agents.md
    POST http://127.0.0.1:PORT/KEY/v1/search                             {"query": …, "k": 3} → {"passages": […]}
    GET  http://127.0.0.1:PORT/KEY/v1/models

KEY is a random number of 128 bits. Only the episode's program knows it. It becomes invalid when the episode ends.
"""

import asyncio
import dataclasses
import json
import secrets
import threading
import time
import weakref
from typing import Any

import uvicorn

from ragrl_jax.agents.agent.session import OVER, Reading, Session
from ragrl_jax.agents.agent.task import MODEL
from ragrl_jax.protocol import http_limits, requests
from ragrl_jax.protocol.http_answer import Answer, Refused, Site, answered
from ragrl_jax.protocol.replies import Replies

PAGES = {"chat/completions": "POST", "completions": "POST", "search": "POST", "models": "GET"}
MAX_BYTES = 2 << 20  # most bytes of a request's body, all of which is tokenized: some 500,000 tokens
MOST = 100  # most passages per search
STARTED_S = 30.0  # seconds that the server has to start
# Seconds that an idle connection stays open. Clients close theirs much earlier, so no request is sent on a connection
# that the server is closing.
KEPT_S = 3600
# Long: clients run on this machine, which may be busy.
GUARD = http_limits.Guard(header_s=120.0, body_s=120.0, read_s=120.0)


class Gateway(Site):
  """An ASGI application. A thread serves it from the first episode until nothing refers to the gateway any more."""

  last = b"data: [DONE]\n\n"

  def __init__(self):
    self._sessions: dict[str, tuple[Session, Reading, float]] = {}
    self._lock = threading.Lock()
    self._port = 0

  async def open(self, session: Session, reading: Reading, timeout_s: float) -> str:
    """Starts to serve a session, with at most `timeout_s` seconds per request. Returns its base URL, which ends in /v1.

    Raises:
      RuntimeError: the server did not start.
    """
    if not self._port:
      await asyncio.to_thread(self._start)
    key = secrets.token_urlsafe(16)
    self._sessions[key] = session, reading, timeout_s
    return f"http://127.0.0.1:{self._port}/{key}/v1"

  def close(self, base_url: str) -> None:
    """Stops serving a session. Later requests to its address are refused (410)."""
    self._sessions.pop(base_url.split("/")[3], None)

  def _start(self) -> None:
    """Starts the server, once."""
    with self._lock:
      if self._port:
        return
      # A proxy, because the thread must not keep the gateway.
      config = http_limits.configured(weakref.proxy(self), host="127.0.0.1", port=0, guard=GUARD)
      config.timeout_keep_alive = KEPT_S
      server = uvicorn.Server(config)
      weakref.finalize(self, setattr, server, "should_exit", True)
      thread = threading.Thread(target=server.run, name="gateway", daemon=True)
      thread.start()
      end = time.monotonic() + STARTED_S
      while not server.started:
        if not thread.is_alive() or time.monotonic() > end:
          raise RuntimeError("the endpoint for the run's programs did not start: the run's log has the reason.")
        time.sleep(0.005)
      self._port = server.servers[0].sockets[0].getsockname()[1]

  # ---- requests, on the server's thread ------------------------------------------------------------------------------

  def failed(self) -> str:
    return "internal error of the run: its log has the reason."

  async def serve(self, scope, receive, answer: Answer) -> None:
    http_limits.check(scope, local=True)
    _, key, *rest = scope["path"].split("/", 3)
    page = "/".join(rest).removeprefix("v1/")
    if key not in self._sessions:
      raise Refused(410, "no episode with this address is running.", code=OVER)
    http_limits.check_page(page, scope["method"], PAGES)
    if page == "models":
      await answer.whole(dict(object="list", data=[dict(id=MODEL, object="model", created=0, owned_by="ragrl_jax")]))
      return
    session, reading, timeout_s = self._sessions[key]
    body = await http_limits.read_body(receive, MAX_BYTES)
    serve = self._searched if page == "search" else self._replied
    await answered(serve(session, reading, page, body, answer), receive, timeout_s)

  async def _replied(self, session: Session, reading: Reading, page: str, body: bytes, answer: Answer) -> None:
    kind = requests.CHAT if page == "chat/completions" else requests.TEXT
    request = await asyncio.to_thread(requests.read, body, kind, reading.served)
    piece = await _there(session, session.reply(request, page.encode() + body))
    reply = Replies(request, MODEL, None, reading.tokenizer)
    if not request.stream:
      await answer.whole(reply.whole([piece]))
      return
    for chunk in reply.events(piece):
      await answer.event(chunk)
    if request.usage:
      await answer.event(reply.usage_chunk())
    await answer.end()

  async def _searched(self, session: Session, reading: Reading, page: str, body: bytes, answer: Answer) -> None:
    try:
      values = json.loads(body)
      query, k = values["query"], values.get("k")
      fine = isinstance(query, str) and (k is None or (type(k) is int and 1 <= k <= MOST))
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
      fine, query, k = False, "", None
    if not fine:
      raise Refused(400, f'the body must be {{"query": "…", "k": 3}}, with k between 1 and {MOST}.')
    passages = await _there(session, session.search(query, k, page.encode() + body))
    await answer.whole(dict(passages=[dataclasses.asdict(passage) for passage in passages]))


async def _there(session: Session, work: Any) -> Any:
  """Awaits the work on the episode's event loop, and returns its result."""
  try:
    result = asyncio.run_coroutine_threadsafe(work, session.loop)
  except RuntimeError:  # the episode's loop is closed
    work.close()
    raise Refused(410, "this episode is over.", code=OVER) from None
  return await asyncio.wrap_future(result)
