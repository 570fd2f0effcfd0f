"""External agents: see README.md."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ragrl_jax.agents.agent import play as play_lib
from ragrl_jax.agents.agent import program as program_lib
from ragrl_jax.agents.agent.parser import Parser
from ragrl_jax.agents.agent.reward import KINDS, Reward
from ragrl_jax.agents.toolbox import named
from ragrl_jax.recipes import answered
from ragrl_jax.recipes import recipe as recipe_lib
from ragrl_jax.recipes.parts import Prompt
from ragrl_jax.settings.fields import setting
from ragrl_jax.structs import Episode, Example


@dataclasses.dataclass(frozen=True)
class Switches(recipe_lib.Switches):
  """How programs are run and scored; README.md explains each switch."""

  program: str = setting(
    "ragrl_jax.agents.agent.programs.ask:run", "FILE.py:FUNCTION, MODULE:FUNCTION or command:WORDS"
  )
  reward: str = setting("em", "em, f1, judge, program, or FILE.py:FUNCTION of (example, answer, facts)")
  search: bool = setting(False, "programs can search the run's own index (config.retrieval) with task.search")
  rewritten: str = setting(
    "refuse", "a request rewrites the history: an error, or a new row", choices=("refuse", "split")
  )
  errors: str = setting(
    "mask", "an error: leave the episode out, or score it without answer", choices=("mask", "score")
  )
  max_requests: int = setting(16, "most requests per episode", unit="requests", least=1)
  timeout_s: float = setting(600.0, "most time per episode", unit="seconds", above=0)
  at_once: int = setting(128, "most that run at the same time, in this process", unit="programs", least=1)
  stops: str = setting("", "the stop strings that requests may use, separated by |")

  def __post_init__(self):
    super().__post_init__()
    if self.reward not in KINDS and ":" not in self.reward:
      raise ValueError(self.refusal("reward", self.reward, f"{', '.join(KINDS)} or FILE.py:FUNCTION"))


PRESETS: dict[str, dict[str, Any]] = {"paper": {}}


def measures(example: Example, episode: Episode) -> Mapping[str, float | None]:
  """Counts of one episode: requests, tool calls and searches.

  `errors` is 1 if the program's error was scored, else 0. `rewrites` counts how often the program rewrote its history.
  """
  del example  # all counts are facts of the episode
  facts = episode.facts
  counts = {name: facts.get(name) for name in ("requests", "tool_calls", "searches")}
  return counts | dict(errors=float("error" in facts), rewrites=float(len(facts.get("rewrites", ()))))


def build(switches: Switches) -> recipe_lib.Recipe:
  """The recipe with these switches.

  Raises:
    ValueError: the program or the reward function does not exist.
  """
  stops = tuple(stop for stop in switches.stops.split("|") if stop)
  prompt, parser = Prompt("none", {"none": "{question}"}), Parser(stops)
  kind = switches.reward
  if kind not in KINDS:
    kind = named.function_of(kind, "config.switches.reward")
  play = play_lib.build(program_lib.Program(switches.program), prompt, stops, switches)
  return recipe_lib.Recipe(
    name="agent",
    prompt=prompt,
    stops=stops,
    switches=switches,
    measures=measures,
    searches=switches.search,
    **answered.fields(play, Reward(parser, kind)),
  )
