"""Analyses a server's text: where it ends, its stop string, and the log-probabilities of our tokens in it."""

import itertools
import re
from collections.abc import Sequence
from typing import Any

from ragrl_jax.chat.client import Completion
from ragrl_jax.prompting import chat

EOS, CUT = "eos", ""
TAIL = 64  # characters before a turn in which the turn's tag may have been opened
_CLOSING = re.compile(r"<(?:/(?P<tag>[\w:-]+)|\|end_(?P<name>\w+)\|)>")


def ended(reply: Completion, accept: Sequence[str], opened: str = "") -> tuple[str, str]:
  """(text with its stop string, name of the stop). The name is EOS without one, and CUT if the text was cut off.

  Servers leave out the stop string, and few name it. So the stop is the first stop string in the text (if the server
  did not stop), or the one that the server names, or the closing tag of the tag that is open at the end.

  Args:
    reply: the server's answer.
    accept: the stop strings of the request.
    opened: the text before this one in the same turn.
  """
  text = reply.content
  # First the text itself: the server may have ignored a stop string, or kept it in the text.
  # The stop that is complete first counts, as in the engine.
  found = min(((at + len(stop), stop) for stop in accept if (at := text.find(stop)) >= 0), default=None)
  if found is not None:
    end, stop = found
    return text[:end], stop
  if reply.cut:
    return text, CUT
  if reply.stop in accept:
    return text + reply.stop, reply.stop
  # Prompts mention tags too, so only the last characters before the turn are searched (LEAR opens an answer there).
  left = {stop: _open_at(opened[-TAIL:] + text, stop) for stop in accept}
  stop = max((stop for stop in accept if left[stop] >= 0), key=lambda stop: left[stop], default=EOS)
  return (text, EOS) if stop == EOS else (text + stop, stop)


def _open_at(text: str, stop: str) -> int:
  """Position of the opening tag of this stop string, if the tag is open at the end of the text; else -1."""
  closing = _CLOSING.fullmatch(stop)
  if closing is None:
    return -1
  opening = f"<{closing['tag']}>" if closing["tag"] else f"<|begin_{closing['name']}|>"
  at = text.rfind(opening)
  return at if at > text.rfind(stop) else -1


def whole(ids: Sequence[int], tokenizer: Any) -> str:
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


def of_tokens(
  theirs: Sequence[tuple[bytes, float]], text: str, ids: Sequence[int], tokenizer: Any
) -> tuple[float, ...] | None:
  """The log-probability of each of our tokens: the smallest one of the server's tokens that overlap it.

  A stop string that the server left out has log-probability 0. None if the server sent none, or if its tokens do not
  form the text.
  """
  joined, wanted = b"".join(token for token, _ in theirs), text.encode()
  shared = min(len(joined), len(wanted))
  if not theirs or joined[:shared] != wanted[:shared]:
    return () if not text else None
  # By bytes, because the server's tokens and ours have different boundaries.
  by_byte = [value for token, value in theirs for _ in token][: len(wanted)]
  by_byte += [0.0] * (len(wanted) - len(by_byte))
  result, at = [], 0
  for token in ids:
    size = len(tokenizer.token_bytes(token))
    result.append(min(by_byte[at : at + size], default=0.0))
    at += size
  return tuple(result)
