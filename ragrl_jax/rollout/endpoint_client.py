"""A model behind a server in the engine's place: it takes the messages of conversations and answers their turns.

Conversations stay as they are (`conversation.py`). Their ids are made by a tokenizer of ours, which counts and cuts;
the server is asked in text, and what it says is encoded again.
"""

import asyncio
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from ragrl_jax.chat.cached import CachedClient
from ragrl_jax.chat.client import Completion
from ragrl_jax.engine import lanes
from ragrl_jax.engine.messages import Group, Turn, TurnEnded
from ragrl_jax.prompting.marked import MarkedTokenizer
from ragrl_jax.rollout import server_text
from ragrl_jax.structs import ToolFailed

CHAT, CONTINUE, COMPLETIONS = "chat", "continue", "completions"
EOS = "eos"


@dataclasses.dataclass(frozen=True)
class Server:
  """How a server is asked.

  Attributes:
    chat: asks it, and keeps its answers.
    protocol: CHAT, CONTINUE or COMPLETIONS (config.endpoint.protocol).
    context: tokens of a conversation, by the tokenizer.
    limit: the request's name for the length of a turn.
    omit: of "temperature", "top_p", "stop": what is not sent. Stop strings are looked for in the answer in any case.
    logprobs: whether log-probabilities are asked for.
    concurrency: calls at the same time.
  """

  chat: CachedClient
  protocol: str
  context: int
  limit: str = "max_tokens"
  omit: Sequence[str] = ()
  logprobs: bool = False
  concurrency: int = 16


@dataclasses.dataclass
class Usage:
  """What an episode has asked of the server: calls, and the tokens that it counted; None once it did not say."""

  calls: int = 0
  tokens_in: int | None = 0
  tokens_out: int | None = 0

  # None stays None: a sum without one of its parts would look like a smaller bill.
  def add(self, reply: Completion) -> None:
    """Counts a call."""
    self.calls += 1
    for name in ("tokens_in", "tokens_out"):
      before, more = getattr(self, name), getattr(reply, name)
      setattr(self, name, None if before is None or more is None else before + more)


class NamedStops:
  """Stop strings by their names, as `engine.stops.Stops` for a model that is sampled here."""

  def __init__(self, strings: Sequence[str]):
    self.names = (*dict.fromkeys(strings), EOS)

  def mask(self, strings: Sequence[str]) -> int:
    """The strings as bits. ValueError for one that is not among the names."""
    if unknown := sorted(set(strings) - set(self.names)):
      raise ValueError(f"stop string {unknown[0]!r}: the recipe's stops are {', '.join(map(repr, self.names[:-1]))}.")
    return sum(1 << self.names.index(string) for string in set(strings))

  def accepted(self, mask: int) -> list[str]:
    """The strings of these bits."""
    return [name for number, name in enumerate(self.names) if mask >> number & 1]


class EndpointClient:
  """The engine of one episode. See `engine_client.EngineClient`; nothing here is a JAX program.

  Args:
    server: how it is asked.
    tokenizer: of the conversations; a MarkedTokenizer for chats.
    stops: all stop strings of the recipe.
    gate: of all episodes of a run: calls at the same time.

  Attributes:
    usage: what has been asked so far.
  """

  def __init__(self, server: Server, tokenizer: Any, stops: NamedStops, gate: asyncio.Semaphore):
    self.tokenizer, self.stops, self.context, self.version = tokenizer, stops, server.context, 0
    self.usage, self._server, self._gate = Usage(), server, gate
    self._numbers, self._ids, self._keys = itertools.count(), {}, {}

  def open(
    self,
    ids: Sequence[int],
    key: tuple[int, int],
    *,
    first: int | None = None,
    group: Group | None = None,
    parent: int | None = None,
  ) -> int:
    """Opens a conversation; returns its number.

    Raises:
      ValueError: it begins within the assistant's turn, which only a server that continues texts can continue.
    """
    del first, group, parent  # nothing is shared
    number = next(self._numbers)
    self._ids[number], self._keys[number] = list(ids), key
    if self._server.protocol == CHAT and self.tokenizer.messages(ids)[-1]["content"]:
      raise ValueError(
        "this recipe continues a text that has begun, and a chat's server begins a turn anew: take a server that "
        "continues (config.endpoint.protocol='continue', as vLLM and SGLang do, or 'completions')."
      )
    return number

  def submit(self, turn: Turn) -> "asyncio.Task[TurnEnded]":
    """Starts a turn; returns the future of its result."""
    return asyncio.get_running_loop().create_task(self._turn(turn))

  def close(self, conversation: int) -> None:
    """Forgets a conversation."""
    self._ids.pop(conversation, None)

  def leave(self, group: Group) -> None:
    """Nothing is shared by a group's samples."""

  async def _turn(self, turn: Turn) -> TurnEnded:
    ids, server = self._ids[turn.conversation], self._server
    ids += turn.new_ids  # in place: what the environment said since the last turn
    accept = self.stops.accepted(turn.accept)
    question, opened, more = self._question(ids)
    sampling: dict[str, Any] = {server.limit: turn.budget, "temperature": turn.temperature, "stop": accept} | more
    if turn.temperature:  # drawn at random: equal questions have different answers
      sampling |= dict(draw=(*self._keys[turn.conversation], len(ids)))
      sampling |= dict(top_p=turn.top_p) if turn.top_p < 1 else {}
      sampling |= dict(top_k=turn.top_k) if turn.top_k else {}  # a field of vLLM's and SGLang's
    # Some servers refuse an empty list of stop strings, and reasoning models any temperature.
    sampling = {name: value for name, value in sampling.items() if name not in server.omit and value != []}
    async with self._gate:
      reply = await server.chat.ask(question, **sampling)
    self.usage.add(reply)
    text, stop = server_text.ended(reply, accept, opened)
    # Their tokens are not known, or are of another vocabulary. Ours only count, and give the text back.
    said = tuple(self.tokenizer.encode(text))
    ids += said
    logprobs = server_text.of_tokens(reply.logprobs, text, said, self.tokenizer) if server.logprobs else ()
    if logprobs is None:
      raise ToolFailed("the server sent no log-probabilities, or not those of its text (config.endpoint.logprobs).")
    # A turn that was cut off ends as one whose budget is spent in an engine, "length".
    number = lanes.FULL if stop == "" else self.stops.names.index(stop)
    return TurnEnded(turn.conversation, said, logprobs, number)

  def _question(self, ids: Sequence[int]) -> tuple[list[dict[str, str]] | str, str, dict[str, Any]]:
    """(what the server is asked, what the assistant's open turn holds so far, further parameters)."""
    server, tokenizer = self._server, self.tokenizer
    if server.protocol == COMPLETIONS:
      more: dict[str, Any] = dict(logprobs=1) if server.logprobs else {}
      text = server_text.whole(ids, tokenizer)
      return text, text, more
    assert isinstance(tokenizer, MarkedTokenizer)
    messages, more = tokenizer.messages(ids), dict(logprobs=True) if server.logprobs else {}
    opened = messages[-1]["content"]
    if not opened:  # the assistant's turn begins anew, as every chat's server lets it
      return messages[:-1], "", more
    # vLLM's and SGLang's names. Others would begin a new turn after this message, and refuse the names or ignore them.
    return messages, opened, more | dict(continue_final_message=True, add_generation_prompt=False)
