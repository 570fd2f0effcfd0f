"""The newcomer's path: each file names the next one, and all of it can be read in an evening."""

import ast
import pathlib

ROOT = pathlib.Path(__file__).parents[1]
README = "README.md"
CONFIG = "configs/arena.py"
RECIPE = tuple(f"ragrl_jax/recipes/arena/{part}.py" for part in "prompt reward recipe".split())
TRAIN, ENGINE, LOSSES = "ragrl_jax/jobs/train.py", "ragrl_jax/engine/engine.py", "ragrl_jax/core/losses.py"
PATH = (CONFIG, *RECIPE, TRAIN, ENGINE, LOSSES)
RECIPE_README = "ragrl_jax/recipes/arena/README.md"
lines = lambda *files: sum(len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in files)


def test_the_path_names_what_comes_next():
  """Each file opens with its purpose and the name of the file to read next."""
  for here, after in zip(PATH, PATH[1:]):
    opening = ast.get_docstring(ast.parse((ROOT / here).read_text(encoding="utf-8")))
    named = opening.partition("Next: ")[2].split()[0].rstrip(".,")
    assert after.endswith(named), f"{here}: its docstring must name the next file, {after}, after 'Next:'"
  readme = (ROOT / README).read_text(encoding="utf-8")
  assert all(f"({file})" in readme for file in (CONFIG, "ragrl_jax/recipes/arena", TRAIN, ENGINE, LOSSES))


def test_each_part_of_the_path_is_short():
  for files, most in (((README,), 120), ((CONFIG,), 60), ((RECIPE_README, *RECIPE), 270), ((LOSSES,), 110)):
    assert lines(*files) <= most, f"{', '.join(files)}: {lines(*files)} lines, at most {most}"


def test_the_whole_path_is_an_evenings_reading():
  files = (README, RECIPE_README, "ragrl_jax/recipes/arena/__init__.py", *PATH)
  assert lines(*files) <= 950, f"{lines(*files)} lines, at most 950"
