"""The recipe: exactly the slots below."""

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
  """Reads model text. It never sees the prompt or the environment's text."""

  def stop(self, text: str) -> str:
    """The stop string on which this model turn ended, or "eos"; for transcripts without a sampler's record."""
    ...

  def answer(self, text: str) -> str | None:
    """The final answer in the model's text, or None."""
    ...

  def observed(self, said: str, text: str) -> tuple[str | None, tuple[structs.Passage, ...] | None]:
    """(query, passages) of the environment's text `text` after the model's text `said`; (None, None) for a notice."""
    ...


@dataclasses.dataclass(frozen=True)
class Switches(fields.Checked, Mapping[str, Any]):
  """The settings of a recipe under config.switches. Each recipe has its own subclass.

  A recipe reads them as attributes. They are also a mapping by name, for writing them down: `dict(recipe.switches)`.
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
    """The message for a switch with a value that is not allowed."""
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
    mixture: (step, counted from 0; the run's steps) → chance that a question is drawn from the easy set, where
      config.data.hard names another; None for one set only.
    credit: (example, episode) → {term: one number a model segment, adding up to the term}, for terms that single turns
      earn; None: everything is earned by the last turn. Only per-turn and per-token advantages look at it.
    style: how the paper's tables normalise answers (`core.text.normalize`). Where it is not "squad", evaluations report
      em_STYLE and f1_STYLE besides.
    pooled: (example, episode) → {term: (sum, number)} of what a term is a mean of, such as verdicts on pairs. Their
      ratio over many episodes, logged as pooled/TERM, leaves out an episode without any, which the term pays 0. None:
      no term is such a mean.
    judged: terms whose verdicts `play` asks for by their names: each may have a judge of its own (config.judges).
    unearned: (example, episode) → {trick: whether the episode does it}, for the tricks known to be paid by the
      published reward without being worth it (the recipe's README, "Unearned reward"), whether or not `guarded` refuses
      them. The shares are logged as unearned/TRICK. None: nobody has looked for any.
    measures: (example, episode) → {name: number, or None where it is not known}: what the paper's figures and tables
      show besides the reward; logged in training and in evaluations as measure/NAME. None: nothing.
    follow: rows of metrics.jsonl so far → the recipe of the next step, for stages that begin by what was measured; a
      pure function. None: the same recipe throughout.
    paced: steps of one epoch of the run's questions → the recipe, with its schedules in epochs at their steps. None: it
      has none in epochs.
    tool_tokens: tokenizer → the number of tokens that tools add to a prompt; ValueError where its chat template cannot
      play the recipe. None: there are none, and the template must append only (`chat.check_append_only`).
    encodes: `play` compares the vectors of texts, so that there must be an encoder (config.retrieval.query_encoder).
    searches: `play` may search, so that there must be a retriever.
    needs_passages: the prompt shows passages that the question brings; with `searches`, those found for one that brings
      none.
    trainable: an episode is one conversation, or says where others begin (`Episode.starts`). False: it joins several,
      so that a policy can only be evaluated on it.
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
  mixture: Callable[[int, int], float] | None = None
  credit: Callable[[structs.Example, structs.Episode], Mapping[str, Sequence[float]]] | None = None
  style: str = "squad"
  pooled: Callable[[structs.Example, structs.Episode], Mapping[str, tuple[float, int]]] | None = None
  judged: Sequence[str] = ()
  unearned: Callable[[structs.Example, structs.Episode], Mapping[str, bool]] | None = None
  measures: Callable[[structs.Example, structs.Episode], Mapping[str, float | None]] | None = None
  follow: Callable[[Sequence[Mapping[str, Any]]], "Recipe"] | None = None
  paced: Callable[[float], "Recipe"] | None = None
  tool_tokens: Callable[[Any], int] | None = None
  encodes: bool = False
  searches: bool = False
  needs_passages: bool = False
  trainable: bool = True

  def reward(self, terms: Mapping[str, float | None], step: int) -> float | None:
    """The weighted sum of the terms; None if a term with a weight cannot be scored."""
    total = 0.0
    for name, weight in self.weights(step).items():
      if weight:
        if (term := terms[name]) is None:
          return None
        total += weight * term
    return float(total)

  def unreached(self, steps: int) -> dict[str, tuple[float, float]]:
    """What would still change after a run of so many steps: {term: (weight at its end, at last)}.

    Among them "easy_share", the chance of an easy question. None are named where stages begin by what is measured
    (`follow`): when is not known.
    """
    end, last = dict(self.weights(steps)), dict(self.weights(_AT_LAST))
    if self.mixture is not None:
      end["easy_share"], last["easy_share"] = self.mixture(steps, steps), self.mixture(_AT_LAST, steps)
    return {} if self.follow else {name: (end[name], last[name]) for name in last if end[name] != last[name]}


def chosen(
  name: str, kind: type[S], presets: Mapping[str, Mapping[str, Any]], variant: str | None, switches: Mapping[str, Any]
) -> S:
  """The recipe's switches as a preset changes them, with single ones overridden.

  Presets joined by commas ("em_it,no_ramp") have the changes of each, which must not contradict each other. A switch
  given as None stays as the preset has it: a config holds None for a switch that nobody set.

  Args:
    name: the recipe's, for messages.
    kind: its dataclass of switches.
    presets: preset → the switches that it changes.
    variant: the preset, or several; None: the first.
    switches: those that override.

  Raises:
    ValueError: a preset or a switch that the recipe does not have; a switch that two of the presets set to different
      values; a value that a switch does not take.
  """
  changes: dict[str, Any] = {}
  by: dict[str, str] = {}
  for preset in (variant or next(iter(presets))).split(","):
    if preset not in presets:
      raise ValueError(f"{name} has no preset {preset!r}: use one of {', '.join(presets)} (config.preset).")
    for switch, value in presets[preset].items():
      if changes.get(switch, value) != value:
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
  """The fault of a scripted demonstration: one of `kinds` for a share of them, "" for the others.

  Raises:
    ValueError: a kind that is not in `known`.
  """
  for kind in kinds:
    if kind not in known:
      raise ValueError(f"fault kind {kind!r}: use {', '.join(known)}.")
  return rng.choice(list(kinds)) if rng.random() < share else ""
