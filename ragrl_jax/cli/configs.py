"""Arguments that name a config, or a checkpoint whose config is meant."""

import pathlib
import re

from ragrl_jax import config as config_lib


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
      words.append(f"--{match[1]}={config_lib.find(given)}")
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
