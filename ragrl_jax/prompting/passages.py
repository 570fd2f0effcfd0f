"""Retrieved passages as text: the block a search returns, the numbered list, and the way back.

Corpus text is data: whatever in it looks like a tag is broken up by a space, so that no passage can open or close one.
"""

import re
from collections.abc import Sequence

from ragrl_jax.prompting.tokenizer import Tokenizer
from ragrl_jax.structs import Passage

OPEN, CLOSE = "<information>", "</information>"
_TAG = re.compile(r"<(?=/?\|?[A-Za-z_][\w.|:-]*\s*/?>)")
_HEAD = re.compile(r"^(?=Doc \d+\(Title: )", re.MULTILINE)


def neutral(text: str) -> str:
  """The text with a space after the "<" of all that looks like a tag: `</information>`, `<answer>`, `<|im_end|>`."""
  return _TAG.sub("< ", text)


def block(
  passages: Sequence[Passage], *, tokenizer: Tokenizer | None = None, max_passage_tokens: int | None = None
) -> str:
  """What a search returns: `\\n\\n<information>Doc 1(Title: …) …\\nDoc 2(Title: …) …</information>\\n\\n`.

  Args:
    passages: best first; none gives an empty block.
    tokenizer: counts the tokens of max_passage_tokens.
    max_passage_tokens: a longer passage, its head `Doc 1(Title: …) ` included, is cut; the block's tags never are.

  Raises:
    ValueError: max_passage_tokens without a tokenizer, or below 1.

  Source: Search-R1's generation.py and its retriever's `contents` ("title" line, then text); there the whole block is
  cut at its end, closing tag and all.
  """
  if max_passage_tokens is not None and (tokenizer is None or max_passage_tokens < 1):
    raise ValueError(
      f"max_passage_tokens={max_passage_tokens}: it must be at least 1 and needs the tokenizer that counts them "
      "(config.switches.max_passage_tokens)."
    )
  entries = [_entry(i, p, tokenizer, max_passage_tokens) for i, p in enumerate(passages, 1)]
  return f"\n\n{OPEN}{chr(10).join(entries)}{CLOSE}\n\n"


def parse_block(text: str) -> tuple[Passage, ...] | None:
  """The passages of a text that `block` wrote, with their titles and texts as shown; None if it is no such block.

  Ids are the places in the block ("1", "2", …): a block does not show the corpus's own.
  """
  body = text.strip()
  if not (body.startswith(OPEN) and body.endswith(CLOSE)):
    return None
  body = body[len(OPEN) : -len(CLOSE)]
  if not body.strip():
    return ()
  found = []
  for i, entry in enumerate(_HEAD.split(body)[1:] if _HEAD.match(body) else [body], 1):
    head = f"Doc {i}(Title: "
    close = _title_end(entry, len(head)) if entry.startswith(head) else None
    if close is None:
      return None
    found.append(Passage(str(i), entry[len(head) : close], entry[close + 1 :].strip()))
  return tuple(found)


def numbered(passages: Sequence[Passage], *, titles: bool = False) -> str:
  """A list of references, one a line: `1. text`; a single passage stands without its number.

  Args:
    passages: in the order their numbers cite.
    titles: write `1. title: text`.

  Source: ARENA's prompt (facts: only contents, no titles; one passage is not numbered).
  """
  lines = [_line(f"{p.title}: {p.text}" if titles and p.title else p.text) for p in passages]
  if len(lines) == 1:
    return lines[0]
  return "\n".join(f"{i}. {line}" for i, line in enumerate(lines, 1))


def cut(text: str, tokenizer: Tokenizer, max_tokens: int) -> str:
  """The text, or its beginning that encodes to at most max_tokens ids; no character is cut in half."""
  ids = tokenizer.encode(text)
  keep = max_tokens
  while len(ids) > max_tokens:  # a beginning can encode to more ids than it had inside the whole
    text = b"".join(map(tokenizer.token_bytes, ids[:keep])).decode(errors="ignore")
    ids, keep = tokenizer.encode(text), keep - 1
  return text


def cut_middle(text: str, tokenizer: Tokenizer, max_tokens: int) -> str:
  """The text, or its first and last halves of max_tokens ids together; no character is cut in half.

  Source: LongBench's prediction code, which cuts the whole prompt so.
  """
  ids = tokenizer.encode(text)
  keep = max_tokens
  while len(ids) > max_tokens:  # see `cut`
    halves = (ids[: (keep + 1) // 2], ids[len(ids) - keep // 2 :])
    text = "".join(b"".join(map(tokenizer.token_bytes, half)).decode(errors="ignore") for half in halves)
    ids, keep = tokenizer.encode(text), keep - 1
  return text


def _line(text: str) -> str:
  return " ".join(neutral(text).split())


def _entry(number: int, passage: Passage, tokenizer: Tokenizer | None, limit: int | None) -> str:
  title, text = _balanced(_line(passage.title)), _HEAD.sub(" ", neutral(passage.text).strip())
  head = f"Doc {number}(Title: {title})"
  entry = f"{head} {text}".rstrip()
  if limit is None:
    return entry
  short = cut(entry, tokenizer, limit)
  if len(short) < len(head):  # the title alone is too long: what of it fits, and its parenthesis
    short = short.rstrip()[:-1]
    start = f"Doc {number}(Title: "
    return f"{start}{_balanced(short[len(start) :].rstrip())})"
  return short.rstrip()


def _balanced(title: str) -> str:
  """Unmatched parentheses become full-width ones, so that the title's end can be found."""
  letters, open_at = list(title), []
  for i, letter in enumerate(title):
    if letter == "(":
      open_at.append(i)
    elif letter == ")" and open_at:
      open_at.pop()
    elif letter == ")":
      letters[i] = "\uff09"
  for i in open_at:
    letters[i] = "\uff08"
  return "".join(letters)


def _title_end(entry: str, start: int) -> int | None:
  depth = 1
  for i in range(start, len(entry)):
    depth += {"(": 1, ")": -1}.get(entry[i], 0)
    if depth == 0:
      return i
  return None
