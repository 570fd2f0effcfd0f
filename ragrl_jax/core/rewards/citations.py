"""Pay for naming the right passages by their numbers."""

import json
import re
from collections.abc import Collection

_INT = r"-?(?:0|[1-9]\d{0,8})"
_LIST = re.compile(rf"\s*\[\s*(?:{_INT}\s*(?:,\s*{_INT}\s*)*)?\]\s*", re.ASCII)


def parse_ids(text: str, *, strict: bool = True) -> list | None:
  """The numbers in a JSON list, sorted, each once; None if the text is no such list.

  Args:
    text: what stands between the tags.
    strict: only plain integers. Otherwise whatever Python can read as JSON, put into a set and sort, so that 1.0 and
      true pass for 1, as in ARENA's code; items that are no numbers stay and match nothing.
  """
  if strict:
    return sorted({int(number) for number in re.findall(_INT, text)}) if _LIST.fullmatch(text) else None
  try:
    return sorted(set(json.loads(text)))
  except (ValueError, TypeError, RecursionError):  # no JSON; nothing to put into a set or to sort; nested too deep
    return None


def overlap(ids: Collection | None, golds: Collection[int]) -> float:
  """1 if the two are the same set, 0.5 if they share something (a superset does), else 0.

  Source: ARENA (arXiv 2505.13258) sec. 3.2.
  """
  if ids is None:
    return 0.0
  if set(ids) == set(golds):
    return 1.0
  return 0.5 if set(ids) & set(golds) else 0.0
