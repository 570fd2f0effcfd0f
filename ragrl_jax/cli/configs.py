"""Finds the configs of the package by their names in --config."""

import difflib
import pathlib
import re

import ragrl_jax

_PACKAGE = pathlib.Path(ragrl_jax.__file__).parent
INSTALLED, CHECKOUT = _PACKAGE / "configs", _PACKAGE.parent / "configs"


def folder() -> pathlib.Path:
  """The folder of the configs: inside an installed package, or beside the package in a checkout."""
  return INSTALLED if INSTALLED.is_dir() else CHECKOUT


def path(value: str) -> str:
  """The value of a --config flag with its file as a path: "arena:smoke" → ".../configs/arena.py:smoke".

  A value with a slash, or with a file that ends in .py, is already a path and does not change.

  Raises:
    ValueError: the package has no config of this name.
  """
  name, *variant = value.split(":", 1)
  if "/" in name or name.endswith(".py") or not name:
    return value
  names = sorted(file.stem for file in folder().glob("*.py"))
  if name not in names:
    near = difflib.get_close_matches(name, names, n=1)
    raise ValueError(
      f"there is no config {name!r}{near and f' (did you mean {near[0]}?)' or ''}. Use one of {', '.join(names)}, or "
      "the path of a file, such as ./mine.py."
    )
  return ":".join([str(folder() / f"{name}.py"), *variant])


def with_paths(argv: list[str], names: list[str]) -> list[str]:
  """Replaces the names of the package's configs in the arguments by paths.

  Args:
    argv: the arguments, the program first.
    names: the flags that take a config file.

  Returns:
    The new arguments.

  Raises:
    ValueError: the package has no config of this name. The message names the flag.
  """
  if not names:
    return list(argv)
  words, left, found = [], list(argv), re.compile(rf"--?({'|'.join(names)})(=(.*))?", re.DOTALL)
  while left:
    word = left.pop(0)
    match = found.fullmatch(word)
    if not match or (match[2] is None and not left):
      words.append(word)
      continue
    given = left.pop(0) if match[2] is None else match[3]  # --config arena is the same as --config=arena
    try:
      words.append(f"--{match[1]}={path(given)}")
    except ValueError as error:
      raise ValueError(f"--{match[1]}={given}: {error}") from None
  return words


def with_config(argv: list[str], file: str) -> list[str]:
  """Adds --config to the arguments if they have --checkpoint alone: a module of this folder then makes the config.

  Args:
    argv: the arguments, the program first.
    file: the module's name; its `get_config` takes the checkpoint.

  Returns:
    The new arguments.
  """
  given = {word.split("=", 1)[0].lstrip("-"): at for at, word in enumerate(argv) if word.startswith("-")}
  if "config" in given or "checkpoint" not in given:
    return argv
  words = [*argv[given["checkpoint"]].split("=", 1)[1:], *argv[given["checkpoint"] + 1 :]]
  path = pathlib.Path(__file__).with_name(f"{file}.py")
  return [argv[0], f"--config={path}:{words[0]}", *argv[1:]] if words else argv
