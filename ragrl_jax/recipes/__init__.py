"""Published systems, one folder each. `get` returns a recipe; `register` adds one of your own."""

import dataclasses
import importlib
import importlib.util
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from ragrl_jax import config as config_lib
from ragrl_jax.recipes import recipe as recipe_lib
from ragrl_jax.recipes.recipe import Recipe, Switches as Switches


class _Module:
  """The module of a recipe, which is imported when it is first used."""

  def __init__(self, name: str):
    self._name = name

  def __getattr__(self, attribute: str) -> Any:
    return getattr(importlib.import_module(self._name), attribute)


_NAMES = ("arena", "care", "lear", "released", "search_r1", "untrained", "veritas", "when_to_search")
RECIPES: dict[str, Any] = {name: _Module(f"ragrl_jax.recipes.{name}.recipe") for name in _NAMES}
if importlib.util.find_spec("ragrl_jax.agents"):  # the package works without its agents
  RECIPES |= {name: _Module(f"ragrl_jax.agents.{name}.recipe") for name in ("agent", "tool_agent")}

# Variant of every config → its teacher (config.loss.teacher). With "sft", dgpo's is the warm start by distillation.
TEACHERS: dict[str, dict[str, Any]] = {
  "dgpo": dict(kind="k1", episodes="failed", coef=0.001),  # arXiv 2508.20324, and its code
  "opsd": dict(path="policy", tells="passages", kind="jsd", tokens="queries"),  # arXiv 2601.18734; queries, 2605.18299
}
WARM = dict(kind="forward", episodes="all", coef=1.0, alone=True)

# The recipe and preset that score transcripts of other systems: thoughts against answers, without a judge.
OF_TRANSCRIPTS = ("veritas", "em_ta")
_PUBLISHED = frozenset(RECIPES)


class Room(Protocol):
  """The interface of an entry of RECIPES: a module, or any object, with these three names.

  Attributes:
    Switches: a frozen dataclass, a subclass of `recipe.Switches`; the defaults are the values of the preset "paper".
    PRESETS: preset → the switches that it changes; "paper" changes none.
    build: Switches → Recipe.
  """

  Switches: type[recipe_lib.Switches]
  PRESETS: Mapping[str, Mapping[str, Any]]
  build: Callable[[Any], Recipe]


def register(name: str, room: Room) -> None:
  """Registers a recipe from outside this package as `config.recipe=name`, in this process.

  If a config file registers its recipe, the commands can train and evaluate it unchanged. A second call with the same
  name replaces the first, so that a notebook's cell can run again.

  Raises:
    ValueError: the name is a published recipe's, or the room lacks Switches, PRESETS or build.
  """
  if name in _PUBLISHED:
    raise ValueError(f"recipe {name!r} is one of this package's: register yours under another name.")
  typed = isinstance(switches := getattr(room, "Switches", None), type) and issubclass(switches, recipe_lib.Switches)
  if not typed or "paper" not in getattr(room, "PRESETS", ()) or not callable(getattr(room, "build", None)):
    raise ValueError(
      f"recipe {name!r}: the room must have Switches (a subclass of recipe.Switches), PRESETS with 'paper', and build."
    )
  RECIPES[name] = room


def registered(name: str) -> Callable[[Any], Recipe] | None:
  """`build` of a recipe from outside this package; None for one of this package's."""
  return None if name in _PUBLISHED else _room(name).build


def switches(name: str) -> dict[str, Any]:
  """The `switches` of a config: every switch of the recipe by name, unset. A switch that is set, there or by
  `--config.switches.NAME=value`, overrides the preset's.
  """
  return config_lib.unset(_room(name).Switches)


def presets(name: str) -> tuple[str, ...]:
  """The presets of a recipe except "paper", which changes none of its switches."""
  return tuple(preset for preset in _room(name).PRESETS if preset != "paper")


def configure(
  name: str, variant: str, *more: str, one_of: Collection[Collection[str]] = ()
) -> tuple[config_lib.Config, list[str]]:
  """The starting point of a file under configs/: the default settings, with the recipe and the presets of a variant.

  Args:
    variant: the text after the colon of `--config=FILE.py:VARIANT`: presets, "smoke" and `more`, joined by commas.
    more: the file's own variants.
    one_of: groups of variants of which at most one may be chosen.

  Returns:
    (the settings, the parts of the variant). The file sets what a part asks for, and calls `shrink` for "smoke".

  Raises:
    ValueError: an unknown variant, or two of one group.
  """
  names, choices = variant.split(","), ("smoke", *more, *TEACHERS, *presets(name))
  one_of = (*one_of, ("opsd", "dgpo"), ("opsd", "sft"))
  if not set(names) <= {"", *choices} or any(len(set(names) & set(group)) > 1 for group in one_of):
    exclusions = "".join(f", and one of {', '.join(group)} at most" for group in one_of)
    raise ValueError(f"configs/{name}.py:{variant}: use {', '.join(choices)}, joined by commas{exclusions}.")
  config = config_lib.default_config()
  config.recipe = name
  config.switches = switches(name)
  for teacher in TEACHERS.keys() & set(names):
    config.loss.teacher.update(WARM if "sft" in names else TEACHERS[teacher])
  config.preset = ",".join(preset for preset in presets(name) if preset in names) or "paper"
  return config, names


def get(name: str, variant: str | None = None, **switches: Any) -> Recipe:
  """The recipe of this name.

  Args:
    variant: one of its PRESETS; None is "paper".
    **switches: single settings that differ from the preset's; `recipe.switches` shows the values in use.

  Raises:
    ValueError: an unknown name, preset or switch; a switch that two presets set to different values; or a value that
      the switch does not accept.
  """
  return _room(name).build(chosen(name, variant, **switches))


def chosen(name: str, variant: str | None = None, **switches: Any) -> Switches:
  """The switches of `get`'s recipe: defaults, then the changes of the preset, then the overrides. Nothing is built.

  Presets joined by commas ("em_it,no_ramp") combine their changes, which must not contradict each other. A switch that
  is None keeps the preset's value, because a config holds None for a switch that was not set.
  """
  room = _room(name)
  changes: dict[str, Any] = {}
  settings_by: dict[str, str] = {}
  for preset in (variant or "paper").split(","):
    if preset not in room.PRESETS:
      raise ValueError(f"{name} has no preset {preset!r}: use one of {', '.join(room.PRESETS)} (config.preset).")
    for switch, value in room.PRESETS[preset].items():
      if changes.get(switch, value) != value:
        raise ValueError(
          f"{name}'s presets {settings_by[switch]!r} and {preset!r} both set {switch}: use only one of them, and set "
          f"config.switches.{switch} if you want another value (config.preset={variant!r})."
        )
      changes[switch], settings_by[switch] = value, preset
  names = [field.name for field in dataclasses.fields(room.Switches)]
  for switch in switches:
    if switch not in names:
      raise ValueError(f"{name} has no switch {switch!r}: use one of {', '.join(names)} (config.switches).")
  return room.Switches(**changes | {switch: value for switch, value in switches.items() if value is not None})


def _room(name: str) -> Any:
  if name not in RECIPES:
    raise ValueError(
      f"there is no recipe {name!r}: use one of {', '.join(RECIPES)} (config.recipe). For a recipe of your own, give "
      "--config with the file that registers it."
    )
  return RECIPES[name]
