"""The text that a server sent: where it ends, by which stop string, and the log-probabilities of our tokens in it."""

import re
from collections.abc import Sequence
from typing import Any

from ragrl_jax.chat.client import Completion

EOS, CUT = "eos", ""
TAIL = 64  # characters of the text before a turn in which the turn's tag may have been opened
_CLOSING = re.compile(r"<(?:/(?P<tag>[\w:-]+)|\|end_(?P<name>\w+)\|)>")


def ended(reply: Completion, accept: Sequence[str], opened: str = "") -> tuple[str, str]:
  """(text with its stop string, the stop's name; EOS, or CUT for a text that was cut off).

  Servers leave the stop string out, and few say which one it was. It is the first one in the text, for a server that
  did not stop; else the one that the server names; else the closing tag of what is open at the end.

  Args:
    reply: the server's answer.
    accept: the stop strings that it was given.
    opened: the text that this one continues.
  """
  text = reply.content
  # First of all, the text itself: the server may have ignored a stop string, or kept it in the text.
  found = min(((at, stop) for stop in accept if (at := text.find(stop)) >= 0), default=None)
  if found is not None:
    at, stop = found
    return text[: at + len(stop)], stop
  if reply.cut:
    return text, CUT
  if reply.stop in accept:
    return text + reply.stop, reply.stop
  # A prompt speaks of tags as well, so only the last words before the turn are looked at (LEAR opens an answer there).
  left = {stop: _open_at(opened[-TAIL:] + text, stop) for stop in accept}
  stop = max((stop for stop in accept if left[stop] >= 0), key=lambda stop: left[stop], default=EOS)
  return (text, EOS) if stop == EOS else (text + stop, stop)


def _open_at(text: str, stop: str) -> int:
  """Where the tag that this stop string closes was opened, if it is open at the end of the text; else -1."""
  closing = _CLOSING.fullmatch(stop)
  if closing is None:
    return -1
  opening = f"<{closing['tag']}>" if closing["tag"] else f"<|begin_{closing['name']}|>"
  at = text.rfind(opening)
  return at if at > text.rfind(stop) else -1


def whole(ids: Sequence[int], tokenizer: Any) -> str:
  """The text of the ids with control tokens by their names: what a server of text completions continues."""
  names = tokenizer.control_names
  parts = (names[token].encode() if token in names else tokenizer.token_bytes(token) for token in ids)
  return b"".join(parts).decode(errors="replace")


def of_tokens(
  theirs: Sequence[tuple[str, float]], text: str, ids: Sequence[int], tokenizer: Any
) -> tuple[float, ...] | None:
  """The log-probability of each of our tokens: the least of the server's tokens that it overlaps.

  A stop string that the server left out has log-probability 0. None if there are none, or they are of another text.
  """
  said = [(token.encode(), value) for token, value in theirs]
  joined, wanted = b"".join(token for token, _ in said), text.encode()
  shared = min(len(joined), len(wanted))
  if not said or joined[:shared] != wanted[:shared]:
    return () if not text else None
  # By bytes, since their tokens and ours begin and end in different places.
  by_byte = [value for token, value in said for _ in token][: len(wanted)]
  by_byte += [0.0] * (len(wanted) - len(by_byte))
  found, at = [], 0
  for token in ids:
    size = len(tokenizer.token_bytes(token))
    found.append(min(by_byte[at : at + size], default=0.0))
    at += size
  return tuple(found)
