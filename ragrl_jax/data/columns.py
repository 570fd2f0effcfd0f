"""Reads the columns of a row of a data set. An invalid value raises a ValueError that names the column."""

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax.core.text import forms
from ragrl_jax.store import sums
from ragrl_jax.structs import Passage

Row = Mapping[str, Any]
_TRUTHS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
_LISTED = re.compile(r"(?:array\()?[\[({]\s*(?:[\"'\])}]|None\b|null\b)")  # how a list of texts begins as text


def is_text(context: Any) -> bool:
  """Whether a context is one text, and not JSON, as some files of 2WikiMultihopQA have it."""
  return isinstance(context, str) and not context.lstrip().startswith(("[", "{"))


def make_passage(title: str, text: str) -> Passage:
  """A passage whose id is a hash of its text."""
  return Passage(sums.content_id(title, text), title, text)


def contexts(value: Any) -> list[tuple[str, list[str]]]:
  """[(title, sentences), …] from [[title, sentences], …], from a dict of the two columns, from a list of dicts with
  these keys, or from any of these as JSON text."""
  value = unpacked(value, "context")
  result = []
  if isinstance(value, Mapping) and "sentences" not in value:
    value = dict(title=value.get("title"), sentences=value.get("content"))
  for i, pair in enumerate(_pairs(value, "title", "sentences", "context")):
    title, sentences = pair if len(pair) == 2 else (None, None)
    is_list = isinstance(sentences, Sequence) and not isinstance(sentences, str)
    if not isinstance(title, str) or not is_list or not all(isinstance(sentence, str) for sentence in sentences):
      raise ValueError(f"'context[{i}]' must be a title and a list of sentences.")
    result.append((title, [*sentences]))
  return result


def facts(value: Any) -> list[tuple[str, int]]:
  """[(title, sentence number), …] from the same kinds of values as in `contexts`."""
  value = unpacked(value or (), "supporting_facts")
  pairs = _pairs(value, "title", "sent_id", "supporting_facts")
  if not all(len(p) == 2 and isinstance(p[0], str) and isinstance(p[1], int) for p in pairs):
    raise ValueError("'supporting_facts' must be a list of [title, sentence number] pairs.")
  return pairs


def _pairs(value: Sequence | Mapping, first: str, second: str, column: str) -> list[tuple[Any, ...]]:
  """Pairs from a dict of two columns, or from a list of pairs or of dicts; what is none of these becomes ()."""
  if isinstance(value, Mapping):
    firsts, seconds = listed(value, first, column), listed(value, second, column)
    if len(firsts) != len(seconds):
      raise ValueError(f"{column!r} has {len(firsts)} values of {first!r} and {len(seconds)} of {second!r}.")
    return list(zip(firsts, seconds))
  read = lambda item: (item.get(first), item.get(second)) if isinstance(item, Mapping) else tuple(item)[:2]
  return [read(item) if isinstance(item, Mapping | list | tuple) else () for item in value]


def unpacked(value: Any, column: str) -> Any:
  """The value, or the list or object in it if it is JSON text."""
  if isinstance(value, str):
    try:
      value = json.loads(value)
    except (ValueError, RecursionError) as error:
      raise ValueError(f"{column!r} is text, but not JSON: {error}.") from error
  if not isinstance(value, Sequence | Mapping) or isinstance(value, str):
    raise ValueError(f"{column!r} must be a list or an object, this is {type(value).__name__}.")
  return value


def by_title(contexts: list[tuple[str, list[str]]], facts: list[tuple[str, int]]):
  """(passages, supporting, evidence). A sentence number beyond its passage is left out of the evidence."""
  passages, first = [], {}
  facts = [(forms.composed(title), number) for title, number in facts]
  for place, (title, sentences) in enumerate(contexts):
    # HotpotQA's sentences bring their leading space along, 2WikiMultihopQA's do not.
    glue = "" if any(sentence[:1].isspace() for sentence in sentences[1:]) else " "
    passages.append(make_passage(title, glue.join(sentences).strip()))
    first.setdefault(forms.composed(title), place)
  supporting = sorted({first[title] for title, _ in facts if title in first})
  evidence = tuple(
    (first[title], contexts[first[title]][1][number].strip())
    for title, number in facts
    if title in first and 0 <= number < len(contexts[first[title]][1])
  )
  return tuple(passages), tuple(supporting), evidence


def passage(value: Any, where: str) -> Passage:
  """A passage from an object with "text", and perhaps "id" and "title"."""
  if not isinstance(value, Mapping) or not isinstance(value.get("text"), str):
    raise ValueError(f"{where!r} must be an object with a text 'text' (and 'id', 'title').")
  title = value.get("title") or ""
  if not isinstance(title, str):
    raise ValueError(f"the title of {where!r} must be text, this is {title!r:.80}.")
  if isinstance(name := value.get("id"), bool) or not isinstance(name, str | int | None):
    raise ValueError(f"the id of {where!r} must be text or a whole number, this is {name!r:.80}.")
  return Passage(sums.content_id(title, value["text"]) if name in (None, "") else str(name), title, value["text"])


def question(row: Row, column: str = "question") -> str:
  """The question; it may not be blank."""
  question = row.get(column)
  if not isinstance(question, str) or not question.strip():
    raise ValueError(f"{column!r} must be text, this is {question!r:.200}.")
  return question


def golds(row: Row, column: str) -> tuple[str, ...]:
  """The right answers, each once; one text is one answer, and a list of texts that arrives as text is unpacked.

  They may be in an object, as SQuAD's and TriviaQA's are on the hub.
  """
  golds = row[column]
  if isinstance(golds, Mapping):
    golds = [*listed(golds, "text", column), *filter(None, [golds.get("value")]), *listed(golds, "aliases", column)]
  golds = [golds] if isinstance(golds, str) else golds
  if isinstance(golds, Sequence):
    golds = [text for gold in golds for text in (_listed(gold, column) if isinstance(gold, str) else [gold])]
  if not isinstance(golds, Sequence) or not golds or not all(isinstance(g, str) and g.strip() for g in golds):
    none = " For an unanswerable question, write the right reply, and answerable=false." if golds == [] else ""
    raise ValueError(f"{column!r} must hold at least one answer, each of them text; this is {golds!r:.200}.{none}")
  return tuple(dict.fromkeys(golds))


def _listed(text: str, column: str) -> list[str]:
  """The texts of a list in JSON or as Python prints it, or this text alone."""
  bare = text.strip()
  if bare[-1:] not in tuple("])}") or not _LISTED.match(bare):
    return [text]
  try:
    value = json.loads(bare)
  except (ValueError, RecursionError):
    try:
      value = ast.literal_eval(bare)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
      value = None
    # Two texts without a comma would be read as one, and lose two quotes. A set is printed in any order.
    if sorted("".join(bare.split())) != sorted("".join(repr(value).split())):
      value = None
  if isinstance(value, list | tuple | set) and value and all(isinstance(item, str) for item in value):
    return sorted(value) if isinstance(value, set) else list(value)
  if value is None and bare[0] in "({":  # such as ("Heroes")
    return [text]
  raise ValueError(f"{column!r} is a list as text, {text!r:.80}: write it as a list of texts.")


def identified(row: Row, columns: Sequence[str], default: str) -> str:
  """The id in the first of the columns that has one."""
  value = next((row[column] for column in columns if row.get(column) not in (None, "")), default)
  if isinstance(value, bool) or not isinstance(value, str | int):
    raise ValueError(f"{columns[0]!r} must be text or a whole number, this is {value!r:.80}.")
  return str(value)


def truth(row: Row, column: str) -> bool | None:
  """A column that is true or false, or a word or a number for it, as in tables; None if it is empty or missing."""
  value = row.get(column)
  if value in (None, ""):
    return None
  if (word := str(value).strip().lower()) not in _TRUTHS:
    raise ValueError(f"{column!r} must be true or false, this is {value!r:.80}.")
  return _TRUTHS[word]


def listed(row: Row, column: str, within: str = "") -> list:
  """A column that holds a list, or JSON text of one; one that is missing is empty. `within`: the column of `row`."""
  return list(_held(row, column, list | tuple, "a list", within))


def mapping(row: Row, column: str) -> dict[str, Any]:
  """A column that holds an object, or JSON text of one; one that is missing is empty."""
  return dict(_held(row, column, Mapping, "an object"))


def _held(row: Row, column: str, kind: Any, what: str, within: str = "") -> Any:
  value = row.get(column)
  if isinstance(value, str):
    value = unpacked(value, column) if value.strip() else None
  if value is not None and not isinstance(value, kind):
    column = f"{within}.{column}" if within else column
    raise ValueError(f"{column!r} must be {what}, this is {value!r:.80}.")
  return value or ()


def position(value: Any, size: int, column: str) -> int:
  """A position in a list of this size."""
  if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < size:
    raise ValueError(f"{column!r} holds {value!r:.80}: it must be a position from 0 to {size - 1}.")
  return value
