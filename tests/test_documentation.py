import ast
import dataclasses
import json
import pathlib
import re
import runpy
import subprocess
import sys
import types

import pytest

import ragrl_jax
from ragrl_jax import recipes
from ragrl_jax.models import hub
from ragrl_jax.recipes import recipe as recipe_lib

ROOT = pathlib.Path(__file__).parents[1]
JOBS = "model corpus reward judges run evaluate tables serve agents hosts".split()
NOTEBOOK = ROOT / "notebooks" / "your_own_recipe.ipynb"


def code_cells(notebook=NOTEBOOK):
  cells = json.loads(notebook.read_text())["cells"]
  return [cell for cell in cells if cell["cell_type"] == "code"]


def reference():
  return runpy.run_path(str(ROOT / "docs" / "site" / "reference.py"))


@pytest.mark.slow  # builds the site's reference
def test_every_symbol_is_documented_and_every_link_has_a_target(tmp_path):
  command = [sys.executable, "docs/site/build.py", "--check", "--out", str(tmp_path / "docs")]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  source = tmp_path / "docs_source"
  assert "policy_loss(" in (source / "reference" / "ragrl_jax.core.md").read_text()
  readme = (source / "readme.md").read_text()
  assert "(recipes/arena.md)" in readme and "(reference/ragrl_jax.jobs.md#jobstrain)" in readme  # rewritten links


def test_commands_in_the_pages_have_the_flags_that_they_need():
  pages = [ROOT / "README.md", *(ROOT / "docs" / "howto").glob("*.md")]
  given = [words for page in pages for words in re.findall(r"ragrl tables (--[^`\n]*)", page.read_text("utf-8"))]
  assert len(given) > 2 and all("--paper" in words for words in given), given


def test_the_page_on_models_lists_the_settings_that_take_a_name_on_the_hub():
  page = (ROOT / "docs" / "howto" / "model.md").read_text(encoding="utf-8")
  assert [name for name in hub.SETTINGS if f"`config.{name}`" not in page] == []


def test_no_help_is_wider_than_a_page():
  """Two lines of a command that a backslash joins in the source would be one, if the docstring were not raw."""
  for path in (*ROOT.glob("ragrl_jax/cli/*.py"), *ROOT.glob("ragrl_jax/recipes/*/*.py")):
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert all(len(line) <= 120 for line in text.splitlines()), path


def test_the_site_has_five_groups_of_pages_and_no_page_is_long():
  index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
  groups = dict(re.findall(r":caption: ([^\n]*)\n:maxdepth: 1\n\n(.*?)\n```", index, re.DOTALL))
  assert list(groups) == ["Start", "Notebooks", "Do a job", "Understand", "Results"]
  assert len(groups["Start"].splitlines()) <= 3
  assert set(groups["Notebooks"].split()) == {f"notebooks/{path.stem}" for path in NOTEBOOK.parent.glob("*.ipynb")}
  assert groups["Do a job"].split() == [f"howto/{name}" for name in JOBS]
  assert {path.stem for path in (ROOT / "docs" / "howto").iterdir()} == set(JOBS)
  assert all(f"(docs/howto/{name}.md)" in (ROOT / "README.md").read_text(encoding="utf-8") for name in JOBS)
  long = {path.name: path.stat().st_size for path in (ROOT / "docs").rglob("*.md") if path.stat().st_size > 100_000}
  assert not long, f"put long tables into a compressed file beside their benchmark: {long}"


def test_the_changelog_begins_with_this_version_and_gives_each_release_sixty_lines():
  releases = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]
  assert releases[0].startswith(f"{ragrl_jax.__version__} (")
  long = {release.split("\n")[0]: release.count("\n") for release in releases if release.count("\n") > 60}
  assert not long, f"{long} lines: join what belongs together, and leave out what no user has to know"


def test_the_files_that_show_an_audits_findings_and_the_tests_of_a_first_look_exist():
  page = (ROOT / "docs" / "audits.md").read_text(encoding="utf-8")
  shown = [line.split("|")[-2].strip() for line in page.splitlines() if line.startswith("| ")]
  named = [name for cell in shown for name in re.findall(r"[\w/]+\.(?:py|md)", cell)]
  assert len(named) > 80
  folder = ROOT
  for name in named:  # also of the package, or of the folder before it
    found = [place for place in (ROOT / name, ROOT / "ragrl_jax" / name, folder / name) if place.is_file()]
    assert found, name
    folder = found[0].parent
  said = subprocess.run(["make", "--dry-run", "quick"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
  named = [word for word in said.rpartition("-m pytest")[2].split() if word.startswith("tests/")]
  assert len(named) > 10 and all((ROOT / name).exists() for name in named)


def test_the_hosted_workflow_has_every_step_of_ci_run():
  """And every step is a target of the Makefile."""
  steps = lambda path, pattern: {*re.findall(pattern, (ROOT / path).read_text(), re.MULTILINE)}
  parts, workflow = steps(".ci/run", r"^part ([a-z]+)"), ".github/workflows/ci.yml"
  assert parts == steps(workflow, r"^ +step: \[([a-z]+)\]") | steps(workflow, r"- \{step: ([a-z]+),")
  assert {"lint", "test", "long"} <= parts <= steps("Makefile", r"^([a-z-]+):")


def test_a_symbol_without_a_docstring_is_named(tmp_path):
  (tmp_path / "made").mkdir()
  (tmp_path / "made" / "__init__.py").write_text('"""Made."""\n')
  (tmp_path / "made" / "part.py").write_text(
    '"""Part."""\n\ndef seen():\n  """Seen."""\n\ndef bare(): ...\n\ndef _own(): ...\n\ndef main(): ...\n\n'
    'class Kind:\n  """Kind."""\n\n  def bare(self): ...\n\n  def _own(self): ...\n\n'
    '  def told(self):\n    """Told."""\n\nclass Sort(Kind):\n  """Sort."""\n\n  def told(self): ...\n'
  )
  (tmp_path / "made" / "empty.py").write_text("")
  made = reference()
  found = made["undocumented"](made["modules"](tmp_path / "made"))
  names = [line.rpartition(": ")[2] for line in found]
  assert names == ["made.empty", "made.part.bare", "made.part.Kind.bare"]
  assert found[1].startswith(f"{tmp_path / 'made' / 'part.py'}:6: ")


def test_a_docstring_is_shown_as_it_is_written():
  text = "Sums `a_b`, 2 * 3 < 7.\n\nArgs:\n  mask: 1 on\n    trained tokens.\n\nRaises:\n  ValueError: <odd>.\n"
  shown = reference()["markdown"](text)
  assert shown.startswith("Sums `a_b`, 2 \\* 3 \\< 7.\n")
  assert "**Args**\n\n- **mask**: 1 on\n  trained tokens.\n" in shown
  assert "- **ValueError**: \\<odd\\>." in shown
  assert reference()["markdown"]("Drawn.\n\n    x | y\n") == "Drawn.\n\n```text\nx | y\n```\n"


def test_a_class_is_named_with_the_module_that_defines_it(tmp_path):
  files = {
    "__init__": "", "a": "class Kind: ...\n", "b": "from made.a import Kind\n",
    "c": "from made import b\nfrom made.b import Kind as Sort\n\ndef f(x: Sort, y: 'B T') -> list[Sort]: ...\n",
  }  # fmt: skip
  (tmp_path / "made").mkdir()
  for name, text in files.items():
    (tmp_path / "made" / f"{name}.py").write_text(text)
  (function,) = reference()["modules"](tmp_path / "made")[-1].symbols
  assert function.signature == "(x: made.a.Kind, y: 'B T') -> list[made.a.Kind]"  # shapes given as strings stay


def test_coverage_is_summed_by_room():
  program = runpy.run_path(str(ROOT / "tests" / "coverage_by_room.py"))
  found = lambda run, lines: {"summary": dict(covered_lines=run, num_statements=lines)}
  files = {"ragrl_jax/core/kl.py": found(9, 10), "ragrl_jax/core/text/tags.py": found(10, 10)}
  rooms = program["by_room"](files | {"ragrl_jax/jobs/train.py": found(1, 4), "ragrl_jax/engine/stops.py": found(1, 2)})
  assert rooms == dict(core=(19, 20), jobs=(1, 4), engine=(1, 2))
  shown, below = program["table"](rooms)
  assert below == ["engine"] and "95.0%" in shown and "25.0%" in shown  # "jobs" has no threshold


@pytest.mark.parametrize("notebook", sorted(NOTEBOOK.parent.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_sixty_lines_of_code_without_outputs(notebook):
  cells = code_cells(notebook)
  lines = [line for cell in cells for line in "".join(cell["source"]).splitlines() if line.strip()]
  assert len(lines) <= 60
  assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells)
  for cell in cells:
    ast.parse("".join(cell["source"]))


def test_the_notebooks_recipe_scores_by_hand(monkeypatch):
  """Runs all cells except the last one, which trains (`make notebook`). Their asserts hold the values."""
  monkeypatch.setattr(recipes, "RECIPES", dict(recipes.RECIPES))
  *cells, run = ["".join(cell["source"]) for cell in code_cells()]
  assert " train(" in run
  imported = [line for line in "\n".join(cells).splitlines() if "import" in line and "ragrl_jax" in line]
  assert imported and all(line.startswith("from ragrl_jax import ") for line in imported)
  names: dict = {}
  for cell in cells:
    exec(compile(cell, str(NOTEBOOK), "exec"), names)
  assert recipes.switches("quoter").keys() == {"quote_weight"}
  assert recipes.get("quoter", quote_weight=0.5).weights(1) == dict(answer=1.0, quote=0.5)


def test_a_recipe_is_registered_under_a_name_of_its_own(monkeypatch):
  monkeypatch.setattr(recipes, "RECIPES", dict(recipes.RECIPES))

  @dataclasses.dataclass(frozen=True)
  class Switches(recipe_lib.Switches):
    weight: float = 0.5

  room = types.SimpleNamespace(Switches=Switches, PRESETS={"paper": {}, "heavy": {"weight": 2.0}}, build=lambda s: s)
  recipes.register("mine", room)
  recipes.register("mine", room)  # as when a notebook's cell runs again
  assert recipes.get("mine") == Switches() and recipes.get("mine", "heavy").weight == 2.0
  assert recipes.get("mine", "heavy", weight=1.0).weight == 1.0 and list(recipes.switches("mine")) == ["weight"]
  with pytest.raises(ValueError, match="'arena' is one of this package's"):
    recipes.register("arena", room)
  with pytest.raises(ValueError, match="'other'.*PRESETS"):
    recipes.register("other", types.SimpleNamespace(Switches=Switches, PRESETS={}, build=room.build))
  with pytest.raises(ValueError, match="'other'.*subclass of recipe.Switches"):
    recipes.register("other", types.SimpleNamespace(PRESETS=room.PRESETS, build=room.build))
