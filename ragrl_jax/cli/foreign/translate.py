"""Says of every field of a training script what it becomes here, by the tables beside this file.

A table is data, and holds every field that is known. [settings] has a formula of their fields for each of our settings,
in their units; [let] has formulas that several share; [defaults] has their values of fields that a script leaves out;
[refuse] has, for a field x, when it is refused and why; [aside] has, for a reason, the fields without a meaning here;
[notes] in what a setting differs.
"""

import ast
import dataclasses
import difflib
import fnmatch
import functools
import json
import pathlib
import re
import textwrap
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from ragrl_jax import settings
from ragrl_jax.cli.foreign import formula
from ragrl_jax.cli.foreign.script_text import Script
from ragrl_jax.settings import fields as fields_lib

FOLDER = pathlib.Path(__file__).parent
TABLES = tuple(sorted(file.stem for file in FOLDER.glob("*.toml")))
OF_THEIRS = ("defaults", "refuse", "aside")  # parts with their names
PARTS = (*OF_THEIRS, "let", "settings", "sizes", "instead", "notes")
VERLS = ("_self_", "ppo_trainer", "ppo_megatron_trainer", "dapo_trainer")  # YAML files of its own
VERDICTS = {  # verdict → what it means, in the order in which they are printed
  "unknown": "not known",
  "refused": "refused: they would change results",
  "mapped": "mapped: in another unit or form",
  "kept": "kept",
  "aside": "set aside: without an effect here",
}


@dataclasses.dataclass(frozen=True)
class Line:
  """What became of a field: its verdict, our settings (name → value) and the reason. left_out: it is their default."""

  field: str
  value: Any
  verdict: str
  ours: dict[str, Any] = dataclasses.field(default_factory=dict)
  why: str = ""
  left_out: bool = False


@dataclasses.dataclass(frozen=True)
class Translation:
  """A script in our settings.

  Attributes:
    name: of the library, with its version.
    lines: one for each field of the script, and one for each default of theirs that was refused.
    given, defaults: our settings by dotted name, from the script's fields and from their defaults alone.
    notes: our setting → in what it differs.
  """

  name: str
  lines: tuple[Line, ...]
  given: dict[str, Any]
  defaults: dict[str, Any]
  notes: dict[str, str]

  def of(self, verdict: str) -> list[Line]:
    """The lines with this verdict."""
    return [line for line in self.lines if line.verdict == verdict]

  @property
  def complete(self) -> bool:
    """Whether every field was read, and none refused."""
    return not self.of("refused") and not self.of("unknown")


@functools.cache
def table(name: str) -> dict[str, Any]:
  """A table; one that `extends` another has its entries, too, except those that it sets itself."""
  entries_own = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
  base = table(entries_own["extends"]) if "extends" in entries_own else {}
  entries_own["short"] = entries_own.get("short", {}) | base.get("short", {})
  entries_own["aside"] = {key: why for why, keys in entries_own["aside"].items() for key in keys.split()}
  for part in PARTS:
    entries = {
      _long(one, entries_own) if part in OF_THEIRS else one: value
      for key, value in entries_own.get(part, {}).items()
      for one in _spread(key)
    }
    entries_joined = entries | {key: value for key, value in base.get(part, {}).items() if key not in entries}
    entries_own[part] = {key: value for key, value in entries_joined.items() if value != ""}
  return entries_own


def _spread(key: str) -> list[str]:
  """The names that a key with braces stands for: "a.{b,c}" is a.b and a.c."""
  match = re.fullmatch(r"(.*?)\{(.*?)\}(.*)", key)
  return [key] if not match else [
    name for word in match[2].split(",") for name in _spread(f"{match[1]}{word}{match[3]}")
  ]  # fmt: skip


def _long(name: str, one: Mapping[str, Any]) -> str:
  first, dot, rest = name.partition(".")
  return one["short"].get(first, first) + dot + rest


def chosen(given: Mapping[str, Any]) -> str:
  """The table that knows most of a script's fields; of two that know as many, the one that the other extends.

  Raises:
    ValueError: no table knows half of them.
  """

  def score(name: str) -> tuple[int, bool]:
    one = table(name)
    read = _names(one)
    return sum(field in read or _aside(field, one) is not None for field in given), "extends" not in one

  best = max(TABLES, key=score)
  if 2 * (score_found := score(best)[0]) < len(given):
    raise ValueError(
      f"only {score_found} of the script's {len(given)} fields are known ({', '.join(TABLES)}): scripts of other "
      "libraries are not read (docs/howto/run.md has fields of SkyRL and Tunix). --of reads it all the same."
    )
  return best


def translate(script: Script, name: str, *, files: int = 1) -> Translation:
  """The script in our settings, by the table of this name. files: how many files it has been read from."""
  return _Work(script, table(name), files).result()


def _names(one: Mapping[str, Any]) -> set[str]:
  """Every field that a table's formulas name."""
  names = {*one["defaults"], *one["refuse"]}
  for text in (*one["let"].values(), *one["settings"].values(), *(when for when, _ in one["refuse"].values())):
    for node in ast.walk(ast.parse(str(text).strip(), mode="eval")):
      if isinstance(node, ast.Name | ast.Attribute):
        names.add(_long(ast.unparse(node), one))
      elif isinstance(node, ast.Call) and ast.unparse(node.func) == "given":
        names |= {_long(str(one_of.value), one) for one_of in node.args if isinstance(one_of, ast.Constant)}
  return names - set(one["let"])


def _aside(field: str, one: Mapping[str, Any]) -> str | None:
  return next((why for like, why in one["aside"].items() if fnmatch.fnmatchcase(field, like)), None)


class _Work:
  """One translation, field by field."""

  def __init__(self, script: Script, one: Mapping[str, Any], files: int):
    self.table, self.script, self.files = one, script, files
    self.known = _names(one)
    self.read: set[str] = set()  # fields that the formula in hand has read
    has = lambda *names: any(_long(name, one) in script.fields for name in names)
    self.calls: dict[str, Callable[..., Any]] = dict(
      formula.CALLS, given=has, join=_join, layers=_layers, others=_others
    )
    self.refused: dict[str, str] = {}
    self.used: dict[str, dict[str, Any]] = {}  # field → our settings that depend on it
    self.waiting: dict[str, str] = {}  # field → a refused one, without which a setting that depends on it has no value

  def get(self, name: str) -> Any:
    """The value of a field, or of a formula of [let]."""
    if name in self.table["let"]:
      return self.value(self.table["let"][name])
    if name == "files":
      return self.files
    name = _long(name, self.table)
    self.read.add(name)
    return self.of(name)

  def of(self, field: str) -> Any:
    """A field's value, or their default."""
    return self.script.fields.get(field, self.table["defaults"].get(field))

  def value(self, text: Any) -> Any:
    """The value of a formula."""
    return formula.evaluate(text, self.get, self.calls) if isinstance(text, str) else text

  def result(self) -> Translation:
    """The account and the settings."""
    for field, (when, why) in self.table["refuse"].items():
      value = self.of(field)
      try:
        if formula.evaluate(when, lambda name, value=value: value if name == "x" else self.get(name), self.calls):
          self.refused[field] = why
      except (KeyError, TypeError):
        continue  # it depends on what the script computes, which is refused
    given, defaults, notes = {}, {}, {}
    for setting, text in {**self.table["settings"], **self.table["sizes"]}.items():
      self.read = set()
      try:
        value = self.value(text)
        if isinstance(value, str) and "$" in value:
          raise TypeError("text of the shell")
      except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        self._no_value(setting, str(text), error)
        continue
      if value is None:
        continue
      fields_read = set() if setting in self.table["sizes"] else self.read & self.script.fields.keys()
      for field in fields_read:
        self.used.setdefault(field, {})[setting] = value
      if fields_read or value != _default(setting):
        (given if fields_read else defaults)[setting] = value
        if note := self.table["notes"].get(f"{setting}={value}", self.table["notes"].get(setting)):
          notes[setting] = note
    lines = [self._line(field, value) for field, value in self.script.fields.items()]
    lines_refused = [Line(field, self.of(field), "refused", why=why, left_out=True)
            for field, why in self.refused.items() if field not in self.script.fields]  # fmt: skip
    unread = [Line(field, "", "refused", why=why) for field, why in self.script.unread]
    return Translation(self.table["name"], (*lines, *lines_refused, *unread), given, defaults, notes)

  def _no_value(self, setting: str, text: str, error: Exception) -> None:
    """Refuses the fields of a formula without a value."""
    if lacking := self.read & self.refused.keys():
      self.waiting |= dict.fromkeys(self.read - lacking, min(lacking))
      return
    fields = sorted(self.read & self.script.fields.keys()) or sorted(self.read)
    if any("$" in str(self.of(one)) for one in fields):
      return  # `_line` refuses it
    if isinstance(error, KeyError):  # a word that has no entry
      fields = [one for one in fields if self.of(one) == error.args[0]]
      words = ", ".join(re.findall(r"'([^']*)':", text))
      why = self.table["instead"].get(error.args[0]) or f"config.{setting} has nothing like it; known are {words}"
    else:
      why = f"config.{setting} cannot be computed from it ({error})"
    for field in fields:
      self.refused.setdefault(field, why)

  def _line(self, field: str, value: Any) -> Line:
    ours = self.used.get(field, {})
    if field in self.known and "$" in str(value) and field not in self.table["aside"]:
      self.refused.setdefault(field, "the script computes it: write its value, or give it by --set")
    if field in self.refused:
      return Line(field, value, "refused", why=self.refused[field])
    if ours:
      return Line(field, value, "kept" if value in ours.values() else "mapped", ours)
    unset = not value or (isinstance(value, int | float) and value < 0)  # -1 stands for "not given"
    if field in self.waiting and not unset:
      return Line(field, value, "refused", why=f"what it means depends on {self.waiting[field]}, which is refused")
    if field not in self.table["aside"]:
      if field in self.table["refuse"]:
        return Line(field, value, "kept", why="as it is here")
      if field in self.known:
        return Line(field, value, "aside", why="no effect beside the script's other fields")
    if (why := _aside(field, self.table)) is not None:
      return Line(field, value, "aside", why=why)
    near = difflib.get_close_matches(field, self.known, n=1, cutoff=0.5)
    return Line(field, value, "unknown", why=f"the nearest known field is {near[0]}" if near else "")


def _default(setting: str) -> Any:
  if setting.startswith("switches."):
    return None
  return fields_lib.at(settings.Settings(), setting)


def _join(names: Any) -> str | None:
  """Files as config.data has them: one text, joined by commas."""
  return names if names is None else ",".join(names) if isinstance(names, list) else str(names)


def _others(names: Any) -> list[str]:
  """The files of hydra's list of defaults that are not verl's own."""
  return [name for name in names or () if isinstance(name, str) and name not in VERLS]


def _layers(names: Any) -> str | None:
  """config.model.lora.layers of PEFT's target modules; None: all of them, as by default."""
  if names in (None, "all-linear"):
    return None
  return " ".join(str(name).removesuffix("_proj") for name in ([names] if isinstance(names, str) else names))


def config_text(translation: Translation, source: str) -> str:
  """A config file with the settings of a translation: `--config FILE.py`, with the variant smoke."""
  recipe = translation.given.get("recipe") or translation.defaults.get("recipe") or settings.Settings().recipe
  left_out = [*translation.of("refused"), *translation.of("unknown")]
  lines = [f"{source} in the settings of this package, read as {translation.name}.", ""]
  lines += ["Not taken over:"] * bool(left_out)
  for one in left_out:
    text = f"{one.field}={one.value}: {one.why}"
    lines += textwrap.wrap(text, 120, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
  lines += [""] * bool(left_out)
  lines += ["Run:    ragrl train --config THIS_FILE.py --workdir OUT", "Variants: smoke (tiny sizes, same rules)."]
  body = [f'  config, chosen = recipes.configure("{recipe}", variant)']
  sections = [field.name for field in dataclasses.fields(settings.Settings)]
  heading = "Their defaults, where they differ from ours, and sizes for accelerators."
  for values, title in ((translation.given, "From the script."), (translation.defaults, heading)):
    body += ["", f"  # {title}"]
    for name, value in sorted(values.items(), key=lambda one: sections.index(one[0].partition(".")[0])):
      if note := translation.notes.get(name):
        text = note[0].upper() + note[1:] + "."
        body += textwrap.wrap(text, 120, initial_indent="  # ", subsequent_indent="  # ")
      value_text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
      body += [f"  config.{name} = {value_text}"] * (name != "recipe")
  docstring = "\n".join(lines).replace("\\", "/").replace('"""', "'''")
  head = "from ragrl_jax import config as config_lib\nfrom ragrl_jax import recipes\n\n\n"
  last = '  return config_lib.shrink(config) if "smoke" in chosen else config\n'
  return "\n".join([f'r"""{docstring}\n"""\n\n{head}def get_config(variant: str = ""):', *body, last])
