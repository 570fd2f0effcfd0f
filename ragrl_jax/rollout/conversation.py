"""Conversations: what a recipe's coroutine talks to. Tokens are the record, text is a view of them.

They live on the event loop's thread. A turn is handed to the engine's thread through a queue, and awaited; nothing here
waits in any other way, and no lock is held.
"""

import asyncio
import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax import structs
from ragrl_jax.engine import engine as engine_lib
from ragrl_jax.engine import programs, rows
from ragrl_jax.rollout.dispatch import Dispatch
from ragrl_jax.structs import ENVIRONMENT, MODEL, Passage, Segment

BUDGET = "budget"


def key_of(seed: int, step: int, prompt_index: int, sample: int, conversation: int) -> tuple[int, int]:
  """What a conversation's random numbers are drawn with: two int32, the same on every machine."""
  text = struct.pack("<5q", seed, step, prompt_index, sample, conversation)
  return struct.unpack("<2i", hashlib.blake2b(text, digest_size=8).digest())


class TextCache:
  """Token ids of texts and prompts that come again and again: the samples of a group read the same ones."""

  def __init__(self, tokenizer: Any, size: int = 4096):
    self._tokenizer, self._size, self._known = tokenizer, size, {}

  def encode(self, text: str) -> tuple[int, ...]:
    return self._get(text, lambda: self._tokenizer.encode(text))

  def render(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
    key = tuple(tuple(sorted(message.items())) for message in messages)
    return self._get(key, lambda: self._tokenizer.render(messages))

  def _get(self, key, make):
    if key not in self._known:
      if len(self._known) >= self._size:
        del self._known[next(iter(self._known))]
      self._known[key] = tuple(make())
    return self._known[key]


class Policy:
  """The model as one episode meets it; see `structs.Policy`.

  Args:
    engine: draws the tokens.
    dispatch: the way to the engine's thread.
    texts: encodes, with memory.
    keys: (seed, step, prompt index, sample).
    sampling: how tokens are drawn; temperature 0 is greedy.
    group: of the samples that begin with the same prompt.
    reserve: tokens that an observation must leave for the next turn.
  """

  def __init__(
    self,
    engine: engine_lib.Engine,
    dispatch: Dispatch,
    texts: TextCache,
    *,
    keys: tuple[int, int, int, int],
    sampling: structs.Sampling,
    group: rows.Group | None,
    reserve: int,
    example_id: str = "",
  ):
    self.tokenizer = engine.tokenizer
    self.engine, self.dispatch, self.texts = engine, dispatch, texts
    self.keys, self.sampling, self.reserve, self.example_id = keys, sampling, reserve, example_id
    self._group = group
    self.conversations: list[Conversation] = []

  def start(self, prompt: Sequence[Mapping[str, str]] | Sequence[int]) -> "Conversation":
    """A new conversation from chat messages or from token ids.

    Raises:
      ValueError: an empty prompt.
    """
    messages = len(prompt) > 0 and isinstance(prompt[0], Mapping)
    ids = self.texts.render(prompt) if messages else tuple(int(i) for i in prompt)
    if not ids:
      raise ValueError("policy.start() got an empty prompt: the first token is drawn after a last one of the prompt.")
    group, self._group = self._group, None  # only an episode's first conversation begins as its group's others do
    return self._open([Segment(ENVIRONMENT, ids, self.tokenizer.decode(ids))], group)

  def _open(self, segments: list[Segment], group: rows.Group | None = None) -> "Conversation":
    number = len(self.conversations)
    ids = [i for segment in segments for i in segment.ids]
    talk = rows.Talk(ids, key_of(*self.keys, number), family=self, nested=number > 0, group=group)
    self.conversations.append(Conversation(self, talk, segments))
    if number == 1:
      self.conversations[0]._talk.nested = True
    return self.conversations[-1]

  def close(self) -> None:
    """Ends what the episode left open."""
    for conversation in self.conversations:
      conversation.close()
    if self._group is not None:
      self.dispatch.post(self.engine.leave, self._group)
      self._group = None

  def failed(self, message: str) -> structs.Episode:
    """The episode that a tool's failure leaves: what was said until then."""
    segments = self.conversations[0].segments if self.conversations else ()
    return self.episode(segments, "failed", {}, failure=message)

  def episode(self, segments, ended: str, facts: Mapping[str, Any], failure: str = "") -> structs.Episode:
    _, _, prompt_index, sample = self.keys
    return structs.Episode(
      tuple(segments),
      facts=dict(facts),
      version=self.engine.version,
      ended=ended,
      failure=failure,
      prompt_index=prompt_index,
      sample=sample,
      example_id=self.example_id,
    )


class Conversation:
  """See `structs.Conversation`. Made by `Policy.start` and by `fork`."""

  def __init__(self, policy: Policy, talk: rows.Talk, segments: list[Segment]):
    self._policy, self._talk, self._segments = policy, talk, segments
    self._closed = self._full = False

  @property
  def segments(self) -> tuple[Segment, ...]:
    return tuple(self._segments)

  @property
  def tokens(self) -> tuple[int, ...]:
    """All ids so far."""
    return tuple(self._talk.ids)

  async def generate(
    self, *, stop: Sequence[str] = (), max_new_tokens: int | None = None, greedy: bool = False
  ) -> Segment:
    """Samples until a stop string is completed (kept whole), EOS, the turn's budget or the end of the context.

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
    if (room := self.room()) < 1:
      self._full = True
      return Segment(MODEL, (), "", stop=BUDGET)
    answer = asyncio.get_running_loop().create_future()
    turn = engine_lib.Turn(
      self._talk,
      min(budget, room),
      policy.engine.stops.mask(tuple(stop)),
      0.0 if greedy else sampling.temperature,
      sampling.top_k,
      sampling.top_p,
      tag=answer,
    )
    self._talk.busy = True
    policy.dispatch.post(policy.engine.submit, turn)
    await answer
    self._full = turn.stop == programs.FULL and room <= budget
    name = "length" if turn.stop == programs.FULL else policy.engine.stops.names[turn.stop]
    self._segments.append(
      Segment(MODEL, tuple(turn.ids), policy.tokenizer.decode(turn.ids), logprobs=tuple(turn.logprobs), stop=name)
    )
    return self._segments[-1]

  def observe(self, text: str, *, query: str | None = None, found: Sequence[Passage] | None = None) -> bool:
    """Appends the environment's text. False, and nothing appended, when no room is left for it and a turn."""
    self._check_idle("observe")
    ids = self._policy.texts.encode(text)
    if len(ids) + self._policy.reserve > self.room():
      self._full = True
      return False
    self._talk.ids.extend(ids)
    found = None if found is None else tuple(found)
    self._segments.append(Segment(ENVIRONMENT, ids, text, query=query, found=found))
    return True

  def room(self) -> int:
    """Tokens that still fit into the context."""
    return self._policy.engine.context - len(self._talk.ids)

  def fork(self, at: int) -> "Conversation":
    """A new conversation over the first `at` tokens of this one, which the cache keeps for it.

    Raises:
      ValueError: `at` is outside of 1 … number of tokens.
    """
    self._check_idle("fork")
    if not 1 <= at <= len(self._talk.ids):
      raise ValueError(f"fork(at={at}): it must be between 1 and the conversation's {len(self._talk.ids)} tokens.")
    child = self._policy._open(_first(self._segments, at, self._policy.tokenizer))
    child._talk.shared = min(at - 1, self._talk.settled)
    self._policy.dispatch.post(self._policy.engine.fork, child._talk, self._talk)
    return child

  def end(self, why: str | None = None, **facts: Any) -> structs.Episode:
    """Closes it. `why` defaults to "budget" if the context is full, else to the last generation's stop."""
    self._check_idle("end")
    self.close()
    said = [segment for segment in self._segments if segment.owner == MODEL]
    why = why or (BUDGET if self._full else said[-1].stop if said else "")
    return self._policy.episode(self._segments, why, facts)

  def close(self) -> None:
    if not self._closed:
      self._closed = True
      self._policy.dispatch.post(self._policy.engine.close, self._talk)

  def _check_idle(self, what: str) -> None:
    if self._closed:
      raise ValueError(f"{what}() on a conversation that has ended: start or fork another one.")
    if self._talk.busy:
      raise ValueError(f"{what}() on a conversation that is generating: await its generate() first.")


def _first(segments: Sequence[Segment], at: int, tokenizer: Any) -> list[Segment]:
  """The segments of the first `at` tokens; the last one may be cut."""
  out = []
  for segment in segments:
    if at <= 0:
      break
    if len(segment.ids) > at:
      ids = segment.ids[:at]
      segment = Segment(segment.owner, ids, tokenizer.decode(ids), logprobs=segment.logprobs[:at])
    out.append(segment)
    at -= len(segment.ids)
  return out
