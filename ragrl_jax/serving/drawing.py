"""Samples the replies to one request on the running engine, and yields them in pieces."""

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import AsyncGenerator, Callable, Sequence

from ragrl_jax.engine.lanes import FULL
from ragrl_jax.engine.messages import Group, Open, Turn
from ragrl_jax.protocol.replies import Piece
from ragrl_jax.protocol.requests import Asked
from ragrl_jax.protocol.text_stream import TextStream
from ragrl_jax.rollout import conversation
from ragrl_jax.serving.engine_thread import EngineThread, Slice


async def draw(thread: EngineThread, asked: Asked) -> AsyncGenerator[Piece, None]:
  """Yields the pieces of all replies as they are sampled. The last piece of a reply has the reason for its end.

  A reply leaves the engine at its own end, so more replies than the engine has rows follow each other, and nobody waits
  for a client that reads slowly.

  Close the iterator if you leave it early: then sampling stops after the current chunk.

  Raises:
    The error that ended the engine.
  """
  loop, heard = asyncio.get_running_loop(), asyncio.Queue()

  def tell(what: Piece | BaseException) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
      loop.call_soon_threadsafe(heard.put_nowait, what)

  tokenizer, left = thread.engine.tokenizer, 0
  opened: list[int] = []
  try:
    for place, prompt in enumerate(asked.prompts):
      group = Group(next(thread.numbers), asked.n) if asked.n > 1 else None
      for sample in range(asked.n):
        number = next(thread.numbers)
        thread.open(Open(number, prompt, conversation.key_of(asked.seed, 0, place, sample, 0), group=group))
        opened.append(number)
        text = TextStream(tokenizer, asked.stops, keep_stop=asked.keep_stop, ends=asked.tools.ends)
        over = functools.partial(thread.close_conversation, number)
        thread.submit(_turn(number, asked, thread), _Reply(place * asked.n + sample, text, asked.stops, tell, over))
        left += 1
    while left:
      piece = await heard.get()
      if isinstance(piece, BaseException):
        raise piece
      left -= bool(piece.finish)
      yield piece
  finally:
    for number in opened:
      thread.close_conversation(number)


def _turn(number: int, asked: Asked, thread: EngineThread) -> Turn:
  sampling = asked.sampling
  return Turn(
    number,
    budget=sampling.max_new_tokens,
    accept=thread.engine.stops.mask(()),  # EOS only: this thread finds the client's stop strings
    temperature=sampling.temperature,
    top_k=sampling.top_k,
    top_p=sampling.top_p,
  )


@dataclasses.dataclass
class _Reply:
  """Receives one reply's slices on the engine's thread, and makes pieces of them."""

  index: int
  text: TextStream
  stops: Sequence[str]
  tell: Callable[[Piece | BaseException], None]
  over: Callable[[], None]

  def __call__(self, heard: Slice | BaseException) -> bool:
    """See `engine_thread.Hear`."""
    if isinstance(heard, BaseException):
      self.tell(heard)
      return False
    kept, finish = self.text.feed(heard.ids), ""
    if self.text.stop is not None or (heard.stop is not None and heard.stop != FULL):
      finish = "stop"
    elif heard.stop is not None:
      finish = "length"
    if finish:
      self.over()
    text = self.text.piece(last=bool(finish))
    stop = self.text.stop if self.text.stop in self.stops else None
    self.tell(Piece(self.index, text, heard.ids[:kept], heard.logprobs[:kept], finish, stop))
    return not finish
