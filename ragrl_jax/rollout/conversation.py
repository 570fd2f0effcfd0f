"""Conversations: the interface for a recipe's coroutine. Tokens are the record, text is a view of them.

Conversations live on the event loop and keep their own list of tokens. The engine has a second list. The client
sends it the first tokens and, with every turn, the environment's tokens since the last turn. The event loop waits only
for the future of a turn, and holds no lock.
"""

import dataclasses
import functools
import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragrl_jax import structs
from ragrl_jax.core.text import beginnings
from ragrl_jax.engine import lanes
from ragrl_jax.engine.messages import Group, Open, Turn
from ragrl_jax.rollout.engine_client import Client
from ragrl_jax.structs import ENVIRONMENT, MODEL, Passage, Segment

BUDGET = "budget"
KNOWN = 1024  # texts, and prompts, whose ids are remembered: 340 MB of each if they have 8,192 tokens


def key_of(seed: int, step: int, prompt_index: int, sample: int, conversation: int) -> tuple[int, int]:
  """The key of a conversation's random numbers: two int32, the same on every machine."""
  # A hash, so that keys of neighbouring samples and steps are unrelated.
  text = struct.pack("<5q", seed, step, prompt_index, sample, conversation)
  return struct.unpack("<2i", hashlib.blake2b(text, digest_size=8).digest())


class TextCache:
  """Remembers the token ids of texts and prompts, because the samples of a group use the same ones."""

  def __init__(self, tokenizer: Any):
    self.encode = functools.lru_cache(KNOWN)(lambda text: tuple(tokenizer.encode(text)))
    self._render = functools.lru_cache(KNOWN)(lambda items: tuple(tokenizer.render([*map(dict, items)])))

  def render(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
    """Token ids of chat messages, computed once per prompt."""
    return self._render(tuple(tuple(message.items()) for message in messages))


class Policy:
  """The model's interface for one episode; see `structs.Policy`.

  Args:
    texts: encodes texts and remembers the ids.
    keys: (seed, step, prompt index, sample).
    group: the samples that begin with the same prompt.
    reserve: tokens that an observation must leave for the next turn.
  """

  def __init__(
    self,
    client: Client,
    texts: TextCache,
    *,
    keys: tuple[int, int, int, int],
    sampling: structs.Sampling,
    group: Group | None,
    reserve: int,
    example_id: str = "",
  ):
    self.tokenizer = client.tokenizer
    self.client, self.texts = client, texts
    self.keys, self.sampling, self.reserve, self.example_id = keys, sampling, reserve, example_id
    self._group = group
    self.conversations: list[Conversation] = []
    self._closed = False

  def start(self, prompt: Sequence[Mapping[str, str]] | Sequence[int]) -> "Conversation":
    """A new conversation from chat messages or from token ids. Raises ValueError if there are none."""
    messages = len(prompt) > 0 and isinstance(prompt[0], Mapping)
    if messages:  # a prompt beyond the context ends the episode in any case
      short = lambda text: beginnings.for_ids(text, self.client.context, self.texts.encode)
      prompt = [{**message, "content": short(message["content"])} for message in prompt]
    ids = self.texts.render(prompt) if messages else tuple(int(i) for i in prompt)
    if not ids:
      raise ValueError("policy.start() got an empty prompt: it must have at least one token.")
    group, self._group = self._group, None  # later conversations of the episode do not start with the group's prompt
    return self._open([Segment(ENVIRONMENT, ids, self.tokenizer.decode(ids))], group)

  def _open(self, segments: list[Segment], group: Group | None = None, parent: int | None = None) -> "Conversation":
    if self._closed:  # a task that the play left running
      raise ValueError("the episode has ended: a play must await its tasks before it returns.")
    ids = [i for segment in segments for i in segment.ids]
    first = self.conversations[0].number if self.conversations else None
    key = key_of(*self.keys, len(self.conversations))
    number = next(self.client.numbers)
    self.client.open(Open(number, tuple(ids), key, first, group, parent))
    self.conversations.append(Conversation(self, number, ids, segments))
    return self.conversations[-1]

  def close(self) -> None:
    """Closes the conversations that the episode left open."""
    self._closed = True
    for conversation in self.conversations:
      conversation.close()
    if self._group is not None:  # the episode opened no conversation, so the engine does not know that it has ended
      self.client.leave(self._group)
      self._group = None

  def failed(self, message: str) -> structs.Episode:
    """The episode of a failed tool: everything up to the failure."""
    segments = self.conversations[0].segments if self.conversations else ()
    return self.episode(segments, "failed", {}, failure=message)

  def episode(self, segments, ended: str, facts: Mapping[str, Any], failure: str = "") -> structs.Episode:
    """The finished episode: segments, facts, and the keys of its group and sample."""
    _, _, prompt_index, sample = self.keys
    return structs.Episode(
      tuple(segments),
      facts=dict(facts),
      version=self.client.version,
      ended=ended,
      failure=failure,
      prompt_index=prompt_index,
      sample=sample,
      example_id=self.example_id,
    )


class Conversation:
  """See `structs.Conversation`. `Policy.start` and `fork` make conversations."""

  def __init__(self, policy: Policy, number: int, ids: list[int], segments: list[Segment]):
    self.number = number  # the engine's number for it
    self._policy, self._ids, self._segments = policy, ids, segments
    self._unsent = 0  # the newest tokens, from the environment; they are sent with the next turn
    self._closed = self._full = self._generating = False

  @property
  def segments(self) -> tuple[Segment, ...]:
    """The segments so far, with owner and source."""
    return tuple(self._segments)

  @property
  def tokens(self) -> tuple[int, ...]:
    """All ids so far."""
    return tuple(self._ids)

  async def generate(
    self,
    *,
    stop: Sequence[str] = (),
    max_new_tokens: int | None = None,
    greedy: bool = False,
    ends: Callable[[str], bool] = lambda text: True,
  ) -> Segment:
    """See `structs.Conversation`. The end of the context ends a turn, too.

    Returns:
      The new segment. If there is no room for one token, an empty one whose stop is "budget"; it is not kept.

    Raises:
      ValueError: the conversation has ended or is already generating, or the stop string is unknown to the engine.
    """
    policy, sampling = self._policy, self._policy.sampling
    self._check_idle("generate")
    budget = sampling.max_new_tokens if max_new_tokens is None else max_new_tokens
    if budget < 1:
      raise ValueError(f"max_new_tokens={budget}: a turn needs at least 1 (config.rollout.max_new_tokens).")
    if (room := self.room()) < 1:  # no turn, so the engine is not told
      self._full = True
      return Segment(MODEL, (), "", stop=BUDGET)
    reply = Segment(MODEL, (), "")
    while not reply.stop or (reply.stop in stop and not ends(reply.text) and len(reply.ids) < min(budget, room)):
      turn = Turn(
        self.number,
        self.tokens[len(self._ids) - self._unsent :],
        budget=min(budget, room) - len(reply.ids),
        accept=policy.client.stops.mask(tuple(stop)),
        temperature=0.0 if greedy else sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        resumed=bool(reply.ids),  # a stop string may have begun in what `ends` passed over
      )
      self._unsent, self._generating = 0, True
      result = await policy.client.submit(turn)
      # A cancelled generate() does not get here. The engine finishes the turn, and the conversation can only be closed.
      self._generating = False
      self._check_idle("generate")  # a task that the play left running must not go on
      self._ids += result.ids
      # The context ended the turn, not max_new_tokens, so the episode ends with "budget".
      self._full = result.stop == lanes.FULL and room <= budget
      name = "length" if result.stop == lanes.FULL else policy.client.stops.names[result.stop]
      ids, logprobs = reply.ids + tuple(result.ids), reply.logprobs + tuple(result.logprobs)
      text, routes = policy.tokenizer.decode(ids), reply.routes + result.routes
      reply = Segment(MODEL, ids, text, logprobs=logprobs, stop=name, routes=routes)
    if reply.stop in stop and not ends(reply.text):  # the stop string used up the budget
      reply, self._full = dataclasses.replace(reply, stop="length"), room <= budget
    self._segments.append(reply)
    return reply

  def observe(
    self, text: str | Sequence[int], *, query: str | None = None, found: Sequence[Passage] | None = None
  ) -> bool:
    """See `structs.Conversation`."""
    self._check_idle("observe")
    if isinstance(text, str) and beginnings.for_ids(text, self.room(), self._policy.texts.encode) != text:
      self._full = True  # it has more tokens than there is room
      return False
    ids = self._policy.texts.encode(text) if isinstance(text, str) else tuple(int(i) for i in text)
    text = text if isinstance(text, str) else self._policy.tokenizer.decode(ids)
    # The prompt is never cut. Text that does not fit is not appended, and the episode can end.
    if len(ids) + self._policy.reserve > self.room():
      self._full = True
      return False
    self._ids += ids
    self._unsent += len(ids)
    # found=None: no search. found=(): a search that found nothing.
    found = None if found is None else tuple(found)
    self._segments.append(Segment(ENVIRONMENT, ids, text, query=query, found=found))
    return True

  def room(self) -> int:
    """Tokens that still fit into the context."""
    return self._policy.client.context - len(self._ids)

  def fork(self, at: int) -> "Conversation":
    """A conversation over the first `at` ≥ 1 tokens of this one, kept in the cache. ValueError if there are fewer."""
    self._check_idle("fork")
    if not 1 <= at <= len(self._ids):
      raise ValueError(f"fork(at={at}): it must be between 1 and the conversation's {len(self._ids)} tokens.")
    return self._policy._open(_first(self._segments, at, self._policy.tokenizer), parent=self.number)

  def end(self, reason: str | None = None, **facts: Any) -> structs.Episode:
    """Closes the conversation. `reason` defaults to "budget" if the context is full, else to the last turn's stop."""
    self._check_idle("end")
    self.close()
    model_segments = [segment for segment in self._segments if segment.owner == MODEL]
    # Order of reasons: the play's, a full context, the last turn's stop, "" if nothing was sampled.
    reason = reason or (BUDGET if self._full else model_segments[-1].stop if model_segments else "")
    return self._policy.episode(self._segments, reason, facts)

  def close(self) -> None:
    """Returns the conversation's cache row to the engine. A second call does nothing."""
    if not self._closed:
      self._closed = True
      self._policy.client.close(self.number)

  def _check_idle(self, what: str) -> None:
    if self._closed:
      raise ValueError(f"{what}() on a conversation that has ended: start or fork another one.")
    if self._generating:
      raise ValueError(f"{what}() on a conversation that is generating: await its generate() first.")


def _first(segments: Sequence[Segment], at: int, tokenizer: Any) -> list[Segment]:
  """The segments of the first `at` tokens; the last one may be cut."""
  # Segments of 4, 6 and 3 tokens, cut at 7: the first one whole, 3 tokens of the second, none of the third.
  result = []
  for segment in segments:
    if at <= 0:
      break
    if len(segment.ids) > at:
      ids = segment.ids[:at]
      width = len(segment.routes) // len(segment.ids)
      numbers = dict(logprobs=segment.logprobs[:at], routes=segment.routes[: width * at])
      segment = Segment(segment.owner, ids, tokenizer.decode(ids), **numbers)
    result.append(segment)
    at -= len(segment.ids)
  return result
