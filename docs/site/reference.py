"""Reads the public symbols of a package without importing it, and writes a page of reference for each folder.

A symbol is public if neither its name nor its module's starts with an underscore: functions, classes, methods,
properties. Each needs a docstring, unless a base class has one for the method, or the module is a command and tells of
its `main`: `undocumented` lists those without one.
"""

import ast
import dataclasses
import pathlib
import re
import textwrap
from collections.abc import Iterator

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
# Sections whose lines are "name: text".
LISTED = ("Args", "Attributes", "Raises", "Yields", "Returns", "Fates")


@dataclasses.dataclass(frozen=True)
class Symbol:
  """One public definition.

  Attributes:
    name: dotted, within its module.
    kind: "class", "function", "method", "property"; "async function" and "async method" are awaited. "type": an
      alias, which needs no docstring.
    signature: arguments, and after an arrow what is returned; classes of the package with their modules, so that they
      can be linked to. Empty for a property. Of an alias, what it stands for.
    line: in its file, from 1.
    docstring: None where it has none.
    members: a class's methods and properties.
    bases: a class's base classes; those of the package with their modules.
  """

  name: str
  kind: str
  signature: str
  line: int
  docstring: str | None
  members: tuple["Symbol", ...] = ()
  bases: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Module:
  """One file: its dotted name, its path, its docstring, its public symbols."""

  name: str
  path: pathlib.Path
  docstring: str | None
  symbols: tuple[Symbol, ...]


def modules(package: pathlib.Path) -> list[Module]:
  """Every public module of a package's folder, by name."""
  trees = {}
  for path in package.rglob("*.py"):
    parts = path.relative_to(package.parent).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    if not any(part.startswith("_") for part in parts):
      trees[".".join(parts)] = path, ast.parse(path.read_text())
  classes = {f"{name}.{kind}" for name, (_, tree) in trees.items() for kind in _kinds(tree)}
  imported = {f"{name}.{here}": there for name, (_, tree) in trees.items() for here, there in _imports(tree).items()}
  found = []
  for name, (path, tree) in sorted(trees.items()):
    symbols = tuple(_symbols(_Qualified(name, classes, imported).visit(tree).body))
    found.append(Module(name, path, ast.get_docstring(tree), symbols))
  known = {f"{module.name}.{symbol.name}": symbol for module in found for symbol in module.symbols}
  inheriting = lambda module: tuple(_inheriting(symbol, known) for symbol in module.symbols)
  return [dataclasses.replace(module, symbols=inheriting(module)) for module in found]


def _inheriting(symbol: Symbol, known: dict[str, Symbol]) -> Symbol:
  """The class; its methods without a docstring get one that names the method of a base class that has one."""

  def bases(one: Symbol) -> Iterator[Symbol]:
    for base in filter(None, map(known.get, one.bases)):
      yield base
      yield from bases(base)

  told = {one.name.rpartition(".")[2]: one.name for base in bases(symbol) for one in base.members if one.docstring}
  refer = lambda name: f"See `{told[name]}`." if name in told else None
  docstring = lambda one: one.docstring or refer(one.name.rpartition(".")[2])
  members = tuple(dataclasses.replace(one, docstring=docstring(one)) for one in symbol.members)
  return dataclasses.replace(symbol, members=members)


def _kinds(tree: ast.Module) -> Iterator[str]:
  """Names of a module's public classes and aliases."""
  for node in tree.body:
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
      yield node.name
    elif alias := _alias(node):
      yield alias


def _imports(tree: ast.Module) -> dict[str, str]:
  """Name in the module → dotted name it was imported by."""
  nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
  return {alias.asname or alias.name: f"{node.module}.{alias.name}" for node in nodes for alias in node.names}


def _written(node: ast.AST) -> str:
  """The name that a part of an annotation stands for, dotted or quoted; "" if it is not a name."""
  if isinstance(node, ast.Constant):
    return node.value if isinstance(node.value, str) else ""
  return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def _alias(node: ast.stmt) -> str:
  """The name of a type's alias, `Rows = Mapping[str, Any]`; "" for other statements."""
  if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
    return ""
  name, value = node.targets[0].id, node.value
  is_type = isinstance(value, ast.Subscript) or isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr)
  return name if is_type and re.fullmatch(r"[A-Z][a-z]\w*", name) else ""


class _Qualified(ast.NodeTransformer):
  """Writes the package's classes in annotations with their modules: `Example` becomes `ragrl_jax.structs.Example`."""

  def __init__(self, module: str, classes: set[str], imported: dict[str, str]):
    self._module, self._classes, self._imported = module, classes, imported

  def _known(self, written: str) -> str:
    """The class's dotted name, through modules that hand it on; "" for a name that is no class of the package."""
    first, dot, rest = written.partition(".")
    full = f"{self._module}.{first}"
    full = self._imported.get(full, full) + dot + rest
    while full not in self._classes and full in self._imported:
      full = self._imported[full]
    return full if full in self._classes else ""

  def _of(self, annotation: ast.expr | None) -> ast.expr | None:
    known = self._known

    class Names(ast.NodeTransformer):
      def visit(self, node):
        written = _written(node)
        full = known(written) if written else ""
        return ast.parse(full, mode="eval").body if full else self.generic_visit(node)

    return annotation and Names().visit(annotation)

  def visit_arg(self, node: ast.arg) -> ast.arg:
    node.annotation = self._of(node.annotation)
    return node

  def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
    node.returns = self._of(node.returns)
    return self.generic_visit(node)

  visit_AsyncFunctionDef = visit_FunctionDef

  def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
    node.bases = [self._of(base) for base in node.bases]
    return self.generic_visit(node)

  def visit_Assign(self, node: ast.Assign) -> ast.AST:
    if _alias(node):
      node.value = self._of(node.value)
    return node

  def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
    node.annotation = self._of(node.annotation)
    return node


def undocumented(found: list[Module]) -> list[str]:
  """A line "file:line: name" for each public module and symbol without a docstring."""
  missing = []
  for module in found:
    if not module.docstring:
      missing.append(f"{module.path}:1: {module.name}")
    symbols = [member for symbol in module.symbols for member in (symbol, *symbol.members)]
    bare = [one for one in symbols if not one.docstring and one.kind != "type" and one.name != "main"]
    missing += [f"{module.path}:{one.line}: {module.name}.{one.name}" for one in bare]
  return missing


def _symbols(body: list[ast.stmt], owner: str = "") -> Iterator[Symbol]:
  """Public definitions of a module or of a class, each name once (a property's setter repeats it)."""
  seen = set()
  for node in body:
    if not owner and (alias := _alias(node)):
      yield Symbol(alias, "type", ast.unparse(node.value), node.lineno, None)
    if not isinstance(node, Definition) or node.name.startswith("_") or node.name in seen:
      continue
    seen.add(node.name)
    marks = {ast.unparse(mark).partition("(")[0].rpartition(".")[2] for mark in node.decorator_list}
    name = owner + node.name
    if isinstance(node, ast.ClassDef):
      members = tuple(_symbols(node.body, f"{name}."))
      bases, signature = tuple(map(ast.unparse, node.bases)), _of_class(node, "dataclass" in marks)
      yield Symbol(name, "class", signature, node.lineno, ast.get_docstring(node), members, bases)
    else:
      is_property = bool(marks & {"property", "cached_property"})
      awaited = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
      kind = "property" if is_property else awaited + ("method" if owner else "function")
      bound = bool(owner) and "staticmethod" not in marks
      signature = "" if is_property else _of_function(node, bound=bound)
      yield Symbol(name, kind, signature, node.lineno, ast.get_docstring(node))


def _of_function(node: ast.FunctionDef | ast.AsyncFunctionDef, *, bound: bool) -> str:
  arguments = node.args
  if bound:  # without self or cls
    first = arguments.posonlyargs or arguments.args
    del first[0]
  returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
  return f"({ast.unparse(arguments)}){returns}"


def _of_class(node: ast.ClassDef, is_record: bool) -> str:
  """What a class is made from: its constructor's arguments, or a dataclass's fields."""
  for one in node.body:
    if isinstance(one, ast.FunctionDef) and one.name == "__init__":
      return _of_function(one, bound=True)
  if not is_record:
    return ""
  fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and not ast.unparse(one.target).startswith("_")]
  given = [f"{ast.unparse(one.target)}: {ast.unparse(one.annotation)}{_default(one.value)}" for one in fields]
  return f"({', '.join(given)})"


def _default(value: ast.expr | None) -> str:
  if value is None:
    return ""
  if isinstance(value, ast.Call) and ast.unparse(value.func) == "setting":
    value = value.args[0]
  return " = ..." if isinstance(value, ast.Call) else f" = {ast.unparse(value)}"


# ---- pages -----------------------------------------------------------------------------------------------------------


def page(package: str, members: list[Module]) -> str:
  """A package's page, in MyST Markdown: a section for each of its modules."""
  return "\n".join(
    [f"# {package}\n", *(_section(module, "#" if module.name == package else "##") for module in members)]
  )


def anchor(module: Module) -> str:
  """What follows the "#" in a link to a module's section."""
  return _title(module).replace(".", "").lower()


def _title(module: Module) -> str:
  """A module's name without the package's: headings have to fit on a phone."""
  return module.name.partition(".")[2] or module.name


def _section(module: Module, heading: str) -> str:
  title = "" if heading == "#" else f"## {_title(module)}\n\n"
  parts = [f"{title}```{{py:module}} {module.name}\n```\n", markdown(module.docstring or "")]
  return "\n".join([*parts, *(_directive(symbol, 5) for symbol in module.symbols)])


def _directive(symbol: Symbol, ticks: int) -> str:
  fence = "`" * ticks
  short = symbol.name.rpartition(".")[2]
  if symbol.kind == "type":
    return f"{fence}{{py:type}} {short}\n:canonical: {symbol.signature}\n{fence}\n"
  awaited, _, kind = symbol.kind.rpartition(" ")
  opening = f"{fence}{{py:{kind}}} {short}{symbol.signature}\n" + (":async:\n" if awaited else "")
  inner = [markdown(symbol.docstring or ""), *(_directive(member, ticks - 1) for member in symbol.members)]
  return f"{opening}\n" + "\n".join(inner) + f"\n{fence}\n"


def markdown(docstring: str) -> str:
  """A docstring as Markdown: its sections as lists, its indented stretches as code, the rest as plain text.

  Text in `backticks` is code. Whatever else Markdown would read as a mark is shown as it is written.
  """
  lines, out = docstring.splitlines(), []
  while lines:
    line = lines.pop(0)
    section = re.fullmatch(r"([A-Z][a-z]+( [a-z]+)*):", line)
    deeper = []
    if section or line.startswith("  "):
      deeper = [] if section else [line]
      while lines and (not lines[0].strip() or lines[0].startswith("  ")):
        deeper.append(lines.pop(0))
    if section and deeper:
      text = textwrap.dedent("\n".join(deeper)).strip()
      out += ["", f"**{section[1]}**", "", _entries(text) if section[1] in LISTED else _plain(text), ""]
    elif deeper and not (out and _LIST.match(out[-1])):
      out += ["", "```text", textwrap.dedent("\n".join(deeper)).strip("\n"), "```", ""]
    elif deeper:  # the item of a list continues
      out += [_plain(one.strip()) for one in deeper]
    elif line.startswith("|"):  # a table
      out.append(_plain(line).replace("\\|", "|"))
    else:
      out.append(_plain(line))
  return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip() + "\n"


_LIST = re.compile(r"(\d+\\?\.|-) ")


def _entries(text: str) -> str:
  """Lines "name: text", the deeper ones continuing the last, as a list. Code in between stays as it is indented."""
  out = []
  for line in text.splitlines():
    named = re.match(r"(\*{0,2}[\w.,*\[\]\" |-]{1,60}?): (.+)", line)
    if named:
      out.append(f"- **{_escape(named[1])}**: {_plain(named[2])}")
    elif line.startswith("    "):  # an example of an entry
      out += ["", "  ```text", f"  {line.strip()}", "  ```", ""]
    elif line.startswith("  ") and out:
      out.append(f"  {_plain(line.strip())}")
    else:
      out.append(_plain(line))
  return "\n".join(out).replace("  ```\n\n\n  ```text\n", "")


def _plain(text: str) -> str:
  """Text as it is, code in backticks aside."""
  pieces = re.split(r"(``[^`]+``|`[^`\n]+`)", text)
  return "".join(piece if number % 2 else _escape(piece) for number, piece in enumerate(pieces))


def _escape(text: str) -> str:
  text = re.sub(r"([\\`*_<>\[\]{}|$~])", r"\\\1", text)
  return re.sub(r"(?m)^(\s*)([#+>=-])", r"\1\\\2", text) if not re.match(r"\s*- ", text) else text
