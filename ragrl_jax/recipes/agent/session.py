"""The requests of one episode become turns of conversations with the policy, token by token.

A request brings its whole history. Where it begins with a conversation as the policy knows it, the conversation goes
on: its tokens stay, and only the messages after its last reply are rendered. Any other request begins another
conversation (a training row of its own), or is refused.

    request 1   user                        →  prompt            [user]                       ids rendered
    request 2   user assistant tool         →  conversation 1    [user assistant] + [tool]    only [tool] is rendered
    request 3   user assistant* tool user   →  rewritten: assistant* is not what the policy said
"""

import asyncio
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax import structs
from ragrl_jax.prompting import tool_calls
from ragrl_jax.prompting.appended import Appender, Rewritten
from ragrl_jax.prompting.tokenizer import Tokenizer
from ragrl_jax.protocol.http_answer import Refused
from ragrl_jax.protocol.replies import Piece, Replies
from ragrl_jax.protocol.requests import CHAT, Asked, Served
from ragrl_jax.protocol.text_stream import TextStream
from ragrl_jax.recipes.agent.task import MODEL

UNLIMITED = 1 << 30  # tokens; the conversation knows its room
OVER = "over"  # code of the refusal after an episode's end
Key = tuple[Any, ...]


class Reading:
  """How requests are read and conversations go on, for one tokenizer.

  Args:
    tokenizer: the policy's.
    stops: the stop strings that requests may name.
  """

  def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]):
    self.tokenizer, self.stops, self.appender = tokenizer, tuple(stops), Appender(tokenizer)
    self.served = Served("", tokenizer, UNLIMITED, UNLIMITED, 1, tool_calls.format_of(tokenizer))


@dataclasses.dataclass
class _Record:
  """A conversation, and the messages that a request must begin with to go on with it."""

  talk: structs.Conversation
  kind: str
  keys: list[Key]
  tools: str
  begun: tuple[str | None, tuple[structs.Passage, ...] | None]  # (queries, passages) of searches before its first turn

  @property
  def last(self) -> structs.Segment:
    return self.talk.segments[-1]

  @property
  def ids(self) -> list[int]:
    return [i for segment in self.talk.segments for i in segment.ids]


class Session:
  """One episode's requests. All methods are called on the episode's event loop.

  Args:
    policy, tools: the episode's.
    reading: of the policy's tokenizer.
    max_requests: most replies.
    split: whether a request that continues no conversation begins another one; else it is refused, and the episode
      fails.

  Attributes:
    loop: the episode's.
    ended: "budget" or "requests", once a reply was refused for want of room or of requests.
    failure: why the episode cannot be trained on; empty if it can.
    crashed: an error of ours, which must end the run.
    rewrites: what was rewritten, a line for each conversation but the first.
    requests, calls, searches: replies, tool calls in them, and searches of the run's index so far.
  """

  def __init__(self, policy: structs.Policy, tools: structs.Tools, reading: Reading, *, max_requests: int, split: bool):
    self._policy, self._tools, self._reading = policy, tools, reading
    self._max_requests, self._split = max_requests, split
    self.loop = asyncio.get_running_loop()
    self.ended = self.failure = ""
    self.crashed: BaseException | None = None
    self.rewrites: list[str] = []
    self.requests = self.calls = self.searches = 0
    self._records: list[_Record] = []
    self._found: list[tuple[str, tuple[structs.Passage, ...]]] = []  # searches since the last turn
    self._turn = asyncio.Lock()  # requests of an episode are answered one after the other
    self._tasks: set[asyncio.Task[Any]] = set()
    self._over = False

  # ---- requests ------------------------------------------------------------------------------------------------------

  async def reply(self, asked: Asked) -> Piece:
    """The policy's reply to a request.

    Raises:
      Refused: the episode is over, its limits are reached, or its history was rewritten.
    """
    return await self._own(self._reply(asked))

  async def search(self, query: str, k: int | None) -> tuple[structs.Passage, ...]:
    """Passages from the run's index. They are kept with the tokens of the next request.

    Raises:
      Refused: the search failed, which fails the episode.
    """
    return await self._own(self._search(query, k))

  async def _own(self, work: Any) -> Any:
    """Does the work as a task that ends with the session."""
    if self._over:
      work.close()
      raise Refused(410, "this episode is over.", code=OVER)
    task = asyncio.ensure_future(work)
    self._tasks.add(task)
    task.add_done_callback(self._done)
    try:
      # A client that leaves does not take the turn with it: what the policy has said stays said.
      return await asyncio.shield(task)
    except asyncio.CancelledError:
      if task.cancelled():
        raise Refused(410, "this episode is over.", code=OVER) from None
      raise

  def _done(self, task: asyncio.Task[Any]) -> None:
    """Whatever is no refusal is an error of ours, even if its client has left."""
    self._tasks.discard(task)
    if not task.cancelled() and not isinstance(error := task.exception(), Refused | None):
      self.crashed = error

  async def _search(self, query: str, k: int | None) -> tuple[structs.Passage, ...]:
    try:
      found = tuple(await self._tools.search(query, k))
    except structs.ToolFailed as failure:
      self.failure = self.failure or str(failure)
      raise Refused(502, str(failure)) from None
    self._found.append((query, found))
    self.searches += 1
    return found

  async def _reply(self, asked: Asked) -> Piece:
    async with self._turn:
      if self._over:
        raise Refused(410, "this episode is over.", code=OVER)
      if self.requests >= self._max_requests:
        self.ended = "requests"
        message = f"{self.requests} requests: the episode has no more (config.switches.max_requests)."
        raise Refused(400, message, code="too_many_requests")
      if unknown := [stop for stop in asked.stops if stop not in self._reading.stops]:
        message = f"stop={unknown[0]!r}: the run's engine does not know it. Name it in config.switches.stops."
        raise Refused(400, message, param="stop")
      record = self._placed(asked)
      stops = (*asked.stops, *(end for end in asked.ends if end in self._reading.stops))
      most = asked.sampling.max_new_tokens if asked.limited else None
      segment = await record.talk.generate(stop=stops, max_new_tokens=most)
      if not segment.ids:
        raise self._full()
      self.requests += 1
      return self._said(record, asked, segment)

  def _said(self, record: _Record, asked: Asked, segment: structs.Segment) -> Piece:
    """The reply as its client sees it; the record then expects it in the next request's history."""
    known = self._reading.stops
    text = TextStream(
      self._reading.tokenizer, asked.stops, keep_stop=asked.keep_stop, ends=[end for end in asked.ends if end in known]
    )
    text.feed(segment.ids)
    finish = "length" if segment.stop in ("length", "budget") else "stop"
    stop = text.stop if text.stop in asked.stops else None
    piece = Piece(0, text.piece(last=True), segment.ids, segment.logprobs, finish, stop)
    if asked.kind == CHAT:
      said = Replies(asked, MODEL, None, self._reading.tokenizer).whole([piece])["choices"][0]["message"]
      begun = "" if asked.forced else asked.opened  # a forced call's beginning is in the message already
      message = dict(role="assistant", content=begun + (said["content"] or ""))
      message |= dict(tool_calls=said["tool_calls"]) if "tool_calls" in said else {}
      self.calls += len(message.get("tool_calls", ()))
      record.keys = [*map(_key, asked.messages), *map(_key, tool_calls.messages([message], self._reading.served.tools))]
    return piece

  # ---- conversations -------------------------------------------------------------------------------------------------

  def _placed(self, asked: Asked) -> _Record:
    """The conversation that the request goes on with, or a new one, with the request's tokens."""
    why = []
    for record in sorted(self._records, key=lambda one: -len(one.keys)):
      new = self._new(record, asked)
      if isinstance(new, str):
        why.append(new)
        continue
      query, found = self._observed()
      if not record.talk.observe(new, query=query, found=found):
        raise self._full()
      return record
    if self._records:
      self.rewrites.append(why[0])
      if not self._split:
        self.failure = self.failure or f"the program rewrote its conversation: {why[0]}"
        message = f"{why[0]} Conversations only grow here (config.switches.rewritten='split' trains on both)."
        raise Refused(400, message, param="messages", code="history_rewritten")
    begun = self._observed()
    record = _Record(self._policy.start(list(asked.prompts[0])), asked.kind, [], json.dumps(asked.shown), begun)
    self._records.append(record)
    return record

  def _new(self, record: _Record, asked: Asked) -> list[int] | str:
    """The ids with which a request goes on with a conversation; or in words why it does not."""
    if asked.kind != record.kind:
      return "the program asks for chats and for texts in one conversation."
    if asked.kind != CHAT:
      return self._text_after(record, asked.prompts[0])
    if json.dumps(asked.shown) != record.tools:
      return "the tools are others than at the conversation's beginning."
    keys = [_key(message) for message in asked.messages]
    for number, (known, now) in enumerate(zip(record.keys, keys)):
      if known != now:
        return f"messages[{number}] ({known[0]}) was {_shown(known)} and is now {_shown(now)}."
    if len(keys) < len(record.keys):
      return f"messages[{len(keys)}] ({record.keys[len(keys)][0]}) and what follows is left out."
    ended = record.last.stop == "eos"
    try:
      new = self._reading.appender.after(asked.messages, len(record.keys), asked.shown, ended=ended)
    except Rewritten as error:
      return f"{error} (prompting.markers='own' only appends)."
    except ValueError as error:
      return " ".join(str(error).split())
    return [*new, *self._reading.tokenizer.encode(asked.opened)]

  def _text_after(self, record: _Record, prompt: Sequence[int]) -> list[int] | str:
    """`_new` for a text: it must begin with the conversation's tokens, or with their text."""
    ids, tokenizer = record.ids, self._reading.tokenizer
    if list(prompt[: len(ids)]) == ids:
      return [*prompt[len(ids) :]]
    text, now = tokenizer.decode(ids), tokenizer.decode(prompt)
    if now.startswith(text):
      return tokenizer.encode(now[len(text) :])
    same = next((i for i, (a, b) in enumerate(zip(text, now)) if a != b), min(len(text), len(now)))
    return f"the text was {text[same : same + 40]!r} from character {same} on, and is now {now[same : same + 40]!r}."

  def _observed(self) -> tuple[str | None, tuple[structs.Passage, ...] | None]:
    """(queries, passages) of the searches since the last turn."""
    searches, self._found = self._found, []
    if not searches:
      return None, None
    return "; ".join(query for query, _ in searches), tuple(passage for _, found in searches for passage in found)

  def _full(self) -> Refused:
    self.ended = "budget"
    message = "the conversation has no room for these messages and a reply (config.rollout.context, reserve)."
    return Refused(400, message, param="messages", code="context_length_exceeded")

  # ---- the end -------------------------------------------------------------------------------------------------------

  async def close(self, *, cancel: bool = False) -> None:
    """Waits for the turn that is being drawn, or cancels it, after which no episode can be made. Later requests are
    refused.
    """
    self._over = True
    for task in list(self._tasks) if cancel else ():
      task.cancel()
    await asyncio.gather(*self._tasks, return_exceptions=True)

  def episode(self, facts: Mapping[str, Any], example: Sequence[Mapping[str, str]]) -> structs.Episode:
    """The finished episode.

    Args:
      facts: what to keep with it.
      example: chat messages of the question, which stand for an episode in which the program asked for nothing.
    """
    if not self._records:
      return self._policy.start(example).end("silent", **facts)
    segments, starts = [], []
    for record in self._records:
      starts.append(len(segments))
      prompt, *rest = record.talk.segments
      query, found = record.begun
      segments += [dataclasses.replace(prompt, query=query, found=found), *rest]
    ended = [record.talk.end(self.ended or None, **facts) for record in self._records]
    return dataclasses.replace(ended[-1], segments=tuple(segments), starts=tuple(starts[1:]))


def _key(message: Mapping[str, Any]) -> Key:
  """What must stay the same of a message: role, text without the white space around it, and calls by their values.

  Clients give calls ids of their own, and write their arguments' JSON anew.
  """
  calls = tuple(
    (call["function"]["name"], json.dumps(call["function"]["arguments"], sort_keys=True))
    for call in message.get("tool_calls") or ()
  )
  return message["role"], message["content"].strip(), calls


def _shown(key: Key) -> str:
  text = key[1] + "; ".join(f"{name}({arguments})" for name, arguments in key[2])
  return repr(text if len(text) <= 60 else f"{text[:30]} … {text[-25:]}")
