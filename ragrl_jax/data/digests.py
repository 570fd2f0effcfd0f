"""Digests of questions: equal contents have equal digests, wherever their files are and whatever they are called."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

from ragrl_jax.core.text import forms
from ragrl_jax.store import episodes
from ragrl_jax.structs import Example

GOLD_KEYS = ("gold_ids", episodes.GOLDS)  # columns of `meta` that only scores read
SCORED = ("golds", "marks", "sets")  # fields that scores read; answers do not depend on them


def by_field(examples: Iterable[Example]) -> dict[str, str]:
  """Field → a hash of this field of all examples, in their order; 16 hexadecimal digits.

  The fields: "ids", "questions", "passages" (titles and texts) and "options" (all other columns), on which an answer
  may depend; and those of SCORED: "golds", "marks" (supporting passages, gold sentences, ids of gold passages) and
  "sets" (source and hops). An id that is made from the file's name counts without that name.
  """
  sums: dict[str, Any] = {}
  for example in examples:
    for name, value in _fields(example):
      line = json.dumps(value, sort_keys=True, default=str)
      sums.setdefault(name, hashlib.sha256()).update(f"{line}\n".encode())
  return {name: digest.hexdigest()[:16] for name, digest in sums.items()}


def _fields(example: Example) -> Iterator[tuple[str, Any]]:
  meta = example.meta
  yield "ids", example.id.removeprefix(f"{example.source}-")
  yield "questions", example.question
  yield "passages", [(passage.title, passage.text) for passage in example.passages]
  yield "options", {name: value for name, value in meta.items() if name not in GOLD_KEYS}
  yield "golds", example.golds
  documents = [(gold.title, gold.text) for gold in meta.get(episodes.GOLDS, ())]
  yield "marks", (example.supporting, example.evidence, meta.get("gold_ids"), documents)
  yield "sets", (example.source, example.hops)


def also_in(examples: Iterable[Example], others: Iterable[Example]) -> list[Example]:
  """The examples whose question others ask too (`key_of`)."""
  questions = {key_of(other.question) for other in others}
  return [example for example in examples if key_of(example.question) in questions]


def key_of(question: str) -> str:
  """A question without forms of Unicode, case, white space and question mark, as questions are compared."""
  return " ".join(forms.plain(question).rstrip("? .").split())
