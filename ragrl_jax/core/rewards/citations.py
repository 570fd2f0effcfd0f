"""Reward for citing the right passages by their numbers."""

import json
import re
from collections.abc import Collection

from ragrl_jax.core.text import forms

_INT = r"-?(?:0|[1-9]\d{0,8})"
_LIST = re.compile(rf"\s*\[\s*(?:{_INT}\s*(?:,\s*{_INT}\s*)*)?\]\s*", re.ASCII)


def parse_ids(text: str, *, strict: bool = True) -> list | None:
  """The distinct numbers in a JSON list, sorted; None if the text, as `forms.typed` has it, is not such a list.

  Args:
    strict: accept plain integers only. Otherwise accept any JSON list whose items can be put into a set and sorted, as
      ARENA's code does: 1.0 and true then equal 1, and items that are not numbers match nothing.
  """
  text = forms.typed(text)
  if strict:
    return sorted({int(number) for number in re.findall(_INT, text)}) if _LIST.fullmatch(text) else None
  try:
    return sorted(set(json.loads(text)))
  except (ValueError, TypeError, RecursionError):  # not JSON; items not hashable or sortable; nested too deep
    return None


def overlap(ids: Collection | None, golds: Collection[int]) -> float:
  """1 if the two sets are equal, 0.5 if they share an id, else 0; 0 for None.

  Source: ARENA (arXiv 2505.13258) sec. 3.3.
  """
  if ids is None:
    return 0.0
  if set(ids) == set(golds):
    return 1.0
  return 0.5 if set(ids) & set(golds) else 0.0
