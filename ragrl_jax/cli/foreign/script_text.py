"""Reads the fields of a training script: a shell's command, YAML or JSON, or the keywords of Python calls.

Nothing is executed. A value that the script computes in another way than by variables and arithmetic keeps its text,
which then has a "$".
"""

import ast
import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import re
from typing import Any

import yaml

from ragrl_jax.cli.foreign import formula

NESTED = r"\$\{(?:[^{}]|\$\{[^{}]*\})*\}"
VALUE = rf"\$\(\((?:[^()]|\([^()]*\))*\)\)|\$\((?:[^()]|\([^()]*\))*\)|{NESTED}|\$\w+|\$[@*#?!$]"
PIECE = re.compile(
  rf"""\\\n|(?P<space>[ \t]+)|(?P<comment>(?<![^\s;])\#[^\n]*)|(?P<redirect>\d*[<>]+&?[^\n;]*)|(?P<end>[;\n|&]+)
  |'(?P<single>[^']*)'|"(?P<double>(?:\\.|{VALUE}|[^"\\])*)"|\\(?P<escaped>.)|(?P<value>{VALUE})|(?P<bracket>[()])
  |(?P<plain>[^\s;|&<>'"\\$()]+|.)""",
  re.VERBOSE | re.DOTALL,
)
ASSIGNED = re.compile(r"(\w+)(\+?)=(.*)", re.DOTALL)  # a shell's NAME=VALUE, or NAME+=VALUE
FIELD = re.compile(r"(~?)\+{0,2}([A-Za-z_][\w.@/-]*)(?:=(.*))?", re.DOTALL)  # hydra: NAME=VALUE, +NAME=…, ~NAME
DECLARES = ("export", "local", "declare", "readonly")
BEFORE = ("then", "do", "else", "{", "exec", "nohup", "time", "!")  # words that may stand before a command
BRANCHES, ENDS = ("if", "for", "while", "until", "case"), ("fi", "done", "esac")
TESTS = ("[", "[[", "test")
CALLS = dict(GRPOConfig="", ModelConfig="", LoraConfig="lora_", GRPOTrainer="trainer_", load_dataset="dataset_")
POSITIONS = dict(  # arguments without a keyword
  GRPOConfig=("output_dir",), GRPOTrainer=("model", "reward_funcs", "args", "train_dataset", "eval_dataset"),
  load_dataset=("path", "name"),
)  # fmt: skip
COUNTS = ("num_processes", "nproc_per_node", "nproc-per-node")  # a launcher's flags for the number of processes


@dataclasses.dataclass
class Script:
  """The fields of a script by name, and what it has that cannot be read: (name, reason)."""

  fields: dict[str, Any] = dataclasses.field(default_factory=dict)
  unread: list[tuple[str, str]] = dataclasses.field(default_factory=list)


def read(path: str | pathlib.Path) -> Script:
  """The fields of a file: .yaml, .yml and .json are data, .py is Python, all others are a shell's.

  Raises:
    ValueError: it is not text, not valid, or has no field.
  """
  path = pathlib.Path(path)
  try:
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".yaml", ".yml", ".json"):
      result = Script(flat(json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)))
    else:
      result = of_python(text) if path.suffix == ".py" else of_shell(text)
  except (ValueError, SyntaxError, yaml.YAMLError) as error:
    raise ValueError(f"{path}: it cannot be read: {' '.join(str(error).split())}") from error
  if not result.fields:
    raise ValueError(f"{path}: it has no field: no command with NAME=VALUE or --NAME VALUE, and no GRPOConfig(…).")
  return result


def number_or(text: Any) -> Any:
  """A word as a value: a number, True, False, None, a list, or else the text."""
  if not isinstance(text, str):
    return text
  for kind in (int, float):
    try:
      return kind(text)
    except ValueError:
      pass
  try:
    value = yaml.safe_load(text) if text and "$" not in text else text
  except yaml.YAMLError:
    return text
  is_value = isinstance(value, bool | list | dict) or (value is None and text in ("null", "None", "~"))
  return [*map(number_or, value)] if isinstance(value, list) else value if is_value else text


def flat(tree: Any, name: str = "") -> dict[str, Any]:
  """Nested mappings as dotted names → values. A list of one mapping counts as the mapping."""
  if isinstance(tree, list) and len(tree) == 1 and isinstance(tree[0], dict):
    tree = tree[0]
  if not isinstance(tree, dict) or (name and not tree):
    return {name: number_or(tree)} if name else {}
  result: dict[str, Any] = {}
  for key, value in tree.items():
    result |= flat(value, f"{name}.{key}".lstrip("."))
  return result


def interpolated(fields: dict[str, Any]) -> dict[str, Any]:
  """Values such as ${data.max_prompt_length} or ${oc.select:NAME,DEFAULT}, replaced by what they name."""

  def of(value: Any, depth: int = 0) -> Any:
    match = isinstance(value, str) and re.fullmatch(r"\$\{(?:oc\.select:\s*)?([\w.]+)(?:,\s*(.*?))?\s*\}", value)
    if not match or depth > 20 or (match[1] not in fields and match[2] is None):
      return value
    return of(fields[match[1]] if match[1] in fields else number_or(match[2]), depth + 1)

  return {name: of(value) for name, value in fields.items()}


# ---- shell -----------------------------------------------------------------------------------------------------------


def of_shell(text: str) -> Script:
  """The fields of the command that has most of them."""
  shell = _Shell(text.replace("\r\n", "\n"))
  scripts = [of_words(words) for words in shell.commands]
  result = max(scripts, key=lambda script: len(script.fields), default=Script())
  why = "it is set inside a condition or a loop, which is not run: write its value, or give hydra's resolved YAML"
  result.unread += [(f"${name}", why) for name in shell.unsure]
  for other in scripts:
    if other.fields != result.fields and other.fields.get("module", "") == result.fields.get("module"):
      result.unread.append((f"another {other.fields['module']}", "the command with most fields alone is read"))
  for words in shell.commands:
    if re.match(r"\+*\w+(\.\w+)+=", words[0]):  # the shell takes it for a command of its own
      result.unread.append((words[0], "the shell ends the command before this word, at a comment or without a \\"))
  return result


class _Shell:
  """The commands of a script, each a list of words, after the expansion of variables, arrays and arithmetic."""

  def __init__(self, text: str):
    self.names: dict[str, Any] = {}
    self.commands: list[list[str]] = []
    self.branched: dict[str, bool] = {}  # name → whether it was last set inside a condition or a loop
    self.unsure: dict[str, None] = {}  # those of them that are used
    self.depth = 0
    self.tested = False  # whether a test decides if the command in hand is run: [ … ] && …
    words: list[str] = []
    outer = words  # those before an array
    word: str | None = None
    array: str | None = None  # "NAME=" of an array that is being read, whose words are `words`
    for piece in PIECE.finditer(f"{text}\n"):
      kind, part = piece.lastgroup or "", piece[piece.lastgroup or 0]
      if kind in ("", "comment"):  # or a line that goes on
        continue
      if kind == "bracket" and part == "(" and array is None and ASSIGNED.fullmatch(word or ""):
        array, word = word, None
        outer, words = words, []
      elif kind in ("space", "end", "redirect", "bracket"):
        words += [] if word is None else [word]
        word = None
        if array is not None and kind == "bracket":
          self._assign(array, words, any("=" in one for one in words))
          array, words = None, outer
        elif array is None and kind == "end":
          self._run(words)
          if words:
            self.tested = part[:2] in ("&&", "||") and (self.tested or words[0] in TESTS)
          words = []
      elif kind == "value" or (kind == "double" and re.fullmatch(VALUE, part)):
        expanded = self._expanded(part)
        if isinstance(expanded, str):  # without quotes the shell splits it
          expanded = [expanded] if kind == "double" or expanded == part else expanded.split()
        if expanded:
          *whole, word = [(word or "") + expanded[0], *expanded[1:]]
          words += whole
      else:
        if kind == "double":
          part = re.sub(r'\\(["\\$`\n])', r"\1", re.sub(VALUE, lambda match: self._text(match[0]), part))
        word = (word or "") + part

  def _run(self, words: list[str]) -> None:
    while words and words[0] in BEFORE:
      words = words[1:]
    self.depth += bool(words) and (words[0] in BRANCHES) - (words[0] in ENDS)
    declares = bool(words) and words[0] in DECLARES
    words = words[declares:]
    while words and ASSIGNED.fullmatch(words[0]):
      self._assign(words[0], words[0].partition("=")[2])
      words = words[1:]
    if words and not declares:
      self.commands.append(words)

  def _assign(self, word: str, value: Any, matters: bool = True) -> None:
    """NAME=VALUE or NAME+=VALUE. matters: whether the value has fields; another array is of words of a launcher."""
    name, _, _ = word.partition("=")
    adds, name = name.endswith("+"), name.removesuffix("+")
    self.branched[name] = ((self.depth > 0 or self.tested) and matters) or bool(adds and self.branched.get(name))
    self.names[name] = self.names.get(name, type(value)()) + value if adds else value

  def _text(self, piece: str) -> str:
    value = self._expanded(piece)
    return " ".join(value) if isinstance(value, list) else value

  def _expanded(self, piece: str) -> Any:
    """The value of $NAME, ${NAME:-OTHER}, ${NAME[@]} or $((FORMULA)). Others keep their text."""
    if piece.startswith("$(("):
      try:
        plain = re.sub(VALUE, lambda value: self._text(value[0]), piece[3:-2]).replace("/", "//")
        return str(formula.evaluate(plain, lambda name: number_or(self.names[name]), {}))
      except (ValueError, KeyError, TypeError, ZeroDivisionError):
        return piece
    match = re.fullmatch(r"\$\{?(\w+|[@*#?!])(?:\[[@*]\])?(?::?[-=](.*?))?\}?", piece, re.DOTALL)
    if not match:
      return piece
    if match[1] in ("@", "*"):
      return ""  # the script's own arguments
    if self.branched.get(match[1]):
      self.unsure[match[1]] = None
    value = self.names.get(match[1], os.environ.get(match[1]))
    if match[2] is not None and not value:
      return re.sub(VALUE, lambda inner: self._text(inner[0]), match[2].strip("\"'"))
    return piece if value is None else value


def of_words(words: list[str]) -> Script:
  """The fields of one command: hydra's NAME=VALUE after `-m MODULE`, or --NAME VALUE after a file or `trl grpo`."""
  script, flag, started = Script(), "", False
  for before, word in zip(("", *words), words):
    if not started and (before == "-m" or word.endswith(".py") or before == "trl"):
      script.fields["module"], flag, started = word, "", True
    elif word == "--":
      flag = ""
    elif word.startswith("--"):
      flag, has, value = word[2:].partition("=")
      flag = flag.replace("-", "_") if started or flag in COUNTS else f"launcher.{flag}"
      negated = started and flag.startswith("no_") and not has
      script.fields[flag.removeprefix("no_") if negated else flag] = number_or(value) if has else not negated
      flag = "" if negated or has else flag
    elif started and (field := FIELD.fullmatch(word)) and (field[3] is not None or field[1]):
      flag = ""
      script.fields.pop(field[2], None)
      if not field[1]:
        script.fields[field[2]] = number_or(field[3])
    elif flag:
      now, value = script.fields[flag], number_or(word)
      script.fields[flag] = value if now is True else [*now, value] if isinstance(now, list) else [now, value]
  if "nproc_per_node" in script.fields:  # torchrun's, of each machine
    each, machines = script.fields.pop("nproc_per_node"), script.fields.get("launcher.nnodes", 1)
    known = isinstance(each, int) and isinstance(machines, int)
    script.fields["num_processes"] = each * machines if known else f"$({each} * {machines})"
  return script if started else Script()


# ---- Python ----------------------------------------------------------------------------------------------------------


def of_python(text: str) -> Script:
  """The keywords of GRPOConfig(…), and of calls that belong to it. Names that stand for one literal are replaced."""
  tree = ast.parse(text)
  bound = collections.Counter(_bound(node) for node in ast.walk(tree))
  names: dict[str, Any] = {}
  made: set[str] = set()  # names that a call below made, or has as its configuration
  result = Script()
  statements = (node for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.AnnAssign | ast.Call))
  seen = set()
  for node in sorted(statements, key=lambda node: node.lineno):
    if isinstance(node, ast.Assign | ast.AnnAssign):
      target = node.targets[0] if isinstance(node, ast.Assign) else node.target
      if isinstance(target, ast.Name) and isinstance(node.value, ast.Call) and _called(node.value) in CALLS:
        made.add(target.id)
      elif isinstance(target, ast.Name) and node.value and bound[target.id] == 1:
        with contextlib.suppress(ValueError, KeyError, TypeError):
          names[target.id] = _literal(node.value, names)
    elif (called := _called(node)) in CALLS:
      if called in seen:
        result.unread.append((f"another {called}(…)", "the first one alone is read"))
        continue
      seen.add(called)
      if called == "LoraConfig":
        result.fields["use_peft"] = called
      given = zip(POSITIONS.get(called, ()), node.args)
      for name, value in [*given, *((keyword.arg, keyword.value) for keyword in node.keywords)]:
        if name is None:
          result.unread.append((f"**{ast.unparse(value)}", "a mapping of keywords is not read: write them out"))
          continue
        if name == "args":  # the trainer's configuration, which a parser may have made
          made.add(ast.unparse(value))
        if called == "load_dataset":  # the command's dataset_name is its path, and dataset_config its name
          name = {"path": "name", "name": "config"}.get(name, name)
        name = CALLS[called] + name.removeprefix(CALLS[called])
        try:
          result.fields[name] = _literal(value, names)
        except (ValueError, KeyError, TypeError):
          result.fields[name] = f"$({ast.unparse(value)})"
  for node in ast.walk(tree):
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) in made:
      result.unread.append((ast.unparse(node), "it is set apart from the call: write it into the call"))
  return result


def _called(node: ast.Call) -> str:
  return ast.unparse(node.func).rpartition(".")[2]


def _bound(node: ast.AST) -> str:
  """The name that a node gives a value to, if it does."""
  if isinstance(node, ast.arg):
    return node.arg
  return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else ""


def _literal(node: ast.expr, names: dict[str, Any]) -> Any:
  return formula.evaluate(ast.unparse(node), names.__getitem__, {})
