"""A local web page to ask checkpoints questions.

GET  /      the page
POST /ask   {"question", "samples", "seed", "earlier": [[question, answer], …], "checkpoint": number} → the events of
            `ask_checkpoint`, one line of JSON each. With several samples the last event is
            {"event": "agreement", "answers": […]}.
"""

import asyncio
import dataclasses
import json
import uuid
from collections.abc import Sequence
from typing import Any

from ragrl_jax.protocol import http_limits
from ragrl_jax.protocol.http_answer import Answer, Refused, Site, answered
from ragrl_jax.report import rendering
from ragrl_jax.serving import ask_checkpoint
from ragrl_jax.structs import Example

SAMPLES = (1, 3, 5, 8, 16)
PAGES = {"/": "GET", "/ask": "POST"}
POLICY = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"), (b"x-frame-options", b"DENY"))


@dataclasses.dataclass(frozen=True)
class Limits:
  """Limits of questions.

  Attributes:
    max_bytes: largest body of a request.
    longest: most characters of a question.
    max_waiting: most answers that are generated or waiting at a time.
    timeout_s: most seconds for all answers to a question.
  """

  max_bytes: int = 1 << 18
  longest: int = 4000
  max_waiting: int = 64
  timeout_s: float = 600.0


class Application(Site):
  """The ASGI application: asks these checkpoints, and shows `examples` of questions."""

  stream = b"application/x-ndjson"

  def __init__(
    self, askers: Sequence[ask_checkpoint.Asker], limits: Limits = Limits(), *, examples: Sequence[str] = ()
  ):
    self._askers, self._limits, self._waiting = askers, limits, 0
    player = askers[0].player
    shape = player.config
    size = "–" if shape is None else f"{shape.num_layers} layers of width {shape.d_model}"
    facts = [("Recipe", player.recipe.name), ("Model", size), ("Searches", _index(player))]
    judged = ask_checkpoint.judged(player.settings)
    facts.append(("Judge", "judges every answer's steps" if judged else "none (config.judge.kind)"))
    names = [asker.name for asker in askers]
    self._page = rendering.asking_page(names, facts, samples=SAMPLES, longest=limits.longest, examples=examples)

  def failed(self) -> str:
    return "the command failed: its output shows the error."

  async def serve(self, scope, receive, answer: Answer) -> None:
    http_limits.check(scope, local=True)
    http_limits.check_page(scope["path"], scope["method"], PAGES)
    if scope["path"] == "/":
      await answer.text(self._page, b"text/html; charset=utf-8", 200, *POLICY)
      return
    body = await http_limits.read_body(receive, self._limits.max_bytes)
    asker, example, samples, seed = self._read(body)
    if self._waiting + samples > self._limits.max_waiting:
      raise Refused(429, f"{self._waiting} answers are being generated: ask again later.")
    self._waiting += samples
    try:
      await answered(_answer(asker, example, samples, seed, answer), receive, self._limits.timeout_s)
    finally:
      self._waiting -= samples

  def _read(self, body: bytes) -> tuple[ask_checkpoint.Asker, Example, int, int]:
    """(the checkpoint's asker, the question, samples, seed)."""
    question, earlier, samples, seed, place = _parsed(body)
    if len(question) > self._limits.longest:
      raise Refused(400, f"the question has {len(question)} characters: at most {self._limits.longest}.")
    if not (0 <= place < len(self._askers) and 1 <= samples <= SAMPLES[-1] and 0 <= seed < 2**31):
      raise Refused(400, f"checkpoint={place}, samples={samples}, seed={seed}: one of them is out of range.")
    example = Example(str(uuid.uuid4()), ask_checkpoint.in_conversation(earlier, question), ())
    try:
      self._askers[place].check(example)
    except ValueError as error:
      raise Refused(400, str(error)) from None
    return self._askers[place], example, samples, seed


def _parsed(body: bytes) -> tuple[str, list[tuple[str, str]], int, int, int]:
  """(question, earlier, samples, seed, checkpoint), with checked types."""
  refused = Refused(400, 'the body must be {"question": "…", "samples": 1, "seed": 0, "earlier": [], "checkpoint": 0}.')
  try:
    values: Any = json.loads(body)
    question, earlier = values["question"], [(before, answer) for before, answer in values.get("earlier", [])]
    samples, seed, place = values.get("samples", 1), values.get("seed", 0), values.get("checkpoint", 0)
  except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
    raise refused from None
  texts = [question, *(text for pair in earlier for text in pair)]
  if not all(isinstance(text, str) for text in texts) or not all(type(i) is int for i in (samples, seed, place)):
    raise refused
  return question, earlier, samples, seed, place


async def _answer(asker: ask_checkpoint.Asker, example: Example, samples: int, seed: int, answer: Answer) -> None:
  """Sends the events until all answers are complete."""
  events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
  work = asyncio.create_task(
    asker.ask(example, samples=samples, greedy=samples == 1, seed=seed, tell=events.put_nowait)
  )
  work.add_done_callback(lambda _: events.put_nowait(None))
  try:
    while (event := await events.get()) is not None:
      await answer.event(event)
    answers = await work
    if samples > 1:
      texts = [one["answer"] for one in answers]
      await answer.event(dict(event="agreement", answers=ask_checkpoint.agreement(texts)))
    await answer.end()
  finally:
    work.cancel()
    await asyncio.wait([work])


def _index(player) -> str:
  if player.retriever is None:
    return "nothing"
  top_k = player.settings.retrieval.top_k
  return f"{top_k} passage{'s' * (top_k != 1)} each, {player.retriever.describe().get('kind', 'an index')}"
