"""Turns the requests of one episode into turns of conversations with the policy, with exactly the sampled tokens.

A request repeats its whole history. If the history begins with a known conversation, the request continues this
conversation: its tokens stay, and only the messages after the last reply are rendered. Any other request begins a new
conversation (its own training row), or is refused.

    request 1   user                        →  new conversation    [user]                       [user] is rendered
    request 2   user assistant tool         →  continues it        [user assistant] + [tool]    only [tool] is rendered
    request 3   user assistant* tool user   →  rewritten: assistant* differs from what the policy wrote
"""

import asyncio
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax import structs
from ragrl_jax.agents.agent.task import MODEL
from ragrl_jax.agents.calls import call_texts, formats, served
from ragrl_jax.core.text import beginnings
from ragrl_jax.prompting.chat import Appender, Rewritten
from ragrl_jax.prompting.tokenizer import Tokenizer
from ragrl_jax.protocol.http_answer import Refused
from ragrl_jax.protocol.replies import Piece, Replies, thinks
from ragrl_jax.protocol.requests import CHAT, Asked, Served
from ragrl_jax.protocol.text_stream import TextStream

UNLIMITED = 1 << 30  # tokens; the conversation itself limits them
OVER = "over"  # error code of requests after the episode's end
Key = tuple[Any, ...]
Searches = list[tuple[str, tuple[structs.Passage, ...]]]  # (query, what it found)


class Reading:
  """How requests are read and conversations are continued, for one tokenizer. stops: those that requests may use."""

  def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]):
    self.tokenizer, self.stops, self.appender = tokenizer, tuple(stops), Appender(tokenizer)
    self.served = Served("", tokenizer, tokenizer.vocab_size, UNLIMITED, UNLIMITED, 1, served.reader(tokenizer))


@dataclasses.dataclass
class _Record:
  """A conversation, and the messages with which a request must begin to continue it."""

  talk: structs.Conversation
  kind: str
  keys: list[Key]
  tools: str
  begun: Searches  # before its first turn

  @property
  def ids(self) -> list[int]:
    return [i for segment in self.talk.segments for i in segment.ids]


class Session:
  """The requests of one episode. All methods must be called on the episode's event loop.

  Args:
    split: True: a request that continues no conversation begins a new one. False: it is refused, and the episode fails.

  Attributes:
    ended: "budget" if a request was refused because the context was full, "requests" if because of `max_requests`.
    failure: the reason why the episode cannot be trained on; empty if there is none.
    crashed: an error of this library, which must end the run.
    rewrites: what was rewritten, one line for each conversation after the first.
    requests, calls, searches: counts so far: replies, tool calls in the replies, searches of the run's index.
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
    self._found: Searches = []  # since the last turn
    self._turn = asyncio.Lock()  # requests of an episode are answered one after the other
    self._tasks: set[asyncio.Task[Any]] = set()
    self._missed: dict[bytes, asyncio.Task[Any]] = {}  # requests whose client did not wait for the answer
    self._over = False

  # ---- requests ------------------------------------------------------------------------------------------------------

  async def reply(self, request: Asked, raw: bytes) -> Piece:
    """The policy's reply to a request. A client that did not wait for it, and sends `raw` again, gets the same reply.

    Raises:
      Refused: the episode is over, its limits are reached, or its history was rewritten.
    """
    return await self._own(self._reply(request), raw)

  async def search(self, query: str, k: int | None, raw: bytes) -> tuple[structs.Passage, ...]:
    """Searches the run's index for k passages (None: config.retrieval.top_k), best first. `raw`: see `reply`.

    They are stored with the new tokens of the next request.

    Raises:
      Refused: the search failed, and with it the episode; or the episode is over.
    """
    return await self._own(self._search(query, k), raw)

  async def _own(self, work: Any, raw: bytes) -> Any:
    """Awaits the work as a task of this session, which `close` can cancel; or the task of an equal, missed request."""
    if self._over:
      work.close()
      raise Refused(410, "this episode is over.", code=OVER)
    if (task := self._missed.pop(raw, None)) is not None:
      work.close()
    else:
      task = asyncio.ensure_future(work)
      self._tasks.add(task)
      task.add_done_callback(self._done)
    try:
      # If the client disconnects, the task continues: the conversation then still has the whole reply.
      return await asyncio.shield(task)
    except asyncio.CancelledError:
      if task.cancelled():
        raise Refused(410, "this episode is over.", code=OVER) from None
      self._missed[raw] = task
      raise

  def _done(self, task: asyncio.Task[Any]) -> None:
    """Any error but a refusal is an error of this library, even if the client has disconnected."""
    self._tasks.discard(task)
    if not task.cancelled() and not isinstance(error := task.exception(), Refused | None):
      self.crashed = self.crashed or error

  async def _search(self, query: str, k: int | None) -> tuple[structs.Passage, ...]:
    try:
      result = tuple(await self._tools.search(query, k))
    except structs.ToolFailed as failure:
      raise self._failed(failure) from None
    self._found.append((query, result))
    self.searches += 1
    return result

  async def _reply(self, request: Asked) -> Piece:
    async with self._turn:
      if self._over:
        raise Refused(410, "this episode is over.", code=OVER)
      if self.requests >= self._max_requests:
        self.ended = "requests"
        message = f"the episode has used all its {self.requests} requests (config.switches.max_requests)."
        raise Refused(400, message, code="too_many_requests")
      stops = (*request.stops, *request.tools.ends)
      if unknown := [stop for stop in stops if stop not in self._reading.stops]:
        message = f"stop={unknown[0]!r}: the run's engine does not know it. Add it to config.switches.stops."
        raise Refused(400, message, param="stop")
      record = self._find_record(request)
      most = request.sampling.max_new_tokens if request.limited else None
      inside = thinks(request, self._reading.tokenizer)
      outside = lambda text: call_texts.outside(text)[1] == len(text)  # in a thought, a call's mark ends nothing
      ends = lambda text: any(stop in text for stop in request.stops) or outside(structs.THINK * inside + text)
      try:
        segment = await record.talk.generate(stop=stops, max_new_tokens=most, ends=ends)
      except structs.ToolFailed as failure:  # of a server's model; a client that asks again would find it generating
        self._over = True
        raise self._failed(failure) from None
      if not segment.ids:
        self._forget(record)
        raise self._full()
      self.requests += 1
      return self._as_reply(record, request, segment, inside)

  def _as_reply(self, record: _Record, asked: Asked, segment: structs.Segment, inside: bool) -> Piece:
    """The reply as the client sees it. The record then expects this reply in the next request's history."""
    tokenizer = self._reading.tokenizer
    text = TextStream(tokenizer, asked.stops, keep_stop=asked.keep_stop, ends=asked.tools.ends, thinks=inside)
    text.feed(segment.ids)
    finish = "length" if segment.stop in structs.TRUNCATED else "stop"
    stop = text.stop if text.stop in asked.stops else None
    piece = Piece(0, text.piece(last=True), segment.ids, segment.logprobs, finish, stop)
    if asked.kind == CHAT:
      said = Replies(asked, MODEL, None, tokenizer).whole([piece])["choices"][0]["message"]
      begun = "" if asked.tools.forced else asked.opened  # the message already contains the beginning of a forced call
      self.calls += len(said.get("tool_calls", ()))
      said["content"] = begun + (said["content"] or "")
      record.keys = [*map(_key, asked.messages), *map(_key, formats.messages([said]))]
    return piece

  # ---- conversations -------------------------------------------------------------------------------------------------

  def _find_record(self, asked: Asked) -> _Record:
    """The conversation that the request continues, or a new one. The request's new tokens are appended to it."""
    why = []
    for record in sorted(self._records, key=lambda one: -len(one.keys)):
      new = self._new(record, asked)
      if isinstance(new, str):
        why.append(new)
        continue
      query, passages = _joined(self._found)
      if not record.talk.observe(new, query=query, found=passages):
        raise self._full()
      self._found = []
      return record
    if self._records:
      self.rewrites.append(why[0])
      if not self._split:
        self.failure = self.failure or f"the program rewrote its conversation: {why[0]}"
        message = f"{why[0]} A conversation may only grow (config.switches.rewritten='split' trains on both)."
        raise Refused(400, message, param="messages", code="history_rewritten")
    talk = self._policy.start(list(asked.prompts[0]))
    self._records.append(_Record(talk, asked.kind, [], json.dumps(asked.tools.shown), self._found))
    self._found = []
    return self._records[-1]

  def _forget(self, record: _Record) -> None:
    """Drops a conversation whose first request left no room for a reply. A shorter request can then begin one."""
    if len(record.talk.segments) == 1:
      self._records.remove(record)
      self._found = record.begun

  def _new(self, record: _Record, request: Asked) -> list[int] | str:
    """The token ids that a request appends to a conversation; or a text: why it does not continue the conversation."""
    if request.kind != record.kind:
      return "the program sends chat requests and text requests in one conversation."
    if request.kind != CHAT:
      return self._text_after(record, request.prompts[0])
    if json.dumps(request.tools.shown) != record.tools:
      return "the tools differ from those at the conversation's beginning."
    keys = [_key(message) for message in request.messages]
    for number, (old, new_key) in enumerate(zip(record.keys, keys)):
      if old != new_key:
        return f"messages[{number}] ({old[0]}) was {_shown(old)} and is now {_shown(new_key)}."
    if len(keys) < len(record.keys):
      return f"messages[{len(keys)}] ({record.keys[len(keys)][0]}) and the later ones are missing."
    ended = record.talk.segments[-1].stop == "eos"
    try:
      new = self._reading.appender.after(
        self._short(request.messages, record), len(record.keys), request.tools.shown, ended=ended
      )
    except Rewritten as error:
      return f"{error} (prompting.markers='own' only appends)."
    except ValueError as error:
      return " ".join(str(error).split())
    return [*new, *self._reading.tokenizer.encode(request.opened)]

  def _short(self, messages: Sequence[Mapping[str, Any]], record: _Record) -> list[Mapping[str, Any]]:
    """The messages; a new one that is longer than the room is cut, and is too long still."""
    room, encode, kept = max(record.talk.room(), 0), self._reading.tokenizer.encode, len(record.keys)
    short = lambda text: beginnings.for_ids(text, tokens=room, encode=encode)
    return [*messages[:kept], *({**message, "content": short(message["content"])} for message in messages[kept:])]

  def _text_after(self, record: _Record, prompt: Sequence[int]) -> list[int] | str:
    """`_new` for a text request: it must begin with the conversation's tokens, or with their text."""
    ids, tokenizer = record.ids, self._reading.tokenizer
    if list(prompt[: len(ids)]) == ids:
      return [*prompt[len(ids) :]]
    text, now = tokenizer.decode(ids), tokenizer.decode(prompt)
    if now.startswith(text):
      # The prompt's own ids follow the text, since they may be control tokens. The boundary may lie inside a token.
      left, place = len(text.encode()), 0
      while left > 0 and place < len(prompt):
        left, place = left - len(tokenizer.token_bytes(prompt[place])), place + 1
      cut = tokenizer.token_bytes(prompt[place - 1])[left:].decode(errors="replace") if left < 0 else ""
      new = [*tokenizer.encode(cut), *prompt[place:]]
      ended = not left and ids[-1] in tokenizer.eos_ids and new[:1] == ids[-1:]  # the prompt names it, too
      return new[1:] if ended else new
    same = next((i for i, (a, b) in enumerate(zip(text, now)) if a != b), min(len(text), len(now)))
    return f"the text from character {same} on was {text[same : same + 40]!r} and is now {now[same : same + 40]!r}."

  def _failed(self, failure: structs.ToolFailed) -> Refused:
    self.failure = self.failure or str(failure)
    return Refused(502, str(failure))

  def _full(self) -> Refused:
    self.ended = "budget"
    message = "the conversation has no room for these messages and a reply (config.rollout.context, reserve)."
    return Refused(400, message, param="messages", code="context_length_exceeded")

  # ---- the end -------------------------------------------------------------------------------------------------------

  async def close(self, *, cancel: bool = False) -> None:
    """Ends the session: later requests are refused.

    Args:
      cancel: False: waits for running requests. True: cancels them; then `episode` must not be called.
    """
    self._over = True
    for task in list(self._tasks) if cancel else ():
      task.cancel()
    await asyncio.gather(*self._tasks, return_exceptions=True)

  def episode(self, facts: Mapping[str, Any], example: Sequence[Mapping[str, str]]) -> structs.Episode:
    """The finished episode with these facts. `example`: its prompt if the program sent no request."""
    if not self._records:
      return dataclasses.replace(self._policy.start(example).end(self.ended or "silent"), facts=facts)
    segments, starts = [], []
    for record in self._records:
      starts.append(len(segments))
      prompt, *rest = record.talk.segments
      query, passages = _joined(record.begun)
      segments += [dataclasses.replace(prompt, query=query, found=passages), *rest]
    ended = [record.talk.end(self.ended or None) for record in self._records]
    return dataclasses.replace(ended[-1], segments=tuple(segments), starts=tuple(starts[1:]), facts=facts)


def _joined(searches: Searches) -> tuple[str | None, tuple[structs.Passage, ...] | None]:
  """(queries, passages) of these searches."""
  if not searches:
    return None, None
  return "; ".join(query for query, _ in searches), tuple(passage for _, found in searches for passage in found)


def _key(message: Mapping[str, Any]) -> Key:
  """The parts of a message that must stay the same: its role, its stripped text, and names and arguments of its calls.

  The ids of calls and the formatting of their arguments may change: clients replace both.
  """
  calls = tuple(
    (call["function"]["name"], json.dumps(call["function"]["arguments"], sort_keys=True))
    for call in message.get("tool_calls") or ()
  )
  return message["role"], message["content"].strip(), calls


def _shown(key: Key) -> str:
  text = key[1] + "; ".join(f"{name}({arguments})" for name, arguments in key[2])
  return repr(text if len(text) <= 60 else f"{text[:30]} … {text[-25:]}")
