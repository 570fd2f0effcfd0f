"""What a recipe is: the slots below, and nothing else."""

import dataclasses
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ragrl_jax import structs
from ragrl_jax.settings import fields

_AT_LAST = 10**9  # a step that no run reaches


class Prompt(Protocol):
  """Turns an example into the chat messages that open its episode."""

  def messages(self, example: structs.Example) -> list[dict[str, str]]:
    """The chat messages ({"role", "content"}) that open the episode."""
    ...


class Parser(Protocol):
  """Reads model text. It never sees the prompt or the environment's words."""

  def stop(self, text: str) -> str:
    """The stop string this model turn ended on, or "eos"; for transcripts, whose sampler is unknown."""
    ...

  def answer(self, text: str) -> str | None:
    """The final answer in the model's text, or None."""
    ...

  def observed(self, said: str, text: str) -> tuple[str | None, tuple[structs.Passage, ...] | None]:
    """(query, passages) that environment text `text` brings after model text `said`; (None, None) if it is a notice."""
    ...


@dataclasses.dataclass(frozen=True)
class Switches(fields.Checked, Mapping[str, Any]):
  """The settings of a recipe under config.switches; each recipe has a subclass with its own.

  A recipe reads them by attribute. They are a mapping by name for what writes them down: `dict(recipe.switches)`.
  """

  def __getitem__(self, name: str) -> Any:
    if name not in self.__dataclass_fields__:
      raise KeyError(name)
    return getattr(self, name)

  def __iter__(self) -> Iterator[str]:
    return iter(self.__dataclass_fields__)

  def __len__(self) -> int:
    return len(self.__dataclass_fields__)

  def refusal(self, name: str, value: Any, must: str) -> str:
    """The message for a switch that has a value that it cannot have."""
    return f"switch {name}={value!r}: it must be {must} (config.switches.{name})."


S = TypeVar("S", bound=Switches)


@dataclasses.dataclass(frozen=True)
class Recipe:
  """One published system.

  Attributes:
    name: its room's name.
    prompt: example → chat messages.
    parser: model text → action and parts; written against that prompt.
    play: async (example, policy, tools) → Episode: the episode as a coroutine that reads like the paper.
    stops: every stop string that `play` uses: the engine compiles their automaton once.
    score: (example, episode) → {term: unweighted number, or None where it cannot be scored}. Pure.
    weights: step → {term: weight}.
    outcome: (example, episode) → 0 or 1, or None where a judge's verdict is missing: unshaped correctness, for filters,
      progress bars and tables.
    switches: those in force: the preset's, with single ones overridden.
    evidence: (example, episode) → the text that it rests its answer on, for tables; None where a recipe leaves none.
    mixture: step → chance that a question is drawn from the easy set, where config.data.hard names another; None for
      one set only.
    credit: (example, episode) → {term: one number a model segment, adding up to the term}, for terms that single turns
      earn; None: everything is earned by the last turn. Only per-turn and per-token advantages look at it.
    judged: terms whose verdicts `play` asks for by their names: each may have a judge of its own (config.judges).
    follow: rows of metrics.jsonl so far → the recipe of the next step, for stages that begin by what was measured; a
      pure function. None: the same recipe throughout.
    searches: `play` may search, so that there must be a retriever.
    needs_passages: the prompt shows passages that the question brings; with `searches`, those found for one that brings
      none.
  """

  name: str
  prompt: Prompt
  parser: Parser
  play: Callable[[structs.Example, structs.Policy, structs.Tools], Awaitable[structs.Episode]]
  stops: Sequence[str]
  score: Callable[[structs.Example, structs.Episode], Mapping[str, float | None]]
  weights: Callable[[int], Mapping[str, float]]
  outcome: Callable[[structs.Example, structs.Episode], float | None]
  switches: Mapping[str, Any]
  evidence: Callable[[structs.Example, structs.Episode], str] | None = None
  mixture: Callable[[int], float] | None = None
  credit: Callable[[structs.Example, structs.Episode], Mapping[str, Sequence[float]]] | None = None
  judged: Sequence[str] = ()
  follow: Callable[[Sequence[Mapping[str, Any]]], "Recipe"] | None = None
  searches: bool = False
  needs_passages: bool = False

  def reward(self, terms: Mapping[str, float | None], step: int) -> float | None:
    """The weighted sum of the terms; None as soon as a term with a weight cannot be scored."""
    total = 0.0
    for name, weight in self.weights(step).items():
      if weight:
        if (term := terms[name]) is None:
          return None
        total += weight * term
    return float(total)

  def unreached(self, steps: int) -> dict[str, tuple[float, float]]:
    """Terms whose weights would still change after a run of so many steps: {term: (weight at its end, at last)}.

    None are named where stages begin by what is measured (`follow`): when is not known.
    """
    end, last = self.weights(steps), self.weights(_AT_LAST)
    return {} if self.follow else {name: (end[name], last[name]) for name in last if end[name] != last[name]}


def chosen(
  name: str, kind: type[S], presets: Mapping[str, Mapping[str, Any]], variant: str | None, switches: Mapping[str, Any]
) -> S:
  """The recipe's switches as a preset changes them, with single ones overridden.

  Presets joined by commas ("em_it,no_ramp") have the changes of each. A switch given as None stays as the preset has
  it: a config holds None for a switch that nobody set.

  Args:
    name: the recipe's, for messages.
    kind: its dataclass of switches.
    presets: preset → the switches that it changes.
    variant: the preset, or several; None: the first.
    switches: those that override.

  Raises:
    ValueError: a preset or a switch that the recipe does not have; a switch that two of the presets set; a value that a
      switch does not take.
  """
  changes: dict[str, Any] = {}
  by: dict[str, str] = {}
  for preset in (variant or next(iter(presets))).split(","):
    if preset not in presets:
      raise ValueError(f"{name} has no preset {preset!r}: use one of {', '.join(presets)} (config.preset).")
    for switch, value in presets[preset].items():
      if switch in changes:
        raise ValueError(
          f"{name}'s presets {by[switch]!r} and {preset!r} both set {switch}: use one of them, and set "
          f"config.switches.{switch} where it is to differ (config.preset={variant!r})."
        )
      changes[switch], by[switch] = value, preset
  known = [field.name for field in dataclasses.fields(kind)]
  for switch in switches:
    if switch not in known:
      raise ValueError(f"{name} has no switch {switch!r}: use one of {', '.join(known)} (config.switches).")
  return kind(**changes | {switch: value for switch, value in switches.items() if value is not None})


def draw_fault(kinds: Sequence[str], known: Sequence[str], share: float, rng: random.Random) -> str:
  """The fault that a scripted demonstration is given: one of `kinds` in a `share` of them, "" in the others.

  Raises:
    ValueError: a kind that is none of `known`.
  """
  for kind in kinds:
    if kind not in known:
      raise ValueError(f"fault kind {kind!r}: use {', '.join(known)}.")
  return rng.choice(list(kinds)) if rng.random() < share else ""
