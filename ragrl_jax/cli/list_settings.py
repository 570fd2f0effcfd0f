"""Prints what the settings mean, with defaults, units and allowed values: ragrl settings [NAME …]

NAME is a section (rollout), a setting (rollout.context, or context alone), or a recipe (arena), whose switches are
printed. Without one, all settings are printed. A setting is given to a command as --config.SECTION.NAME=VALUE, a
recipe's switch as --config.switches.NAME=VALUE.
"""

import difflib

from ragrl_jax import recipes, settings
from ragrl_jax.cli import commands
from ragrl_jax.settings import fields


def listing(name: str = "") -> str:
  """The settings that a name stands for.

  Raises:
    ValueError: there is no such section, setting or recipe.
  """
  if name in recipes.RECIPES:
    switches = recipes.RECIPES[name].Switches
    return "\n\n".join(fields.text(group, "config.switches") for group in fields.groups(switches))
  groups = fields.find(settings.Settings, name) if name else list(fields.groups(settings.Settings))
  if not groups:
    every = list(fields.groups(settings.Settings))
    names = [*(setting.name for group in every for setting in group.settings), *(group.path for group in every)]
    near = difflib.get_close_matches(name.rpartition(".")[2], [*filter(None, names), *recipes.RECIPES], n=1)
    advice = f"Did you mean {near[0]}?" if near else "`ragrl settings` lists all."
    raise ValueError(f"there is no setting, section or recipe {name!r}. {advice}")
  return "\n\n".join(map(fields.text, groups))


def main() -> None:
  parser = commands.Parser(__doc__ or "")
  parser.add_argument("names", nargs="*", metavar="NAME")
  print("\n\n".join(map(listing, parser.parse_args().names or [""])))
