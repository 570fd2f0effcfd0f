"""Lets a model behind a server replace the engine: takes the messages of conversations, and answers their turns.

Conversations do not change (`conversation.py`). A local tokenizer makes their ids, to count and cut texts. The server
gets text, and its answers are encoded again.
"""

import asyncio
import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import Any

from ragrl_jax.chat.client import CachedClient, Completion
from ragrl_jax.core.text import beginnings
from ragrl_jax.engine import lanes
from ragrl_jax.engine.messages import Group, Open, Turn, TurnEnded
from ragrl_jax.prompting import chat
from ragrl_jax.prompting.marked import MarkedTokenizer
from ragrl_jax.structs import ToolFailed

CHAT, CONTINUE, COMPLETIONS = "chat", "continue", "completions"


@dataclasses.dataclass(frozen=True)
class Server:
  """A server, and the form of its requests.

  Attributes:
    chat: the client, which caches the answers.
    protocol: CHAT, CONTINUE or COMPLETIONS (config.endpoint.protocol).
    context: most tokens of a conversation, counted by the tokenizer.
    limit: name of the request's field for the length of a turn.
    omit: fields that are not sent, of "temperature", "top_p" and "stop". The answer is always cut at stop strings.
    concurrency: most calls at the same time.
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
  """Calls of an episode, and the server's token counts; None if the server did not report one of them."""

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
  """The stop strings of a recipe. It replaces `engine.stops.Stops`, which needs a vocabulary."""

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
  """An `engine_client.Client` for one episode. Nothing here is a JAX program.

  Args:
    tokenizer: of the conversations; a MarkedTokenizer for chats.
    gate: limits the calls of all episodes of a run.
  """

  def __init__(self, server: Server, tokenizer: Any, stops: NamedStops, gate: asyncio.Semaphore):
    self.tokenizer, self.stops, self.context, self.version = tokenizer, stops, server.context, 0
    self.usage, self._server, self._gate = Usage(), server, gate
    self.numbers, self._ids, self._keys = itertools.count(), {}, {}

  def open(self, message: Open) -> None:
    """Opens a conversation. ValueError if it begins within the assistant's turn and the protocol cannot continue it."""
    self._ids[message.conversation], self._keys[message.conversation] = list(message.ids), message.key
    if self._server.protocol == CHAT and self.tokenizer.messages(message.ids)[-1]["content"]:
      raise ValueError(
        "this recipe continues the model's text, but a chat server always begins a new turn: use a server that "
        "continues texts (config.endpoint.protocol='continue', as in vLLM and SGLang, or 'completions')."
      )

  def submit(self, turn: Turn) -> "asyncio.Task[TurnEnded]":
    """Starts a turn; returns the future of its result."""
    return asyncio.get_running_loop().create_task(self._turn(turn))

  def close(self, conversation: int) -> None:
    """Forgets a conversation."""
    self._ids.pop(conversation, None)

  def leave(self, group: Group) -> None:
    """Does nothing, because the samples of a group share nothing here."""

  async def _turn(self, turn: Turn) -> TurnEnded:
    ids, server = self._ids[turn.conversation], self._server
    ids += turn.new_ids  # in place: the environment's text since the last turn
    accept = self.stops.accepted(turn.accept)
    question, open_text, fields = self._question(ids)
    sampling: dict[str, Any] = {server.limit: turn.budget, "temperature": turn.temperature, "stop": accept} | fields
    if turn.temperature:  # sampled at random: equal questions have different answers
      sampling |= dict(draw=(*self._keys[turn.conversation], len(ids)))
      sampling |= dict(top_p=turn.top_p) if turn.top_p < 1 else {}
      sampling |= dict(top_k=turn.top_k) if turn.top_k else {}  # a field of vLLM's and SGLang's
    # Some servers refuse an empty list of stop strings. Reasoning models refuse any temperature.
    sampling = {name: value for name, value in sampling.items() if name not in server.omit and value != []}
    async with self._gate:
      reply = await server.chat.ask(question, **sampling)
    self.usage.add(reply)
    text, stop = find_end(reply, accept, open_text)
    # The server's tokens are unknown, or belong to another vocabulary. Ours only count the text, and decode to it.
    text = beginnings.for_ids(text, self.context, self.tokenizer.encode)  # no limit of ours binds the server
    sampled = tuple(self.tokenizer.encode(text))
    ids += sampled
    logprobs = align_logprobs(reply.logprobs, text, sampled, self.tokenizer) if server.logprobs else ()
    if logprobs is None:
      raise ToolFailed("the server sent no log-probabilities that match its text (config.endpoint.logprobs).")
    # A turn that was cut off ends with "length", as in an engine when the budget is spent.
    number = lanes.FULL if stop == "" else self.stops.names.index(stop)
    return TurnEnded(turn.conversation, sampled, logprobs, number)

  def _question(self, ids: Sequence[int]) -> tuple[list[dict[str, str]] | str, str, dict[str, Any]]:
    """(the request's messages or text, the text of the assistant's open turn, further parameters)."""
    server, tokenizer = self._server, self.tokenizer
    if server.protocol == COMPLETIONS:
      fields: dict[str, Any] = dict(logprobs=1) if server.logprobs else {}
      text = write_ids(ids, tokenizer)
      return text, text, fields
    assert isinstance(tokenizer, MarkedTokenizer)
    messages, fields = tokenizer.messages(ids), dict(logprobs=True) if server.logprobs else {}
    open_text = messages[-1]["content"]
    if not open_text:  # a new turn of the assistant, which every chat server supports
      return messages[:-1], "", fields
    # These fields belong to vLLM and SGLang. Other servers refuse or ignore them, and would begin a new turn.
    return messages, open_text, fields | dict(continue_final_message=True, add_generation_prompt=False)


EOS, CUT = "eos", ""
TAIL = 64  # characters before a turn in which the turn's tag may have been opened
_CLOSING = re.compile(r"<(?:/(?P<tag>[\w:-]+)|\|end_(?P<name>\w+)\|)>")


def find_end(reply: Completion, accept: Sequence[str], opened: str = "") -> tuple[str, str]:
  """(text with its stop string, name of the stop). The name is EOS without one, and CUT if the text was cut off.

  Servers leave out the stop string, and few name it. So the stop is the first stop string in the text (if the server
  did not stop), or the one that the server names, or the closing tag of the tag that is open at the end, unless the
  server names a token, such as EOS.

  Args:
    opened: the text before this one in the same turn.
  """
  text = reply.content
  # First the text itself: the server may have ignored a stop string, or kept it in the text.
  # The stop that is complete first counts, as in the engine.
  first = min(((at + len(stop), stop) for stop in accept if (at := text.find(stop)) >= 0), default=None)
  if first is not None:
    end, stop = first
    return text[:end], stop
  if reply.cut:
    return text, CUT
  if reply.stop in accept:
    return text + reply.stop, reply.stop
  if reply.ended:
    return text, EOS
  # Prompts mention tags too, so only the last characters before the turn are searched (LEAR opens an answer there).
  open_places = {stop: _open_at(opened[-TAIL:] + text, stop) for stop in accept}
  stop = max((stop for stop in accept if open_places[stop] >= 0), key=lambda stop: open_places[stop], default=EOS)
  return (text, EOS) if stop == EOS else (text + stop, stop)


def _open_at(text: str, stop: str) -> int:
  """Position of the opening tag of this stop string, if the tag is open at the end of the text; else -1."""
  closing = _CLOSING.fullmatch(stop)
  if closing is None:
    return -1
  opening = f"<{closing['tag']}>" if closing["tag"] else f"<|begin_{closing['name']}|>"
  at = text.rfind(opening)
  return at if at > text.rfind(stop) else -1


def write_ids(ids: Sequence[int], tokenizer: Any) -> str:
  """The text of the ids, with the names of control tokens. A server of text completions continues it.

  BOS at the beginning is left out, because servers put it before a text. A control token that is spelled in a text
  gets a space inside, as in messages: the server could not tell it from the token.
  """
  names, bos = tokenizer.control_names, tokenizer.bos
  ids = ids[len(bos) :] if tuple(ids[: len(bos)]) == bos else ids
  parts = []
  for control, run in itertools.groupby(ids, key=lambda token: token in names):
    if control:
      parts += [names[token] for token in run]
    else:
      text = b"".join(map(tokenizer.token_bytes, run)).decode(errors="replace")
      parts.append(chat.disarmed_text(text, getattr(tokenizer, "control", ())))
  return "".join(parts)


def align_logprobs(
  server_tokens: Sequence[tuple[bytes, float]], text: str, ids: Sequence[int], tokenizer: Any
) -> tuple[float, ...] | None:
  """The log-probability of each of our tokens: the smallest one of the server's tokens that overlap it.

  A stop string that the server left out has log-probability 0. None if the server sent none, or if its tokens do not
  form the text.
  """
  server_bytes, own_bytes = b"".join(token for token, _ in server_tokens), text.encode()
  shared = min(len(server_bytes), len(own_bytes))
  if not server_tokens or server_bytes[:shared] != own_bytes[:shared]:
    return () if not text else None
  # By bytes, because the server's tokens and ours have different boundaries.
  by_byte = [value for token, value in server_tokens for _ in token][: len(own_bytes)]
  by_byte += [0.0] * (len(own_bytes) - len(by_byte))
  result, at = [], 0
  for token in ids:
    size = len(tokenizer.token_bytes(token))
    result.append(min(by_byte[at : at + size], default=0.0))
    at += size
  return tuple(result)
