"""Rooms import only earlier rooms, and core/ does no I/O."""

import ast
import pathlib
import re
import tomllib

import ragrl_jax

ROOT = pathlib.Path(ragrl_jax.__file__).parent

# A room may import rooms of earlier rows. Rooms of one row are strangers, but for the doors in BESIDE.
ROWS = (
  ("core", "structs", "settings", "config"),
  ("parallel", "store", "chat"),
  ("prompting", "models"),
  ("data", "retrieval", "judging", "engine", "learner", "protocol"),
  ("rollout", "recipes", "plan"),
  ("run", "testing", "agents"),
  ("evaluation", "report", "serving"),
  ("jobs", "cli"),
)
ROW_OF = {room: row for row, rooms in enumerate(ROWS) for room in rooms}
# room → the rooms of its own row that it may import. Each of these has no door back.
BESIDE = {
  "settings": {"core", "structs"}, "config": {"settings"}, "store": {"parallel"}, "chat": {"store"},
  "models": {"prompting"}, "retrieval": {"protocol"}, "serving": {"report"}, "cli": {"jobs"},
}  # fmt: skip
# Modules of recipes/ that every recipe may import.
RECIPES_SHARE = "recipe parts search_agent scripts steps".split()
CORE_MAY_IMPORT = set(
  "ragrl_jax jax numpy scipy jaxtyping abc bisect collections dataclasses difflib enum functools "
  "heapq itertools json math re string typing unicodedata".split()
)
CORE_MAY_NOT_CALL = {"open", "print", "input", "eval", "exec"}


def imports_of(path):
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      if node.level:
        raise AssertionError(f"{path}: write imports from ragrl_jax down")
      yield from (f"{node.module}.{alias.name}" for alias in node.names)


# The files of the commands that recipes declare, which may import what those of cli/ may.
COMMANDS = {
  file.parent / f"{name.replace('-', '_')}.py"
  for file in ROOT.glob("recipes/*/commands.toml")
  for name in tomllib.loads(file.read_text())
}
room_of = lambda path: "cli" if path in COMMANDS else path.relative_to(ROOT).parts[0].removesuffix(".py")
FILES = [p for p in sorted(ROOT.rglob("*.py")) if p not in (ROOT / "__init__.py", ROOT / "__main__.py")]


def test_imports_point_to_earlier_rows():
  for path in FILES:
    here = room_of(path)
    for name in imports_of(path):
      top, *rest = name.split(".")
      if top == "ragrl_jax" and rest and rest[0] != here:
        assert rest[0] != "agents", f"{path}: no room may import agents, which can be taken away"
        earlier = ROW_OF[rest[0]] < ROW_OF[here]
        assert earlier or rest[0] in BESIDE.get(here, ()), f"{path}: {here} may not import {rest[0]}"
      if here == "recipes" and name.startswith("ragrl_jax.recipes.") and path.parent.name != "recipes":
        own = path.relative_to(ROOT).parts[1]
        assert rest[1] in (own, *RECIPES_SHARE), f"{path}: recipe {own} may not import {rest[1]}"
      if here == "core":
        assert top in CORE_MAY_IMPORT, f"{path}: core/ may not import {top}"


def test_doors_within_a_row_open_one_way():
  for here, others in BESIDE.items():
    for there in others:
      assert ROW_OF[there] == ROW_OF[here], f"{here} may import {there} without a door of its own"
      assert here not in BESIDE.get(there, ()), f"{here} and {there} import each other"


def test_core_is_pure():
  for path in (path for path in FILES if room_of(path) == "core"):
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        assert node.func.id not in CORE_MAY_NOT_CALL, f"{path}:{node.lineno}"
      if isinstance(node, ast.Attribute) and node.attr == "random":
        assert ast.unparse(node.value) == "jax", f"{path}:{node.lineno}: pass a key"
      assert not isinstance(node, ast.Global), f"{path}:{node.lineno}"


# File names that two rooms may share: a command and the module that it calls; a formula and the module that applies it.
SHARED = {"train", "sft", "evaluate", "probe", "quadrants", "answer_recall", "config", "advantages"}


def test_a_files_name_says_which_file():
  """Recipes and agents are left out: their files have the same names on purpose."""
  places = {}
  for path in FILES:
    if room_of(path) not in ("recipes", "agents") and path.stem != "__init__":
      places.setdefault(path.stem, []).append(str(path.relative_to(ROOT)))
  twice = {name: files for name, files in places.items() if len(files) > 1 and name not in SHARED}
  assert not twice, f"name one of them after what it holds: {twice}"


NAMES = re.compile(r"(?<![A-Za-z0-9])(arena|care|lear|veritas|search_r1|when_to_search)(?![A-Za-z0-9])")
MAY_NAME = ("recipes/", "configs/", "evaluation/tables/")
# file → the name that it may have: the default of config.recipe, and glibc's word for a heap
EXCEPT = {"settings/__init__.py": {"search_r1"}, "store/malloc.py": {"arena"}}


def names_in(path):
  """The recipes that a file's code names: in names, imports and texts, docstrings and comments aside."""
  text = path.read_text(encoding="utf-8")
  if path.suffix != ".py" or not NAMES.search(text):
    return set(NAMES.findall(text))
  tree = ast.parse(text)
  holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
  for node in ast.walk(tree):
    if isinstance(node, holders) and ast.get_docstring(node) is not None:
      node.body[0].value.value = ""
  return set(NAMES.findall(ast.unparse(tree)))


def test_no_machinery_names_a_recipe():
  files = [file for file in ROOT.rglob("*") if file.suffix in (".py", ".js", ".css", ".toml", ".jinja")]
  for path in files:
    place = path.relative_to(ROOT).as_posix()
    if not place.startswith(MAY_NAME):
      named = names_in(path) - EXCEPT.get(place, set())
      assert not named, f"{place} names {', '.join(named)}: let the recipe declare what is needed (recipes/recipe.py)"


def test_a_recipes_name_is_found_anywhere_but_in_docstrings(tmp_path):
  file = tmp_path / "a.py"
  for code in ("import x.arena", "arena_lib = 1", 'say = f"use {x} or arena"', "f(arena=1)", "veritas.steps()"):
    file.write_text(f'"""As care does."""\n{code}  # lear\n')
    assert names_in(file) == {"veritas" if "veritas" in code else "arena"}, code
