"""Finds tag pairs in a model's text. Tags are plain text here. Every function is linear in the text's length."""

import dataclasses
import functools
import re
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Pair:
  """A complete `<name>body</name>`; text[start:end] is all of it, tags included."""

  name: str
  body: str
  start: int
  end: int


@functools.cache
def _pattern(names: tuple[str, ...]) -> re.Pattern:
  return re.compile(f"<(/?)({'|'.join(map(re.escape, names))})>")


def pairs(text: str, names: str | Sequence[str], *, opening: str = "last") -> list[Pair]:
  """The complete pairs of these names, in order of their ends. Pairs of the same name never overlap.

  Args:
    names: one tag name, or several.
    opening: the opening tag that a closing tag belongs to, if there are several: the "last" one before it (so the body
      contains no tag of its own name), or the "first" one, as a shortest-match regular expression finds it.

  Example: in "<q>a<q>b</q>" the body of q is "b" with "last" and "a<q>b" with "first".

  Raises:
    ValueError: `opening` is neither.
  """
  if opening not in ("last", "first"):
    raise ValueError(f"opening={opening!r}: use 'last' or 'first'.")
  names = (names,) if isinstance(names, str) else tuple(names)
  result, opened = [], {}
  for tag in _pattern(names).finditer(text):
    closing, name = tag.groups()
    if not closing:
      if opening == "last" or name not in opened:
        opened[name] = tag
    elif name in opened:
      start = opened.pop(name)
      result.append(Pair(name, text[start.end() : tag.start()], start.start(), tag.end()))
  return result


def first_match(text: str, names: str | Sequence[str]) -> Pair | None:
  """The first match of `<(a|b)>(.*?)</\\1>`: the earliest opening tag that has a closing tag after it; None without."""
  return min(pairs(text, names, opening="first"), key=lambda pair: pair.start, default=None)


def last(text: str, names: str | Sequence[str]) -> Pair | None:
  """The pair that ends last; None if there is none."""
  if isinstance(names, str) and text.count(closing := f"</{names}>") < 2:  # the usual case, with a fast search
    end, opening = text.find(closing), f"<{names}>"
    start = text.rfind(opening, 0, end) if end >= 0 else -1
    return None if start < 0 else Pair(names, text[start + len(opening) : end], start, end + len(closing))
  tag_pairs = pairs(text, names)
  return tag_pairs[-1] if tag_pairs else None


def outer(text: str, names: str | Sequence[str]) -> list[Pair]:
  """The pairs that are not inside another pair of these names, in order. Of two crossing pairs, the later one is kept.

  Example: for "<a>1<b>2</b></a><b>3</b>" the result is a and the second b.
  """
  kept: list[Pair] = []
  for pair in reversed(pairs(text, names)):
    if not kept or pair.end <= kept[-1].start:
      kept.append(pair)
  return kept[::-1]


def blocks(text: str, opening: str, closing: str, *, thought: str = "think") -> list[tuple[int, int]]:
  """(start, end) of the `opening … closing` blocks of a text, in order; the outermost ones.

  A tag that is never closed is a mention: it makes no block, and hides nothing. A closing tag belongs to the last
  opening tag before it that has none, so a mention before a block does not begin it. A block and a complete thought do
  not cross: tags of which one is inside and one outside of the thought are mentions. `thought` is the name of its tags.

  Example: in "the <a> says <a>x</a> y" the block is "<a>x</a>".
  """
  if opening not in text:
    return []
  thoughts = pairs(text, thought)
  begin, end = {pair.start for pair in thoughts}, {pair.end for pair in thoughts}
  opened: list[int] = []
  result: list[tuple[int, int]] = []
  for tag in re.finditer(f"{re.escape(opening)}|{re.escape(closing)}|(</?{re.escape(thought)}>)", text):
    if tag[1]:
      if tag.start() in begin:
        opened.append(-1)  # the beginning of a thought
      elif tag.end() in end:
        while opened.pop() >= 0:  # tags that it opened and did not close
          pass
    elif tag[0] == opening:
      opened.append(tag.start())
    elif opened and opened[-1] >= 0:
      start = opened.pop()
      while result and result[-1][0] > start:  # it is inside this block
        result.pop()
      result.append((start, tag.end()))
  return result


def without(text: str, opening: str, closing: str) -> str:
  """The text without its `blocks`."""
  places = blocks(text, opening, closing)
  starts, ends = [start for start, _ in places], [0, *(end for _, end in places)]
  return "".join(text[end:start] for end, start in zip(ends, [*starts, len(text)]))


def sections(text: str, names: Sequence[str]) -> list[Pair] | None:
  """The pairs of a text that consists of pairs and white space only; None for any other text.

  A body must not contain a tag of any of the names.
  """
  result, at, opening = [], 0, None
  for tag in _pattern(tuple(names)).finditer(text):
    closing, name = tag.groups()
    if not closing:
      if opening is not None or text[at : tag.start()].strip():
        return None
      opening = tag
    else:
      if opening is None or opening.group(2) != name:
        return None
      result.append(Pair(name, text[opening.end() : tag.start()], opening.start(), tag.end()))
      opening, at = None, tag.end()
  return None if opening is not None or text[at:].strip() else result
