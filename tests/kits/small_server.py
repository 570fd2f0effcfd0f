"""A server over the small engine, in this process, for tests of the protocol."""

import contextlib
import json
import socket
import types

import httpx
import served
import small_engine as kit
import uvicorn

from ragrl_jax.engine import lanes, messages
from ragrl_jax.protocol import http_limits
from ragrl_jax.rollout import conversation
from ragrl_jax.serving import engine_thread, openai_server

MODEL, LIMITS = "small", openai_server.Limits()
# One client, since making one takes longer than many a request; a connection for every call.
CLIENT = httpx.Client(timeout=280, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0))


@contextlib.contextmanager
def running(application, guard=None):
  """Gives the port on which the ASGI application is served."""
  server = uvicorn.Server(http_limits.configured(application, host="127.0.0.1", port=0, guard=guard))
  with served.running(server) as port:
    if guard is not None:  # clients that do not read are soon noticed
      server.servers[0].sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    yield port


@contextlib.contextmanager
def serving(engine=None, *, limits=LIMITS, guard=None, tools=None, **more):
  """Gives ("http://127.0.0.1:PORT/v1", the application) over a small engine."""
  thread = engine_thread.EngineThread(engine or kit.engine())
  thread.start()
  try:
    application = openai_server.Application(thread, MODEL, limits, tools=tools, local=True, **more)
    with running(application, guard) as port:
      yield f"http://127.0.0.1:{port}/v1", application
  finally:
    thread.close()
    thread.engine.reset()


def post(url, page, headers=None, **body):
  """(status, JSON) of a request."""
  said = CLIENT.post(f"{url}/{page}", json=dict(model=MODEL) | body, headers=headers)
  return said.status_code, said.json()


def stream(url, page, **body):
  """The chunks of a streamed reply."""
  with CLIENT.stream("POST", f"{url}/{page}", json=dict(model=MODEL, stream=True) | body) as said:
    assert said.status_code == 200 and said.headers["content-type"].startswith("text/event-stream"), said.read()
    lines = [line for line in said.read().decode().split("\n") if line]  # a text may have other ends of lines
  assert lines[-1] == "data: [DONE]"
  return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def drawn(engine, prompt, *, seed=0, place=0, sample=0, budget=12, temperature=1.0):
  """(ids, logprobs, stop) that the engine itself draws for a prompt in one turn, with EOS as its only stop."""
  key = conversation.key_of(seed, 0, place, sample, 0)
  engine.open(engine_thread.Open(0, tuple(prompt), key))
  engine.submit(engine_thread.Turn(0, budget=budget, accept=engine.stops.mask(()), temperature=temperature))
  (ended,) = kit.finished(engine)
  engine.close(0)
  return list(ended.ids), list(ended.logprobs), ended.stop


class ScriptedEngine:
  """An engine that produces scripted replies, a few tokens per step.

  Args:
    tokenizer: encodes the texts.
    texts: what is said in each turn, in the order of the turns; or a function of (number of the turn in its
      conversation, prompt). A turn ends by the stop string that its text ends with, or by EOS, which is added to it.
    stops: the stop strings.
  """

  context, version = 100_000, 3

  def __init__(self, tokenizer, texts, stops=kit.STOPS):
    self.tokenizer, self.stops = tokenizer, kit.stops(tuple(stops))
    self.sizes = types.SimpleNamespace(ahead=5)
    self.prompts, self._left, self._ended, self._turns = [], {}, [], {}
    left = [] if callable(texts) else list(texts)
    self._text = texts if callable(texts) else lambda turn, prompt: left.pop(0)

  def check(self):
    """There are always weights."""

  reset = check

  @property
  def busy(self):
    """Whether a turn has been asked for."""
    return bool(self._ended)

  def open(self, message):
    """Records the prompt."""
    self.prompts.append(message.ids)
    self._turns[message.conversation] = [0, message.ids]

  def submit(self, turn):
    """Says the next tokens of the turn's text."""
    if not turn.resumed:
      text = self._text(*self._turns[turn.conversation])
      self._turns[turn.conversation][0] += 1
      stop = next((i for i, name in enumerate(self.stops.names) if text.endswith(name)), len(self.stops.names) - 1)
      eos = [self.tokenizer.eos_ids[0]] if stop == len(self.stops.names) - 1 else []
      self._left[turn.conversation] = [*self.tokenizer.encode(text), *eos], stop
    ids, stop = self._left[turn.conversation]
    said, left = ids[: turn.budget], ids[turn.budget :]
    self._left[turn.conversation] = left, stop
    ended = messages.TurnEnded(turn.conversation, tuple(said), (-0.5,) * len(said), lanes.FULL if left else stop)
    self._ended.append(ended)

  def close(self, number):
    """Forgets the conversation."""
    self._left.pop(number, None)

  def leave(self, group):
    """Nothing is shared."""

  def step(self):
    """The turns that were asked for since the last step."""
    ended, self._ended = self._ended, []
    return ended
