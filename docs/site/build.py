"""Builds the documentation: `make docs`.

1. Checks that every public symbol of ragrl_jax has a docstring.
2. Collects the pages: docs/, the pages at the top of the repository, each recipe's README, the notebooks, and a
   reference page for each folder of the package, and one of all settings. A link to a file becomes a link to its page.
   A link without a target ends the build.
3. Runs Sphinx on them. A warning ends the build.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import reference

from ragrl_jax import recipes
from ragrl_jax.settings import Settings, fields

ROOT = pathlib.Path(__file__).parents[2]
LINK = re.compile(r"(\]\()([^()\s#]+)?(#[^()\s]*)?(\))")
TOP = {
  "README.md": "readme.md",
  "CHANGELOG.md": "changelog.md",
  "CONTRIBUTING.md": "contributing.md",
  "SECURITY.md": "reporting.md",
  "benchmarks/LOG.md": "log.md",
}


def main() -> None:
  """Builds the site, or with --check only its sources: both end with exit 1 and the reason."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out" / "docs", help="folder of the HTML pages")
  parser.add_argument("--check", action="store_true", help="check docstrings and links, without Sphinx")
  given = parser.parse_args()
  source = given.out.with_name(given.out.name + "_source")
  shutil.rmtree(source, ignore_errors=True)
  modules = reference.modules(ROOT / "ragrl_jax")
  if missing := reference.undocumented(modules):
    sys.exit("\n".join([*missing, f"{len(missing)} public symbols without a docstring: write one for each."]))
  if wrong := gather(source, modules):
    sys.exit("\n".join([*wrong, f"{len(wrong)} links lead nowhere: name a file of the repository, from the page on."]))
  symbols = sum(len(one.symbols) for one in modules)
  print(f"{sum(1 for _ in source.rglob('*.md'))} pages, {symbols} functions, classes and aliases", flush=True)
  if not given.check:
    # A changed docstring leaves no page of an older build behind.
    shutil.rmtree(given.out, ignore_errors=True)
    conf = pathlib.Path(__file__).parent
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", source / ".doctrees"]
    if subprocess.run([*command, "-c", conf, source, given.out]).returncode:
      sys.exit("Sphinx warned: mend the lines above.")
    print(f"Open {given.out}/index.html")


def places() -> dict[pathlib.Path, pathlib.Path]:
  """Every file that gets a page (or goes along as a picture): path in the repository → path in the site's source."""
  found = {path: pathlib.Path(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
  found |= {path: pathlib.Path(path.name) for path in (ROOT / "docs").glob("*.png")}
  found |= {ROOT / name: pathlib.Path(page) for name, page in TOP.items()}
  package = ROOT / "ragrl_jax"
  found |= {path: path.parent.relative_to(package).with_suffix(".md") for path in package.glob("*/*/README.md")}
  found |= {path: pathlib.Path(f"configs/{path.stem}.md") for path in ROOT.glob("configs/*.py")}
  found |= {path: pathlib.Path(f"notebooks/{path.stem}.md") for path in ROOT.glob("notebooks/*.ipynb")}
  return found


def gather(source: pathlib.Path, modules: list[reference.Module]) -> list[str]:
  """Writes the site's sources. Returns a line for each link that leads nowhere."""
  where, wrong = places(), []
  packages: dict[str, list[reference.Module]] = {}
  for module in modules:
    package = module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]
    packages.setdefault(package, []).append(module)
  targets = {path: str(place) for path, place in where.items()}
  for package, members in packages.items():
    page = f"reference/{package}.md"
    targets |= {module.path: f"{page}#{reference.anchor(module)}" for module in members}
    targets |= {module.path.parent: page for module in members if module.name == package}
  # A folder's page is its README, or else its package's.
  targets |= {
    path.parent: str(place) for path, place in where.items() if path.name == "README.md" and path.parent != ROOT
  }
  for path, place in where.items():
    (source / place).parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".png":
      shutil.copyfile(path, source / place)
    else:
      text, lost = relinked(_text(path), path, place, targets)
      wrong += lost
      (source / place).write_text(text)
  (source / "settings.md").write_text(_settings())
  (source / "reference").mkdir(parents=True)
  for package, members in packages.items():
    (source / "reference" / f"{package}.md").write_text(reference.page(package, members))
  (source / "reference" / "index.md").write_text(_contents(packages))
  return wrong


def relinked(text: str, path: pathlib.Path, place: pathlib.Path, targets) -> tuple[str, list[str]]:
  """A page's text with its links to files made links between pages, and a line for each that leads nowhere."""
  wrong = []

  def moved(found: re.Match) -> str:
    opening, target, anchor, closing = found.groups(default="")
    if not target or re.match(r"[a-z]+:", target):
      return found[0]
    file = pathlib.Path(os.path.normpath(path.parent / target))
    if file not in targets:
      wrong.append(f"{path.relative_to(ROOT)}: {target}")
      return found[0]
    return f"{opening}{os.path.relpath(targets[file], place.parent)}{anchor}{closing}"

  pieces = re.split(r"(^```.*?^```|`[^`\n]+`)", text, flags=re.MULTILINE | re.DOTALL)  # code stays as it is
  return "".join(piece if number % 2 else LINK.sub(moved, piece) for number, piece in enumerate(pieces)), wrong


def _text(path: pathlib.Path) -> str:
  """A file as Markdown: a config as its source, a notebook as its cells."""
  if path.suffix == ".py":
    return f"# configs/{path.name}\n\n```python\n{path.read_text()}```\n"
  if path.suffix == ".ipynb":
    cells = json.loads(path.read_text())["cells"]
    return "\n\n".join(_cell(cell["cell_type"], "".join(cell["source"])) for cell in cells) + "\n"
  return path.read_text()


def _cell(kind: str, text: str) -> str:
  return text if kind == "markdown" else f"```python\n{text}\n```"


def _settings() -> str:
  """The page of all settings, and of the switches of every recipe."""
  said = (
    "What every setting means; `ragrl settings [NAME]` prints the same. A command takes `--config.SECTION.NAME=VALUE`."
  )
  parts = ["# Settings", said, *(_table(group, "config", group.path) for group in fields.groups(Settings))]
  for name, room in recipes.RECIPES.items():
    parts += [_table(group, f"Switches of {name}: config.switches", "") for group in fields.groups(room.Switches)]
  return "\n\n".join(parts) + "\n"


def _table(group: fields.Group, where: str, path: str) -> str:
  """The heading, meaning and settings of a section, in Markdown."""
  code = lambda text: f"`{text}`" if text else ""
  head = [("Setting", "Default", "Unit", "Values", "Meaning"), ("---",) * 5]
  rows = [(code(one.name), code(one.default), one.unit, one.allowed, one.meaning) for one in group.settings]
  lines = [
    "| " + " | ".join(cell.replace("|", "\\|").replace("<", "\\<") for cell in row) + " |" for row in [*head, *rows]
  ]
  title = ".".join(part for part in (where, path) if part)
  return "\n".join([f"## {title}", "", group.meaning, "", *lines])


def _contents(packages: dict[str, list[reference.Module]]) -> str:
  """The reference's first page: the package's folders."""
  said = (
    "Every public symbol, read from the source. A room imports only from rooms of earlier rows (`tests/test_rooms.py`)."
  )
  tree = "```{toctree}\n:maxdepth: 2\n\n" + "\n".join(sorted(packages)) + "\n```"
  return f"# Reference\n\n{said}\n\n{tree}\n"


if __name__ == "__main__":
  main()
