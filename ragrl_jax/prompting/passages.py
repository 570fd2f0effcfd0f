"""Passages as text: the block that a search returns and its parser, the numbered list, and the cutting of long texts.

Corpus text is data. A space is added to text in it that looks like a tag, so that no passage can open or close a tag.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence

from ragrl_jax.core.text import beginnings
from ragrl_jax.prompting.tokenizer import Tokenizer
from ragrl_jax.structs import Example, Passage

OPEN, CLOSE = "<information>", "</information>"
# Tags, and the marks of chat formats that are none: <|im_end|>, DeepSeek's <｜Assistant｜>, Mistral's [INST].
_TAG = re.compile(
  r"(?:<(?=/?[|｜]?[A-Za-z_][\w.|｜▁:-]*\s*/?>)"
  r"|\[(?=/?(?:INST|IMG|THINK|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_(?:CALLS|RESULTS|CONTENT))\]))"
)
_HEAD = re.compile(r"^(?=Doc \d+\(Title: )", re.MULTILINE)


def neutral(text: str) -> str:
  """The text with a space after the "<" of all that looks like a tag or a chat format's mark: `</information>`,
  `<|im_end|>`, `<｜Assistant｜>`; also after the "[" of `[INST]`."""
  return _TAG.sub(r"\g<0> ", text)


def block(
  passages: Sequence[Passage], *, tokenizer: Tokenizer | None = None, max_passage_tokens: int | None = None
) -> str:
  """The result of a search: `\\n\\n<information>Doc 1(Title: …) …\\nDoc 2(Title: …) …</information>\\n\\n`.

  Args:
    passages: best first; without passages the block is empty.
    tokenizer: counts tokens for max_passage_tokens.
    max_passage_tokens: longest passage in tokens, with its head `Doc 1(Title: …) `. Longer ones are cut; tags are not.

  Raises:
    ValueError: max_passage_tokens is set without a tokenizer, or is below 1.

  Source: Search-R1's generation.py and its retriever's `contents` ("title" line, then text). Its code cuts the end of
  the whole block instead, with the closing tag.
  """
  if max_passage_tokens is not None and (tokenizer is None or max_passage_tokens < 1):
    raise ValueError(
      f"max_passage_tokens={max_passage_tokens}: it must be at least 1 and needs the tokenizer that counts them "
      "(config.switches.max_passage_tokens)."
    )
  entries = [_entry(i, p, tokenizer, max_passage_tokens) for i, p in enumerate(passages, 1)]
  return f"\n\n{OPEN}{chr(10).join(entries)}{CLOSE}\n\n"


def parse_block(text: str) -> tuple[Passage, ...] | None:
  """The passages in a text made by `block`, with titles and texts as shown; None if the text is not such a block.

  Ids are positions in the block ("1", "2", …), since a block does not contain the corpus's ids.
  """
  body = text.strip()
  if not (body.startswith(OPEN) and body.endswith(CLOSE)):
    return None
  body = body[len(OPEN) : -len(CLOSE)]
  if not body.strip():
    return ()
  result = []
  for i, entry in enumerate(_HEAD.split(body)[1:] if _HEAD.match(body) else [body], 1):
    head = f"Doc {i}(Title: "
    close = _title_end(entry, len(head)) if entry.startswith(head) else None
    if close is None:
      return None
    result.append(Passage(str(i), entry[len(head) : close], entry[close + 1 :].strip()))
  return tuple(result)


def numbered(passages: Sequence[Passage], *, titles: bool = False) -> str:
  """A list of references, one per line: `1. text`. A single passage has no number.

  Args:
    titles: write `1. title: text`.

  Source: ARENA's prompt (contents without titles; a single passage is not numbered).
  """
  lines = [_line(f"{p.title}: {p.text}" if titles and p.title else p.text) for p in passages]
  if len(lines) == 1:
    return lines[0]
  return "\n".join(f"{i}. {line}" for i, line in enumerate(lines, 1))


def gold_numbers(example: Example, by: str) -> list[int]:
  """The numbers, as in `numbered`, of the passages that the answer is based on; empty if they are unknown.

  Args:
    by: "supporting": the passages that the data marks. "substring": for each evidence sentence, the first passage that
      contains it; if the data marks only passages, their texts are the sentences. If no passage contains a sentence,
      the numbers are unknown; the authors' code then adds a -1 to the list, and rewards citing -1.

  Source: ARENA (arXiv 2505.13258); "substring", its code.
  """
  if by == "supporting":
    return sorted({place + 1 for place in example.supporting})
  sentences = [sentence for _, sentence in example.evidence]
  sentences = sentences or [example.passages[place].text for place in example.supporting]
  texts = [passage.text for passage in example.passages]
  numbers = {next((i for i, text in enumerate(texts, 1) if sentence in text), None) for sentence in sentences}
  return [] if None in numbers else sorted(numbers)


def cut(text: str, tokenizer: Tokenizer, max_tokens: int) -> str:
  """The text, cut after a whole character so that it encodes to at most max_tokens ids.

  No more of a text of any length is tokenized than a few times max_tokens (`core.text.beginnings`).
  """
  text = beginnings.for_ids(text, max_tokens, tokenizer.encode)
  return _kept(text, tokenizer, max_tokens, lambda ids, keep: (ids[:keep],))


def _kept(text: str, tokenizer: Tokenizer, most: int, parts: Callable[[list[int], int], tuple[list[int], ...]]) -> str:
  """The joined texts of the `parts` of the ids, of which there are at most `most`; the text if it has no more."""
  ids, keep = tokenizer.encode(text), most
  while len(ids) > most:  # a part can encode to more ids than it has in the whole text
    text = "".join(b"".join(map(tokenizer.token_bytes, part)).decode(errors="ignore") for part in parts(ids, keep))
    ids, keep = tokenizer.encode(text), keep - 1
  return text


def shortened(example: Example, tokenizer: Tokenizer, max_tokens: int) -> Example:
  """The example; each of its texts that has more than max_tokens ids may be cut, and has more than max_tokens still.

  A prompt that shows such a text is too long, and it is not tokenized as a whole to find this out.
  """
  short = lambda text: beginnings.for_ids(text, max_tokens, tokenizer.encode)
  texts = [example.question, *(text for passage in example.passages for text in (passage.title, passage.text))]
  if max(map(len, texts)) <= beginnings.LETTERS * max_tokens:
    return example
  passages = tuple(
    dataclasses.replace(passage, title=short(passage.title), text=short(passage.text)) for passage in example.passages
  )
  return dataclasses.replace(example, question=short(example.question), passages=passages)


def cut_middle(text: str, tokenizer: Tokenizer, max_tokens: int) -> str:
  """The text; if it has more than max_tokens ids, its beginning and its end, each of half as many ids.

  Characters are never split.

  Source: LongBench's prediction code, which cuts the whole prompt in this way.
  """
  head = beginnings.for_ids(text, max_tokens, tokenizer.encode)
  if 2 * len(head) < len(text):  # the middle of a very long text is not tokenized; it is left out in any case
    text = head + text[-len(head) :]
  halves = lambda ids, keep: (ids[: (keep + 1) // 2], ids[len(ids) - keep // 2 :])
  return _kept(text, tokenizer, max_tokens, halves)


def _line(text: str) -> str:
  return " ".join(neutral(text).split())


def _entry(number: int, passage: Passage, tokenizer: Tokenizer | None, limit: int | None) -> str:
  title, text = passage.title, passage.text
  if limit is not None:  # before the signs of a text of any length are looked at
    title, text = (beginnings.for_ids(one.lstrip(), limit, tokenizer.encode) for one in (title, text))
  title, text = _balanced(_line(title)), _HEAD.sub(" ", neutral(text).strip())
  head = f"Doc {number}(Title: {title})"
  entry = f"{head} {text}".rstrip()
  if limit is None:
    return entry
  short = cut(entry, tokenizer, limit)
  if len(short) < len(head):  # the title alone is too long: cut it, and close its parenthesis
    short = short.rstrip()[:-1]
    start = f"Doc {number}(Title: "
    return f"{start}{_balanced(short[len(start) :].rstrip())})"
  return short.rstrip()


def _balanced(title: str) -> str:
  """The title with full-width forms of unmatched parentheses, so that `parse_block` finds its end."""
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
