"""Records that check and explain their own fields. A field's annotation gives its type, `setting` all else.

@dataclasses.dataclass(frozen=True)
class Data(Checked):
  noise: int = setting(0, "added to each question", unit="passages", least=0)

Data(noise=-1) raises a ValueError: "noise=-1: it must be at least 0."

`groups` and `text` tell what each setting means, for `ragrl settings`, `--help` and the site.
"""

import dataclasses
import functools
import math
import operator
import shutil
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

FILE = "file:"  # "file:PATH" instead of a name: the user's own text, see prompting/wording.py
T = TypeVar("T")
Rules = Iterator[tuple[bool, str]]  # whether a rule holds, and the message if it does not
# Names of settings, the one that decides whether they are read, and for which of its values they are.
Reads = Iterable[tuple[str, str, Callable[[Any], Any]]]
BOUNDS = {  # name → (comparison of a value with the bound, words for a message)
  "least": (operator.ge, "at least"),
  "above": (operator.gt, "above"),
  "most": (operator.le, "at most"),
  "below": (operator.lt, "below"),
}


def setting(
  default: Any, meaning: str = "", *, unit: str = "", choices: Iterable[Any] = (), files: bool = False, **bounds: float
) -> Any:
  """A field of a dataclass.

  Args:
    meaning: what the value decides, which `ragrl settings` and the site's reference print.
    unit: what a number counts or measures, such as "tokens" or "seconds".
    choices: all allowed values; if empty, all values of the type.
    files: "file:PATH" is allowed instead of a choice.
  """
  assert bounds.keys() <= BOUNDS.keys()
  metadata = {"meaning": meaning, "unit": unit, "choices": tuple(choices), "files": files, "bounds": bounds}
  return dataclasses.field(default=default, metadata=metadata)


def mapping(meaning: str, *, rest: bool = False) -> Any:
  """A field for a mapping, empty by default; or for the `rest`: what `build` gets under names that the class lacks."""
  return dataclasses.field(default_factory=dict, metadata={"meaning": meaning, "rest": rest})


@dataclasses.dataclass(frozen=True)
class Checked:
  """A record whose fields are checked when it is made.

  Raises:
    ValueError: the message has the field, its value and what it must be.
  """

  WHERE = ""  # before a field's name in messages

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if (must := must_be(type(self), field.name, value)) is not None:
        raise ValueError(self.refusal(field.name, value, must))
    for holds, message in self.rules():
      if not holds:
        raise ValueError(message)

  def refusal(self, name: str, value: Any, must: str) -> str:
    """The message for a field with a value that is not allowed."""
    return f"{self.WHERE}{name}={value!r}: it must be {must}."

  def rules(self) -> Rules:
    """(whether the rule holds, message if not) for every rule between fields."""
    return iter(())


@dataclasses.dataclass(frozen=True)
class Section(Checked):
  """Settings under a path of the config: `class Loss(Section, path="loss")`."""

  WHERE = "config."

  def __init_subclass__(cls, path: str = "") -> None:
    if path:  # a subclass without one keeps its parent's
      cls.WHERE = f"config.{path}."


def must_be(record: type, name: str, value: Any) -> str | None:
  """What the field must be, if `value` is not allowed; else None."""
  allowed, field = kinds(record)[name], _fields(record)[name]
  choices, bounds = field.metadata.get("choices", ()), field.metadata.get("bounds", {})
  if type(None) in allowed and value is None:
    return None
  if choices:
    # True == 1, but it is not one of the choices 0, 1, ….
    known = any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in choices)
    if field.metadata["files"]:
      known = known or (isinstance(value, str) and value.startswith(FILE))
      choices = (*choices, f"{FILE}PATH")
    return None if known else _listed(choices)
  kind = next((kind for kind in allowed if kind in NOUNS), None)
  if kind is None:
    return None
  if not _is(value, kind):
    return _worded(kind, bounds, type(None) in allowed, field.default)
  if all(BOUNDS[bound][0](value, limit) for bound, limit in bounds.items()):
    return None
  return _worded(kind, bounds, True, None) if type(None) in allowed else in_words(bounds)


NOUNS = {bool: "True or False", int: "a whole number", float: "a finite number", str: "a text"}


def _is(value: Any, kind: type) -> bool:
  if kind is float:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
  return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _worded(kind: type, bounds: Mapping[str, float], optional: bool, example: Any) -> str:
  if optional:
    return f"None or {NOUNS[kind].replace('finite ', '')} {in_words(bounds)}".rstrip()
  return NOUNS[kind] if kind is bool or example is dataclasses.MISSING else f"{NOUNS[kind]}, such as {example!r}"


def in_words(bounds: Mapping[str, float]) -> str:
  """A range in words, such as "above 0 and at most 1"."""
  if bounds.keys() == {"least", "most"}:
    return f"between {bounds['least']} and {bounds['most']}"
  return " and ".join(f"{BOUNDS[bound][1]} {limit}" for bound, limit in bounds.items())


def _listed(choices: Iterable[Any]) -> str:
  *most, last = map(repr, choices)
  return f"{', '.join(most)} or {last}"


def build(record: type[T], values: Mapping[str, Any], where: str) -> T:
  """Makes a record from nested mappings; lists become tuples.

  Args:
    record: a dataclass; a field that is a dataclass takes a mapping.
    values: field → value. Omitted fields get their defaults.
    where: prefix of the names in messages, such as "config.rollout".

  Raises:
    ValueError: an unknown name, or an invalid value.
  """
  fields, given, more = _fields(record), {}, {}
  for name, value in values.items():
    if name not in fields or fields[name].metadata.get("rest"):
      more[name] = value
      continue
    inner = kinds(record)[name][0]
    if isinstance(inner, type) and issubclass(inner, Checked):
      value = build(inner, value, f"{where}.{name}")
    given[name] = tuple(value) if isinstance(value, list) else value
  if more:
    into = next((name for name, field in fields.items() if field.metadata.get("rest")), None)
    if into is None:
      raise ValueError(f"{where}.{next(iter(more))}: there is no such setting; {where} has {', '.join(fields)}.")
    given[into] = more
  return record(**given)


def plain(record: Any) -> dict[str, Any]:
  """The nested dicts from which `build` makes this record."""
  result: dict[str, Any] = {}
  for name, field in _fields(type(record)).items():
    value = getattr(record, name)
    if field.metadata.get("rest"):
      result |= value
    else:
      result[name] = plain(value) if dataclasses.is_dataclass(value) else value
  return result


def at(record: Any, name: str) -> Any:
  """The value of a dotted name, such as "model.path"; None if a mapping in a record has no such name."""
  for part in name.split("."):
    record = record.get(part) if isinstance(record, Mapping) else getattr(record, part)
  return record


def replaced(record: T, values: Mapping[str, Any]) -> T:
  """A copy of a record, or of a mapping, with other values by dotted name: {"model.path": "…"}. It is checked again."""
  own: dict[str, Any] = {}
  inner: dict[str, dict[str, Any]] = {}
  for name, value in values.items():
    first, _, rest = name.partition(".")
    if rest:
      inner.setdefault(first, {})[rest] = value
    else:
      own[first] = value
  own |= {first: replaced(at(record, first), group) for first, group in inner.items()}
  return {**record, **own} if isinstance(record, Mapping) else dataclasses.replace(record, **own)  # pyright: ignore


@functools.cache
def _fields(record: Any) -> dict[str, dataclasses.Field[Any]]:
  return {field.name: field for field in dataclasses.fields(record)}


@functools.cache
def kinds(record: type) -> dict[str, tuple[Any, ...]]:
  """The types that each field may have: `float | None` gives (float, NoneType)."""
  hints = typing.get_type_hints(record)
  split = lambda hint: typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
  return {name: split(hints[name]) for name in _fields(record)}


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
  settings, inner = [], []
  for field in dataclasses.fields(record):
    kind = kinds(record)[field.name][0]
    if isinstance(kind, type) and issubclass(kind, Checked):
      inner.append((kind, f"{path}.{field.name}".lstrip(".")))
      continue
    more = field.metadata
    default = "" if field.default is dataclasses.MISSING or field.default == "" else str(field.default)
    choices = [*(str(one) for one in more.get("choices", ()) if one != ""), *["file:PATH"] * more.get("files", False)]
    allowed = ", ".join(choices) or in_words(more.get("bounds", {}))
    settings.append(Setting(field.name, default, more.get("meaning", ""), more.get("unit", ""), allowed))
  yield Group(path, " ".join((record.__doc__ or "").split()), tuple(settings))
  for kind, place in inner:
    yield from groups(kind, place)


def find(record: type, name: str) -> list[Group]:
  """The groups of `record` that a name stands for: a section with those in it, or each setting of this name."""
  name = name.removeprefix("config.")
  all_groups = list(groups(record))
  if sections := [group for group in all_groups if group.path and f"{group.path}.".startswith(f"{name}.")]:
    return sections
  of = lambda group: tuple(one for one in group.settings if f".{group.path}.{one.name}".endswith(f".{name}"))
  return [group._replace(settings=settings) for group in all_groups if (settings := of(group))]


def text(group: Group, where: str = "config") -> str:
  """A group as lines for a terminal: "NAME=DEFAULT  MEANING [UNIT; CHOICES]"."""
  path = ".".join(part for part in (where, group.path) if part)
  width = min(shutil.get_terminal_size((120, 24)).columns, 120)
  lines = [textwrap.fill(f"{path}: {group.meaning}", width)]
  for item in group.settings:
    limits = "; ".join(part for part in (item.unit, item.allowed) if part)
    left, right = f"  {item.name}={item.default}", f"{item.meaning} {limits and f'[{limits}]'}".rstrip()
    lines.append(textwrap.fill(right, width, initial_indent=f"{left:<26}  ", subsequent_indent=" " * 28))
  return "\n".join(lines)
