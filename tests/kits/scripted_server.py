"""An HTTP server of OpenAI's chat protocol whose answers are scripted."""

import asyncio
import contextlib

import served
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


def completion(text, **more):
  """What a chat model's server replies. more: of the reply, or of its choice (finish_reason, stop_reason, logprobs)."""
  choice = dict(index=0, finish_reason="stop", message=dict(role="assistant", content=text))
  ours = {name: more.pop(name) for name in ("finish_reason", "stop_reason", "logprobs") if name in more}
  return dict(id="c", object="chat.completion", created=0, model="m", choices=[choice | ours]) | more


def continuation(text, **more):
  """What a server of text completions replies."""
  reply = completion("", **more)
  reply["choices"][0]["text"] = text
  del reply["choices"][0]["message"]
  return reply


class Scripted:
  """Answers every call with `answer(messages, number of the call)`; the messages are a text for a text completion.

  The answer is a text, a status, a dict, bytes, a Response, or a pair (seconds to wait, or a coroutine function that
  is awaited first; one of these).

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
      said = self.answer(body["messages"] if "messages" in body else body["prompt"], len(self.asked))
      if isinstance(said, tuple):
        await (said[0]() if callable(said[0]) else asyncio.sleep(said[0]))
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
  paths = ("/v1/chat/completions", "/v1/completions")
  app = Starlette(routes=[Route(path, scripted.reply, methods=["POST"]) for path in paths])
  config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", timeout_graceful_shutdown=0)
  with served.running(uvicorn.Server(config)) as port:
    yield f"http://127.0.0.1:{port}/v1", scripted
