"""Published systems, a room each. `get` makes one ready to play; `register` adds one of your own."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ml_collections import config_dict

from ragrl_jax.recipes.arena import recipe as arena
from ragrl_jax.recipes.care import recipe as care
from ragrl_jax.recipes.lear import recipe as lear
from ragrl_jax.recipes.recipe import Recipe
from ragrl_jax.recipes.search_r1 import recipe as search_r1
from ragrl_jax.recipes.untrained import recipe as untrained
from ragrl_jax.recipes.veritas import recipe as veritas
from ragrl_jax.recipes.when_to_search import recipe as when_to_search

RECIPES: dict[str, Any] = {
  "arena": arena,
  "care": care,
  "lear": lear,
  "search_r1": search_r1,
  "untrained": untrained,
  "veritas": veritas,
  "when_to_search": when_to_search,
}

_PUBLISHED = frozenset(RECIPES)


class Room(Protocol):
  """What RECIPES holds: a module, or any object, with these two names.

  Attributes:
    PRESETS: preset → {switch: value}. The first one names every switch; the others hold differences.
    build: (preset or None, **switches) → Recipe.
  """

  PRESETS: Mapping[str, Mapping[str, Any]]
  build: Callable[..., Recipe]


def register(name: str, room: Room) -> None:
  """Makes a recipe from outside this package known as `config.recipe=name`, in this process.

  A config file that registers its recipe trains and evaluates it with the commands as they are. A second call with
  the same name replaces the first, so that a notebook's cell can run again.

  Raises:
    ValueError: the name is a published recipe's, or the room lacks PRESETS or build.
  """
  if name in _PUBLISHED:
    raise ValueError(f"recipe {name!r} is one of this package's: register yours under another name.")
  if not getattr(room, "PRESETS", None) or not callable(getattr(room, "build", None)):
    raise ValueError(f"recipe {name!r}: the room must have PRESETS, with at least one preset, and a function build.")
  RECIPES[name] = room


def switches(name: str) -> dict[str, Any]:
  """A config's `switches`: every switch of the recipe by name, unset. Set one, there or on the command line
  (`--config.switches.NAME=value`), and it overrides the preset's."""
  default = next(iter(RECIPES[name].PRESETS.values()))
  kind = lambda value: int if value is None else type(value)  # what may be None is a limit
  return {switch: config_dict.placeholder(kind(value)) for switch, value in default.items()}


def get(name: str, variant: str | None = None, **switches: Any) -> Recipe:
  """The recipe of this name.

  Args:
    name: one of RECIPES.
    variant: one of its PRESETS; None is "paper".
    **switches: single settings that differ from the preset's; `recipe.switches` shows those in force.

  Raises:
    ValueError: an unknown name, preset or switch, or a value the switch does not take.
  """
  if name not in RECIPES:
    raise ValueError(f"there is no recipe {name!r}: use one of {', '.join(RECIPES)} (config.recipe).")
  return RECIPES[name].build(variant, **switches)
