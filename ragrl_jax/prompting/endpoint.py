"""A model behind an OpenAI-compatible endpoint, with its answers kept on disk, and transcripts made by its help."""

import asyncio
import collections
import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import openai

from ragrl_jax.store import jsonl
from ragrl_jax.structs import Example, ToolFailed

Turns = list[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Reply:
  """What a model said: the text, and its reasoning where the endpoint gives that apart ("" if not)."""

  content: str
  reasoning: str = ""


class Chat(Protocol):
  async def ask(self, messages: Sequence[Mapping[str, str]]) -> Reply:
    """Raises ToolFailed when there is no answer in time."""


async def transcripts(
    examples: Sequence[Example], make: Callable[[Example], Awaitable[tuple[str, Turns | None]]], *,
    concurrency: int = 16, progress: Callable[[collections.Counter], None] = lambda fates: None,
) -> tuple[list[tuple[Example, Turns]], collections.Counter]:
  """([(example, its turns)] of those that were kept, in the examples' order, and how many met which fate).

  Args:
    examples: the questions.
    make: example → (fate, turns or None). If it raises ToolFailed the fate is "no answer": to be asked again.
    concurrency: examples under way at a time.
    progress: told the fates so far, after each example.
  """
  fates, gate = collections.Counter(), asyncio.Semaphore(concurrency)

  async def one(example: Example):
    async with gate:
      try:
        fate, turns = await make(example)
      except ToolFailed:
        fate, turns = "no answer", None
    fates[fate] += 1
    progress(fates)
    return turns

  found = await asyncio.gather(*map(one, examples))
  return [(example, turns) for example, turns in zip(examples, found) if turns is not None], fates


class Endpoint:
  """Asks a model; what it answered once is read from disk from then on.

  The client waits and tries again by itself after a lost connection, a time-out, 408, 409, 429 and 5xx. A refusal that
  would be the same next time (401, 404, 400) is raised as it is: the settings are wrong.

  Args:
    url: such as "http://localhost:8000/v1".
    model: its name there.
    key: the API key; servers of one's own take any.
    folder: of the answers, a file each, named by what was asked of which model under which sampling.
    timeout_s: of one call.
    deadline_s: of all calls for one answer, waits included.
    retries: further calls after a failed one.
    sampling: temperature, max_tokens, … as the endpoint names them.
  """

  def __init__(
      self, url: str, model: str, *, folder: str | pathlib.Path, key: str = "none", timeout_s: float = 600.0,
      deadline_s: float = 1800.0, retries: int = 5, sampling: Mapping[str, Any] | None = None):
    if not url.startswith(("http://", "https://")):
      raise ValueError(f"{url!r}: an endpoint's address begins with http:// or https:// and mostly ends with /v1.")
    self.model, self.folder, self.deadline_s = model, pathlib.Path(folder), deadline_s
    self.sampling = dict(sampling or {})
    self.asked = 0
    self._client = openai.AsyncOpenAI(base_url=url, api_key=key, timeout=timeout_s, max_retries=retries)

  async def ask(self, messages: Sequence[Mapping[str, str]]) -> Reply:
    """The answer, from disk if it lies there.

    Raises:
      ToolFailed: none within retries and deadline.
    """
    question = dict(model=self.model, messages=[dict(message) for message in messages], **self.sampling)
    name = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()
    path = self.folder / name[:2] / f"{name}.json"
    if path.exists():
      return Reply(**json.loads(path.read_text(encoding="utf-8"))["reply"])
    self.asked += 1
    try:
      async with asyncio.timeout(self.deadline_s):
        answer = await self._client.chat.completions.create(**question)
    except (TimeoutError, openai.APIConnectionError, openai.RateLimitError, openai.InternalServerError) as error:
      raise ToolFailed(f"{self.model}: no answer within retries and {self.deadline_s:g} s ({error!r}).") from error
    if not answer.choices or answer.choices[0].message is None:
      raise ToolFailed(f"{self.model}: an answer without a message.")
    said = answer.choices[0].message
    reply = dict(content=said.content or "", reasoning=getattr(said, "reasoning_content", None) or "")
    with jsonl.whole(path) as part:
      part.write_text(json.dumps(dict(question=question, reply=reply), ensure_ascii=False), encoding="utf-8")
    return Reply(**reply)

  async def close(self) -> None:
    await self._client.close()
