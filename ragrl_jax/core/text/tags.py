"""Tag pairs in a model's text. Tags are plain text here, and every function is linear in its length."""

import dataclasses
import functools
import re
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Pair:
  """A complete `<name>body</name>`: text[start:end] is the whole of it."""

  name: str
  body: str
  start: int
  end: int


@functools.cache
def _pattern(names: tuple[str, ...]) -> re.Pattern:
  return re.compile(f"<(/?)({'|'.join(map(re.escape, names))})>")


def pairs(text: str, names: str | Sequence[str], *, opening: str = "last") -> list[Pair]:
  """The complete pairs of these names, in order of their ends; those of one name never overlap.

  Args:
    text: what the model wrote.
    names: one tag name, or several.
    opening: which of several opening tags a closing tag belongs to: the "last" before it (so that the body holds no
      tag of its own name), or the "first", as a shortest-match pattern reads it.

  Example: in "<q>a<q>b</q>" the body of q is "b" by its last opening tag and "a<q>b" by its first.
  """
  if opening not in ("last", "first"):
    raise ValueError(f"opening={opening!r}: use 'last' or 'first'.")
  names = (names,) if isinstance(names, str) else tuple(names)
  found, opened = [], {}
  for tag in _pattern(names).finditer(text):
    closing, name = tag.groups()
    if not closing:
      if opening == "last" or name not in opened:
        opened[name] = tag
    elif name in opened:
      start = opened.pop(name)
      found.append(Pair(name, text[start.end() : tag.start()], start.start(), tag.end()))
  return found


def first_match(text: str, names: str | Sequence[str]) -> Pair | None:
  """What the pattern `<(a|b)>(.*?)</\\1>` finds first: the earliest opening tag that has its closing tag behind it."""
  return min(pairs(text, names, opening="first"), key=lambda pair: pair.start, default=None)


def last(text: str, names: str | Sequence[str]) -> Pair | None:
  """The pair that ends last."""
  found = pairs(text, names)
  return found[-1] if found else None


def outer(text: str, names: str | Sequence[str]) -> list[Pair]:
  """The pairs that stand in no other pair of these names, in order. Of two that cross, the one that ends last.

  Example: in "<a>1<b>2</b></a><b>3</b>" they are a and the second b.
  """
  kept: list[Pair] = []
  for pair in reversed(pairs(text, names)):
    if not kept or pair.end <= kept[-1].start:
      kept.append(pair)
  return kept[::-1]


def without(text: str, name: str) -> str:
  """The text without its `<name>…</name>` stretches; one that is never closed goes on to the end of the text."""
  if f"<{name}>" not in text:
    return text
  kept, at, inside = [], 0, False
  for tag in _pattern((name,)).finditer(text):
    closing = bool(tag.group(1))
    if not closing and not inside:
      kept.append(text[at : tag.start()])
      inside = True
    elif closing and inside:
      at, inside = tag.end(), False
  if not inside:
    kept.append(text[at:])
  return "".join(kept)


def sections(text: str, names: Sequence[str]) -> list[Pair] | None:
  """The text as a plain sequence of pairs with nothing but white space outside them, or None if it is not one.

  A body may not hold a tag of any of the names.
  """
  found, at, opened = [], 0, None
  for tag in _pattern(tuple(names)).finditer(text):
    closing, name = tag.groups()
    if not closing:
      if opened is not None or text[at : tag.start()].strip():
        return None
      opened = tag
    else:
      if opened is None or opened.group(2) != name:
        return None
      found.append(Pair(name, text[opened.end() : tag.start()], opened.start(), tag.end()))
      opened, at = None, tag.end()
  return None if opened is not None or text[at:].strip() else found
