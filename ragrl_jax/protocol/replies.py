"""Responses of an OpenAI-compatible server: complete replies, and the chunks of streamed replies."""

import codecs
import dataclasses
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax.prompting.tokenizer import Tokenizer
from ragrl_jax.protocol.requests import CHAT, Asked, ToolCall
from ragrl_jax.structs import THINK, THOUGHT


@dataclasses.dataclass(frozen=True)
class Piece:
  """A part of a reply.

  Attributes:
    index: index of the reply among all replies to the request.
    text: new text.
    ids, logprobs: new tokens and their log-probabilities.
    finish: why the reply ended, "stop" or "length"; empty if it has not ended.
    stop: the client's stop string that ended the reply, if one did.
  """

  index: int
  text: str
  ids: tuple[int, ...]
  logprobs: tuple[float, ...]
  finish: str = ""
  stop: str | None = None


class Replies:
  """The replies to one request, as JSON.

  Args:
    version: the version of the weights; None omits it from the reply.
  """

  def __init__(self, request: Asked, name: str, version: int | None, tokenizer: Tokenizer):
    self._asked, self._tokenizer = request, tokenizer
    self._chat = request.kind == CHAT
    self._head = dict(
      id=f"{'chatcmpl' if self._chat else 'cmpl'}-{secrets.token_hex(12)}",
      created=int(time.time()),
      model=name,
      system_fingerprint=None if version is None else f"version-{version}",
    )
    number = len(request.prompts) * request.n
    inside = thinks(request, tokenizer)
    self._held = [_Held(request, inside) for _ in range(number)]
    self._begun: set[int] = set()
    self._read = [_Read() for _ in range(number)]
    self._tokens = 0

  def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
    """The complete response, from all pieces of all replies."""
    self._tokens = sum(len(piece.ids) for piece in pieces)
    choices = []
    for index in range(len(self._held)):
      reply_pieces = [piece for piece in pieces if piece.index == index]
      merged = Piece(
        index,
        "".join(piece.text for piece in reply_pieces),
        tuple(i for piece in reply_pieces for i in piece.ids),
        tuple(x for piece in reply_pieces for x in piece.logprobs),
        reply_pieces[-1].finish,
        reply_pieces[-1].stop,
      )
      choices.append(self._choice(merged))
    kind = "chat.completion" if self._chat else "text_completion"
    return {**self._head, "object": kind, "choices": choices, **self._prompt_ids(), "usage": self._usage()}

  def events(self, piece: Piece) -> list[dict[str, Any]]:
    """The chunks of one piece."""
    self._tokens += len(piece.ids)
    if not self._chat:
      return [self._chunk(self._choice(piece))]
    chunks, state = [], self._held[piece.index]
    if piece.index not in self._begun:
      self._begun.add(piece.index)
      first = dict(index=piece.index, delta=dict(role="assistant", content=""), logprobs=None, finish_reason=None)
      chunks.append(self._chunk(first) | self._prompt_ids())
    text = state.feed(piece.text, last=bool(piece.finish))
    choice = dict(index=piece.index, delta=dict(content=text) if text else {}, **self._of_tokens(piece))
    chunks.append(self._chunk(choice | dict(finish_reason=None)))
    if piece.finish:
      delta: dict[str, Any] = {}
      if state.calls:
        delta = dict(tool_calls=[dict(index=i) | one for i, one in enumerate(map(_call, state.calls))])
      ended = dict(index=piece.index, delta=delta, logprobs=None, **_ended(piece, bool(state.calls)))
      chunks.append(self._chunk(ended))
    return chunks

  def usage_chunk(self) -> dict[str, Any]:
    """The last chunk of a stream, with the token counts. Only clients that ask for the counts get it."""
    return {**self._chunk(None), "usage": self._usage()}

  def _chunk(self, choice: Mapping[str, Any] | None) -> dict[str, Any]:
    kind = "chat.completion.chunk" if self._chat else "text_completion"
    return {**self._head, "object": kind, "choices": [] if choice is None else [choice]}

  def _usage(self) -> dict[str, int]:
    prompt = sum(map(len, self._asked.prompts))
    return dict(prompt_tokens=prompt, completion_tokens=self._tokens, total_tokens=prompt + self._tokens)

  def _prompt_ids(self) -> dict[str, Any]:
    return dict(prompt_token_ids=self._asked.prompts[0]) if self._chat and self._asked.token_ids else {}

  def _choice(self, piece: Piece) -> dict[str, Any]:
    """A choice of a complete response, or of a chunk of a text completion."""
    choice: dict[str, Any] = dict(index=piece.index, **self._of_tokens(piece))
    if not self._chat:
      if self._asked.token_ids:
        choice["prompt_token_ids"] = self._asked.prompts[piece.index // self._asked.n]
      return choice | dict(text=piece.text, **_ended(piece, False))
    state = self._held[piece.index]
    text = state.feed(piece.text, last=True)
    message: dict[str, Any] = dict(role="assistant", content=text, refusal=None)
    if state.calls:
      message |= dict(content=text or None, tool_calls=[*map(_call, state.calls)])
    return choice | dict(message=message, **_ended(piece, bool(state.calls)))

  def _of_tokens(self, piece: Piece) -> dict[str, Any]:
    """Log-probabilities and token ids, if the client asked for them."""
    result: dict[str, Any] = dict(logprobs=None)
    if self._asked.logprobs:
      data = [self._tokenizer.token_bytes(token) for token in piece.ids]
      texts = [one.decode(errors="replace") for one in data]
      if self._chat:
        entries = zip(texts, piece.logprobs, data)
        content = [dict(token=t, logprob=x, bytes=list(b), top_logprobs=[]) for t, x, b in entries]
        result["logprobs"] = dict(content=content, refusal=None)
      else:
        offsets = [self._read[piece.index].feed(one) for one in data]
        result["logprobs"] = dict(tokens=texts, token_logprobs=piece.logprobs, top_logprobs=None, text_offset=offsets)
    if self._asked.token_ids:
      result["token_ids"] = piece.ids
    return result


class _Read:
  """Counts the characters of a reply, whose tokens may begin or end within a character."""

  def __init__(self):
    self._decoder, self._length = codecs.getincrementaldecoder("utf-8")(errors="replace"), 0

  def feed(self, token: bytes) -> int:
    """The offset of the token in the reply's text, in characters."""
    at = self._length
    self._length += len(self._decoder.decode(token))
    return at


class _Held:
  """Buffers a reply's text from the first position where a tool call may begin, and parses calls when the reply ends.

  A forced call begins in the prompt, so its whole reply is buffered. A thought may begin there, too.

  Args:
    inside: as `thinks`.

  Attributes:
    calls: the calls of the reply; [] before its end.
  """

  def __init__(self, request: Asked, inside: bool):
    self._tools = request.tools
    self._text = request.tools.forced or THINK * inside
    self._given = 0 if request.tools.forced else len(self._text)
    self.calls: list[ToolCall] = []

  def feed(self, text: str, *, last: bool) -> str:
    """Adds text; returns the new text that is certainly not part of a tool call."""
    if not self._tools.shown:
      return text
    self._text += text
    if last:
      before, self.calls = self._tools.calls(self._text)
      return "" if self.calls and self._tools.forced else before[self._given :]
    end = 0 if self._tools.forced else self._tools.begin(self._text)
    sendable, self._given = self._text[self._given : end], end
    return sendable


def thinks(request: Asked, tokenizer: Tokenizer) -> bool:
  """Whether a chat's prompt ends inside a thought, which the template or the message to continue has opened.

  False if no tool can be called, since only calls depend on it, and if a call is forced.
  """
  if not request.tools.shown or request.tools.forced:
    return False
  last = 32 + len(request.opened.encode())  # a token has a byte or more; a long chat is not decoded for its end
  prompt = tokenizer.decode(request.prompts[0][-last:]).removesuffix(request.opened)
  turn = THINK * prompt.rstrip().endswith(THINK) + request.opened
  return turn.rfind(THINK) > turn.rfind(THOUGHT)


def _call(call: ToolCall) -> dict[str, Any]:
  function = dict(name=call.name, arguments=call.arguments)
  return dict(id=f"call_{secrets.token_hex(12)}", type="function", function=function)


def _ended(piece: Piece, called: bool) -> dict[str, Any]:
  # A reply that was cut off after a call may have been about to make another one: "length" says so.
  finish = "tool_calls" if called and piece.finish != "length" else piece.finish
  return dict(finish_reason=finish or None, stop_reason=piece.stop)
