"""A model behind an OpenAI-compatible endpoint, with its answers kept on disk, and transcripts made by its help."""

import asyncio
import collections
import dataclasses
import hashlib
import json
import logging
import pathlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from ragrl_jax.chat import completions
from ragrl_jax.store import jsonl
from ragrl_jax.structs import Example, ToolFailed

Turns = list[tuple[str, str]]
NO_ANSWER = "no answer"
SETTINGS = frozenset({401, 404})  # refusals of whatever is asked: a wrong key, address or model
DEAD = 32  # failures before the first answer: nobody is there


@dataclasses.dataclass(frozen=True)
class Reply:
  """What a model said: the text, and its reasoning where the endpoint gives that apart ("" if not)."""

  content: str
  reasoning: str = ""


class Chat(Protocol):
  """A chat model that answers one request at a time: what teachers and judges need of a client."""

  async def ask(self, messages: Sequence[Mapping[str, str]]) -> Reply:
    """Raises ToolFailed when there is no answer in time."""


async def transcripts(
  examples: Sequence[Example],
  make: Callable[[Example], Awaitable[tuple[str, Turns | None]]],
  *,
  concurrency: int = 16,
  progress: Callable[[collections.Counter], None] = lambda fates: None,
) -> tuple[list[tuple[Example, Turns]], collections.Counter]:
  """([(example, its turns)] of those that were kept, in the examples' order, and how many met which fate).

  Examples that got no answer are tried once more when all others are done; that is logged, with the first one's reason.

  Args:
    examples: the questions.
    make: example → (fate, turns or None). If it raises ToolFailed, twice, the fate is NO_ANSWER.
    concurrency: examples under way at a time.
    progress: told the fates so far, after each example.
  """
  fates, gate, made, reasons = collections.Counter(), asyncio.Semaphore(concurrency), {}, []

  async def one(number: int) -> None:
    async with gate:
      try:
        fate, made[number] = await make(examples[number])
      except ToolFailed as failure:
        fate = NO_ANSWER
        reasons.append(failure)
    fates[fate] += 1
    progress(fates)

  await asyncio.gather(*map(one, range(len(examples))))
  if reasons:
    logging.warning(
      "%d of %d questions got no answer and are asked once more; the first: %s", len(reasons), len(examples), reasons[0]
    )
    del fates[NO_ANSWER]
    await asyncio.gather(*(one(number) for number in range(len(examples)) if number not in made))
  return [(examples[number], made[number]) for number in sorted(made) if made[number] is not None], fates


class Endpoint:
  """Asks a model; what it answered once is read from disk from then on.

  A lost connection, a time-out, 408, 409, 429 and 5xx are waited out and asked again. Any other refusal ends its
  question at once.

  Args:
    url: such as "http://localhost:8000/v1".
    model: its name there.
    key: the API key; servers of one's own mostly want none.
    folder: of the answers, a file each, named by what was asked of which model under which sampling.
    timeout_s: of one call.
    deadline_s: of all calls for one answer, waits included.
    retries: further calls after a failed one.
    backoff_s: see `completions.Completions`.
    sampling: temperature, max_tokens, … as the endpoint names them.

  Raises:
    ValueError: see `completions.Completions`.
  """

  def __init__(
    self,
    url: str,
    model: str,
    *,
    folder: str | pathlib.Path,
    key: str = "",
    timeout_s: float = 600.0,
    deadline_s: float = 1800.0,
    retries: int = 5,
    backoff_s: float = 0.5,
    sampling: Mapping[str, Any] | None = None,
  ):
    self.model, self.folder = model, pathlib.Path(folder)
    self.sampling = dict(sampling or {})
    self.asked, self._lost, self._heard = 0, 0, False  # calls; those without an answer; whether there was one
    self._client = completions.Completions(
      url, model, key=key, timeout_s=timeout_s, deadline_s=deadline_s, retries=retries, backoff_s=backoff_s
    )

  async def ask(self, messages: Sequence[Mapping[str, str]]) -> Reply:
    """The answer, from disk if it lies there.

    Raises:
      ToolFailed: a refusal, or none within retries and deadline (`completions.NoCompletion`).
      ConnectionError: the same, before any answer: a refusal of SETTINGS, or the DEADth failure.
    """
    question = dict(model=self.model, messages=[dict(message) for message in messages], **self.sampling)
    name = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()
    path = self.folder / name[:2] / f"{name}.json"
    if path.exists():
      self._heard = True
      return Reply(**json.loads(path.read_text(encoding="utf-8"))["reply"])
    self.asked += 1
    try:
      said = await asyncio.wrap_future(
        completions.daemon(lambda: self._client.ask(question["messages"], **self.sampling))
      )
    except completions.NoCompletion as failure:
      self._lost += 1
      if not self._heard and (failure.status in SETTINGS or self._lost >= DEAD):
        raise ConnectionError(
          f"{failure}. See that address, model and key are right and that the server is up."
        ) from failure
      raise
    self._heard = True
    reply = dict(content=said.content, reasoning=said.reasoning)
    with jsonl.whole(path) as part:
      part.write_text(json.dumps(dict(question=question, reply=reply)), encoding="utf-8")
    return Reply(**reply)
