"""Arguments that name a config, or a checkpoint whose config is meant."""

import re

from ragrl_jax import config as config_lib


def with_paths(argv: list[str], names: list[str]) -> list[str]:
  """Replaces the names of the package's configs in the arguments by paths.

  Raises:
    ValueError: the package has no config of this name. The message names the flag.
  """
  if not names:
    return list(argv)
  words, remaining, found = [], list(argv), re.compile(rf"--?({'|'.join(names)})(=(.*))?", re.DOTALL)
  while remaining:
    word = remaining.pop(0)
    match = found.fullmatch(word)
    if not match or (match[2] is None and not remaining):
      words.append(word)
      continue
    value = remaining.pop(0) if match[2] is None else match[3]  # --config arena is the same as --config=arena
    try:
      words.append(f"--{match[1]}={config_lib.find(value)}")
    except ValueError as error:
      raise ValueError(f"--{match[1]}={value}: {error}") from None
  return words


def with_config(argv: list[str], kind: str) -> list[str]:
  """Adds --config to the arguments if they have --checkpoint alone: `get_config` of this file then makes the config."""
  flags_at = {word.split("=", 1)[0].lstrip("-"): at for at, word in enumerate(argv) if word.startswith("-")}
  if "config" in flags_at or "checkpoint" not in flags_at:
    return argv
  words = [*argv[flags_at["checkpoint"]].split("=", 1)[1:], *argv[flags_at["checkpoint"] + 1 :]]
  return [argv[0], f"--config={__file__}:{kind}:{words[0]}", *argv[1:]] if words else argv


def get_config(variant: str) -> config_lib.Config:
  """The settings of a checkpoint, for "KIND:CHECKPOINT". This module is then the config file.

  They are those of the checkpoint's run. Of the kind "serve", a model without a run has the defaults with a longer
  context; of the kind "run" it is refused.
  """
  from ragrl_jax.jobs import checkpoints  # commands without a checkpoint need not import it

  kind, _, checkpoint = variant.partition(":")
  if kind == "serve" and config_lib.run_of(checkpoint) is None:
    config = config_lib.default_config()
    config.rollout.context = 4096
    return config
  return checkpoints.config_of(checkpoint)
