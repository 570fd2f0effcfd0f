"""Agents that live elsewhere: see README.md."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ragrl_jax.recipes import answered
from ragrl_jax.recipes import recipe as recipe_lib
from ragrl_jax.recipes.agent import play as play_lib
from ragrl_jax.recipes.agent import program as program_lib
from ragrl_jax.recipes.agent.parser import Parser
from ragrl_jax.recipes.agent.prompt import Prompt
from ragrl_jax.recipes.agent.reward import KINDS, Reward
from ragrl_jax.settings.fields import setting
from ragrl_jax.structs import Episode, Example
from ragrl_jax.toolbox import named


@dataclasses.dataclass(frozen=True)
class Switches(recipe_lib.Switches):
  """How programs are run and paid; README.md explains each."""

  program: str = "ragrl_jax.recipes.agent.programs.ask:run"  # FILE.py:FUNCTION, MODULE:FUNCTION or command:WORDS
  reward: str = "em"  # em, f1, judge, program, or FILE.py:FUNCTION of (example, answer, facts)
  search: bool = False  # programs search the run's own index (config.retrieval), at task.search
  rewritten: str = setting("refuse", choices=("refuse", "split"))  # what a request that rewrites its history gets
  errors: str = setting(
    "mask", choices=("mask", "score")
  )  # an error of a program: no episode, or one without an answer
  max_requests: int = setting(16, least=1)  # requests of an episode
  timeout_s: float = setting(600.0, above=0)  # seconds of an episode
  at_once: int = setting(128, least=1)  # programs that run at a time, in this process
  stops: str = ""  # the stop strings that requests may name, with | between them

  def __post_init__(self):
    super().__post_init__()
    if self.reward not in KINDS and ":" not in self.reward:
      raise ValueError(self.refusal("reward", self.reward, f"{', '.join(KINDS)} or FILE.py:FUNCTION"))


PRESETS: dict[str, dict[str, Any]] = {"paper": {}}


def measures(example: Example, episode: Episode) -> Mapping[str, float | None]:
  """Requests, tool calls and searches; 1 where a program's error is scored; how often it rewrote its history."""
  del example  # they are the episode's
  facts = episode.facts
  counts = {name: facts.get(name) for name in ("requests", "tool_calls", "searches")}
  return counts | dict(errors=float("error" in facts), rewrites=float(len(facts.get("rewrites", ()))))


def build(switches: Switches) -> recipe_lib.Recipe:
  """The recipe with these switches."""
  stops = tuple(stop for stop in switches.stops.split("|") if stop)
  prompt, parser = Prompt(), Parser(stops)
  kind = switches.reward
  if kind not in KINDS:
    kind = named.function_of(kind, "config.switches.reward")
  reward = Reward(parser, kind)
  play = play_lib.build(
    program_lib.Program(switches.program),
    prompt,
    stops=stops,
    max_requests=switches.max_requests,
    timeout_s=switches.timeout_s,
    at_once=switches.at_once,
    split=switches.rewritten == "split",
    scores_errors=switches.errors == "score",
  )
  return recipe_lib.Recipe(
    name="agent",
    prompt=prompt,
    parser=parser,
    play=answered.judged(play, parser) if kind == "judge" else play,
    stops=stops,
    score=reward.score,
    weights=reward.weights,
    outcome=reward.outcome,
    switches=switches,
    measures=measures,
    searches=switches.search,
  )
