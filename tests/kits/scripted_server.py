"""An HTTP server of OpenAI's chat protocol whose answers are scripted."""

import asyncio
import contextlib
import threading
import time

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


def completion(text):
  """What a chat model's server replies."""
  return dict(
    id="c",
    object="chat.completion",
    created=0,
    model="m",
    choices=[dict(index=0, finish_reason="stop", message=dict(role="assistant", content=text))],
  )


class Scripted:
  """Answers every call with `answer(messages, number of the call)`.

  The answer is a text, a status, a dict, bytes, a Response, or a pair (seconds to wait, one of these).

  Attributes:
    asked: the calls' bodies.
    keys: their authorisation.
    most: the largest number of calls at the same time.
  """

  def __init__(self, answer):
    self.answer, self.asked, self.keys, self.running, self.most = answer, [], [], 0, 0

  async def reply(self, request):
    body = await request.json()
    self.asked.append(body)
    self.keys.append(request.headers.get("authorization", ""))
    self.running += 1
    self.most = max(self.most, self.running)
    try:
      said = self.answer(body["messages"], len(self.asked))
      if isinstance(said, tuple):
        await asyncio.sleep(said[0])
        said = said[1]
    finally:
      self.running -= 1
    if isinstance(said, int):
      return JSONResponse(dict(error=dict(message="so it goes")), said, headers={"retry-after": "0"})
    if isinstance(said, Response):
      return said
    if isinstance(said, bytes):
      return Response(said, media_type="application/json")
    return JSONResponse(said if isinstance(said, dict) else completion(said))


@contextlib.contextmanager
def serving(answer):
  """(endpoint, Scripted) while the block runs."""
  scripted = Scripted(answer)
  app = Starlette(routes=[Route("/v1/chat/completions", scripted.reply, methods=["POST"])])
  running = uvicorn.Server(
    uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", timeout_graceful_shutdown=0)
  )
  thread = threading.Thread(target=running.run)
  thread.start()
  while not running.started:
    assert thread.is_alive()
    time.sleep(0.005)
  try:
    yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}/v1", scripted
  finally:
    running.should_exit = True
    thread.join()
