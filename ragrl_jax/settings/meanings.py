"""What each setting means, for `ragrl settings`, `--help` and the site, from the declarations in this room."""

import dataclasses
import shutil
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from ragrl_jax.settings import fields


class Setting(NamedTuple):
  """One setting: name, default, meaning, unit ("" without one), and its choices or range in words ("" for any)."""

  name: str
  default: str
  meaning: str
  unit: str
  allowed: str


class Group(NamedTuple):
  """Settings of one record: its path ("" for the top), its meaning, and the settings that no inner record holds."""

  path: str
  meaning: str
  settings: tuple[Setting, ...]


def groups(record: type, path: str = "") -> Iterator[Group]:
  """A record's own settings, then those of the records in it."""
  own, inner = [], []
  for field in dataclasses.fields(record):
    kind = fields.kinds(record)[field.name][0]
    if isinstance(kind, type) and issubclass(kind, fields.Checked):
      inner.append((kind, f"{path}.{field.name}".lstrip(".")))
      continue
    more = field.metadata
    default = "" if field.default is dataclasses.MISSING or field.default == "" else str(field.default)
    choices = [*(str(one) for one in more.get("choices", ()) if one != ""), *["file:PATH"] * more.get("files", False)]
    allowed = ", ".join(choices) or fields.in_words(more.get("bounds", {}))
    own.append(Setting(field.name, default, more.get("meaning", ""), more.get("unit", ""), allowed))
  yield Group(path, " ".join((record.__doc__ or "").split()), tuple(own))
  for kind, place in inner:
    yield from groups(kind, place)


def find(record: type, name: str) -> list[Group]:
  """The groups of `record` that a name stands for: a section with those in it, or each setting of this name."""
  name = name.removeprefix("config.")
  every = list(groups(record))
  if whole := [group for group in every if group.path and f"{group.path}.".startswith(f"{name}.")]:
    return whole
  found = []
  for group in every:
    kept = [one for one in group.settings if f".{group.path}.{one.name}".endswith(f".{name}")]
    found += [group._replace(settings=tuple(kept))] if kept else []
  return found


def text(group: Group, where: str = "config") -> str:
  """A group as lines for a terminal: "NAME=DEFAULT  MEANING [UNIT; CHOICES]"."""
  path = ".".join(part for part in (where, group.path) if part)
  width = min(shutil.get_terminal_size((120, 24)).columns, 120)
  lines = [textwrap.fill(f"{path}: {group.meaning}", width)]
  for one in group.settings:
    limits = "; ".join(part for part in (one.unit, one.allowed) if part)
    left, right = f"  {one.name}={one.default}", f"{one.meaning} {limits and f'[{limits}]'}".rstrip()
    lines.append(textwrap.fill(right, width, initial_indent=f"{left:<26}  ", subsequent_indent=" " * 28))
  return "\n".join(lines)
