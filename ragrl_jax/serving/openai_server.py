"""An OpenAI-compatible server over an engine: the sampler of training, with its token ids and log-probabilities.

    POST /v1/chat/completions, /v1/completions   like OpenAI's, streamed or not; extra fields have vLLM's names
    GET  /v1/models, /health
    POST /v1/weights                             {} or {"step": 40}: newer weights of the same run

Requests enter idle lanes of the running engine. Errors are one line of JSON in OpenAI's form: 400 for an invalid or
unsupported request, 401 for a missing key, 413 for a long body, 429 for too many replies at a time, 503 if replies run
too long for new weights, 504 after the time limit. If a stream has started, the error is its last event.
"""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from ragrl_jax.engine.lanes import FULL
from ragrl_jax.engine.messages import Group, Open, Turn
from ragrl_jax.protocol import http_limits, replies
from ragrl_jax.protocol.http_answer import Answer, Refused, Site, answered
from ragrl_jax.protocol.replies import Piece
from ragrl_jax.protocol.requests import CHAT, TEXT, Asked, Served, ToolReader, read
from ragrl_jax.protocol.text_stream import TextStream
from ragrl_jax.rollout import conversation
from ragrl_jax.serving.engine_thread import EngineThread, Hear, Slice

PAGES = {
  "/v1/chat/completions": "POST",
  "/v1/completions": "POST",
  "/v1/models": "GET",
  "/v1/weights": "POST",
  "/health": "GET",
}


@dataclasses.dataclass(frozen=True)
class Limits:
  """Limits of one request, and of all requests together.

  Attributes:
    max_bytes: largest body of a request.
    max_tokens: most tokens of a reply; 0: as many as the context allows.
    max_replies: most replies per request (number of prompts times n), but not more than `max_waiting`.
    max_waiting: most replies, over all requests, that are being sampled or waiting.
    timeout_s: most seconds per request, including waiting.
    drain_s: most seconds that new weights make new requests wait for the replies that run.
  """

  max_bytes: int = 8 << 20
  max_tokens: int = 0
  max_replies: int = 64
  max_waiting: int = 1024
  timeout_s: float = 600.0
  drain_s: float = 120.0


class Application(Site):
  """The ASGI application.

  Args:
    thread: the engine's thread, started.
    tools: reads tools and calls of requests; None: they are refused.
    reload: `reload(step)` loads the weights of a step (None: the newest) and returns their version. It is called on the
      engine's thread while no conversation is open. None: the weights cannot be changed.
    key, local: see `http_limits.check`.
  """

  last = b"data: [DONE]\n\n"

  def __init__(
    self,
    thread: EngineThread,
    name: str,
    limits: Limits = Limits(),
    *,
    tools: ToolReader | None,
    reload: Callable[[int | None], int] | None = None,
    key: str = "",
    local: bool = False,
  ):
    engine = thread.engine
    self._thread, self._limits, self._reload, self._key, self._local = thread, limits, reload, key, local
    most = min(limits.max_tokens or engine.context, engine.context)
    replies_at_once = min(limits.max_replies, limits.max_waiting)  # "ask again later" would never help with more
    self._served = Served(name, engine.tokenizer, engine.stops.rows, engine.context, most, replies_at_once, tools)
    self._gate, self._waiting = Gate(), 0

  def failed(self) -> str:
    return super().failed() if self._thread.error is None else "the engine has failed: see the server's log."

  async def serve(self, scope, receive, answer: Answer) -> None:
    http_limits.check(scope, local=self._local, key=self._key)
    page = scope["path"]
    http_limits.check_page("/v1/models" if page.startswith("/v1/models/") else page, scope["method"], PAGES)
    if page == "/health":
      await self._health(answer)
    elif page.startswith("/v1/models"):
      await self._models(answer, page)
    else:
      body = await http_limits.read_body(receive, self._limits.max_bytes)
      work = self._weights(body, answer) if page == "/v1/weights" else self._complete(page, body, answer)
      await answered(work, receive, self._limits.timeout_s)

  async def _health(self, answer: Answer) -> None:
    if self._thread.error is not None:
      raise Refused(503, "the engine has failed: see the server's log.")
    health = dict(status="ok", model=self._served.name, version=self._thread.engine.version, waiting=self._waiting)
    await answer.whole(health)

  async def _models(self, answer: Answer, path: str) -> None:
    card = dict(id=self._served.name, object="model", created=0, owned_by="ragrl_jax")
    card |= dict(max_model_len=self._served.context, version=self._thread.engine.version)
    if path == "/v1/models":
      await answer.whole(dict(object="list", data=[card]))
    elif path == f"/v1/models/{self._served.name}":
      await answer.whole(card)
    else:
      raise Refused(404, f"the model {path[11:91]!r} is not served here.", code="model_not_found")

  async def _complete(self, page: str, body: bytes, answer: Answer) -> None:
    kind = CHAT if page == "/v1/chat/completions" else TEXT
    # Tokenizing a long prompt is slow. A thread does it, so that the event loop can stream other replies.
    request = await asyncio.to_thread(read, body, kind, self._served)
    number = len(request.prompts) * request.n
    if self._waiting + number > self._limits.max_waiting:
      message = f"{self._waiting} replies are being sampled, of at most {self._limits.max_waiting}: ask again later."
      raise Refused(429, message, code="rate_limit_exceeded")
    self._waiting += number
    try:
      async with self._gate.inside(), contextlib.aclosing(draw(self._thread, request)) as pieces:
        reply = replies.Replies(request, self._served.name, self._thread.engine.version, self._served.tokenizer)
        if not request.stream:
          await answer.whole(reply.whole([piece async for piece in pieces]))
          return
        async for piece in pieces:
          for chunk in reply.events(piece):
            await answer.event(chunk)
        if request.usage:
          await answer.event(reply.usage_chunk())
        await answer.end()
    finally:
      self._waiting -= number

  async def _weights(self, body: bytes, answer: Answer) -> None:
    try:
      values = json.loads(body or b"{}")
      step = values.get("step")
      fine = not values.keys() - {"step"} and (step is None or (type(step) is int and step >= 0))
    except (ValueError, AttributeError, RecursionError):
      fine, step = False, None
    if not fine:
      raise Refused(400, 'the body must be {} for the newest weights of the run, or {"step": 40}.')
    if self._reload is None:
      raise Refused(400, "this server cannot load other weights.")
    if self._gate.shut:  # one after the other would keep all requests out
      raise Refused(409, "other weights are being loaded: ask again later.")
    try:
      async with self._gate.alone(self._limits.drain_s):
        version = await self._loaded(step)
    except TimeoutError:
      message = f"replies still run after {self._limits.drain_s:g} s, so the weights stay: ask again later."
      raise Refused(503, message) from None
    await answer.whole(dict(object="weights", version=version))

  async def _loaded(self, step: int | None) -> int:
    # Shielded: the engine's thread loads the weights even if this client disconnects.
    change = asyncio.ensure_future(asyncio.to_thread(self._thread.alone, self._reload, step))
    try:
      return await asyncio.shield(change)
    except (ValueError, OSError) as error:
      raise Refused(400, " ".join(str(error).split())) from None
    finally:
      await asyncio.wait([change])


class Gate:
  """A readers-writer lock: requests run together, and a change of weights runs alone.

  Admits many tasks with `inside`, or one with `alone`. A waiting `alone` blocks new `inside` tasks.
  """

  def __init__(self):
    self._inside, self._open, self._empty = 0, asyncio.Event(), asyncio.Event()
    self._open.set()
    self._empty.set()

  @property
  def shut(self) -> bool:
    """Whether a task is alone, or waits to be."""
    return not self._open.is_set()

  async def _wait(self) -> None:
    while self.shut:  # another task may have shut it since it was opened
      await self._open.wait()

  @contextlib.asynccontextmanager
  async def inside(self) -> AsyncIterator[None]:
    """Enters as soon as no task is alone or waits to be alone."""
    await self._wait()
    self._inside += 1
    self._empty.clear()
    try:
      yield
    finally:
      self._inside -= 1
      if not self._inside:
        self._empty.set()

  @contextlib.asynccontextmanager
  async def alone(self, within_s: float) -> AsyncIterator[None]:
    """Blocks other tasks, and enters when all tasks inside have left. Raises TimeoutError if that takes longer."""
    await self._wait()
    self._open.clear()
    try:
      async with asyncio.timeout(within_s):
        await self._empty.wait()
      yield
    finally:
      self._open.set()


async def draw(thread: EngineThread, request: Asked) -> AsyncGenerator[Piece, None]:
  """Yields the pieces of all replies to a request as they are sampled. The last one of a reply says why it ended.

  A reply leaves the engine at its own end, so more replies than the engine has rows follow each other, and nobody waits
  for a client that reads slowly.

  Close the iterator if you leave it early: then sampling stops after the current chunk. An error that ended the engine
  is raised.
  """
  loop, pieces = asyncio.get_running_loop(), asyncio.Queue()
  engine, sampling, numbers = thread.engine, request.sampling, []
  inside = replies.thinks(request, engine.tokenizer)

  def listener(index: int, number: int) -> Hear:
    """Makes pieces of a reply's slices, on the engine's thread."""
    text = TextStream(
      engine.tokenizer, request.stops, keep_stop=request.keep_stop, ends=request.tools.ends, thinks=inside
    )

    def hear(chunk: Slice | BaseException) -> bool:
      if isinstance(chunk, BaseException):
        tell(chunk)
        return False
      text_kept, finish = text.feed(chunk.ids), ""
      if text.stop is not None or (chunk.stop is not None and chunk.stop != FULL):
        finish = "stop"
      elif chunk.stop is not None:
        finish = "length"
      if finish:
        thread.close_conversation(number)
      stop = text.stop if text.stop in request.stops else None
      tell(Piece(index, text.piece(last=bool(finish)), chunk.ids[:text_kept], chunk.logprobs[:text_kept], finish, stop))
      return not finish

    return hear

  def tell(what: Piece | BaseException) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
      loop.call_soon_threadsafe(pieces.put_nowait, what)

  try:
    for place, prompt in enumerate(request.prompts):
      group = Group(next(thread.numbers), request.n) if request.n > 1 else None
      for sample in range(request.n):
        number = next(thread.numbers)
        thread.open(Open(number, prompt, conversation.key_of(request.seed, 0, place, sample, 0), group=group))
        numbers.append(number)
        turn = Turn(
          number,
          budget=sampling.max_new_tokens,
          accept=engine.stops.mask(()),  # EOS only: `listener` finds the client's stop strings
          temperature=sampling.temperature,
          top_k=sampling.top_k,
          top_p=sampling.top_p,
        )
        thread.submit(turn, listener(place * request.n + sample, number))
    remaining = len(numbers)
    while remaining:
      piece = await pieces.get()
      if isinstance(piece, BaseException):
        raise piece
      remaining -= bool(piece.finish)
      yield piece
  finally:
    for number in numbers:
      thread.close_conversation(number)
