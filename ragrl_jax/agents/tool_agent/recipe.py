"""Agents that call tools in their model's own format: see README.md."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ragrl_jax.agents.calls.turns import ToolTurns
from ragrl_jax.agents.tool_agent import play as play_lib
from ragrl_jax.agents.tool_agent.parser import Parser
from ragrl_jax.agents.tool_agent.prompt import INSTRUCTIONS
from ragrl_jax.agents.toolbox import mcp_servers, named
from ragrl_jax.agents.toolbox import tool as tool_lib
from ragrl_jax.agents.toolbox.toolbox import Toolbox
from ragrl_jax.recipes import answered
from ragrl_jax.recipes import recipe as recipe_lib
from ragrl_jax.recipes.parts import Prompt
from ragrl_jax.settings.fields import Rules, setting
from ragrl_jax.structs import Episode, Example

STOPS = ("</tool_call>", "</function>")  # closing marks of a call, in the formats that have one


@dataclasses.dataclass(frozen=True)
class Switches(recipe_lib.Switches):
  """Which tools there are, and how they are called; README.md explains each switch."""

  instructions: str = setting("paper", "text before the question; none: nothing", choices=INSTRUCTIONS, files=True)
  search: bool = setting(True, "the search of the run's own index (config.retrieval) is a tool")
  tools: str = setting("", "Python functions, FILE.py:FUNCTION or MODULE:FUNCTION, separated by commas")
  mcp: str = setting("", "MCP servers, commands or http addresses, separated by |")
  reward: str = setting("em", "score of the final answer", choices=("em", "f1", "judge"))
  failure: str = setting("observe", "a tool failed: show the error, or drop the episode", choices=("observe", "mask"))
  max_turns: int = setting(4, "most turns with calls; the turn after them must answer", unit="turns", least=0)
  max_calls: int = setting(4, "most per turn; with 1, a turn ends at the end of its call", unit="calls", least=1)
  max_result_tokens: int = setting(512, "a longer result is cut", unit="tokens", least=1)
  timeout_s: float = setting(30.0, "most time per try of a call", unit="seconds", above=0)
  retries: int = setting(2, "further tries of a failed call", unit="calls", least=0)
  at_once: int = setting(64, "most that run at the same time, in this process", unit="calls", least=1)

  def rules(self) -> Rules:
    """See `Checked.rules`."""
    yield (
      self.search or bool(self.tools.strip() or self.mcp.strip()),
      "there is no tool: set config.switches.search, tools or mcp.",
    )


PRESETS: dict[str, dict[str, Any]] = {"paper": {}}


def measures(example: Example, episode: Episode) -> Mapping[str, float | None]:
  """The counts of one episode (`play.Counts`)."""
  del example  # all counts are facts of the episode
  return {field.name: episode.facts.get(field.name) for field in dataclasses.fields(play_lib.Counts)}


def toolbox_of(switches: Switches) -> Toolbox:
  """The tools. This starts or contacts the MCP servers.

  Raises:
    ValueError: a tool does not exist or has no schema, two tools have the same name, or a server cannot be used.
  """
  tools = [play_lib.SEARCH] if switches.search else []
  for name in filter(None, map(str.strip, switches.tools.split(","))):
    tools.append(tool_lib.of_function(named.function_of(name, "config.switches.tools")))
  for where in filter(None, map(str.strip, switches.mcp.split("|"))):
    tools += mcp_servers.tools_of(where, switches.timeout_s)
  return Toolbox(tools, timeout_s=switches.timeout_s, retries=switches.retries, at_once=switches.at_once)


def build(switches: Switches) -> recipe_lib.Recipe:
  """The recipe with these switches.

  Raises:
    ValueError: as in `toolbox_of`.
  """
  toolbox = toolbox_of(switches)
  prompt, parser = Prompt(switches.instructions, INSTRUCTIONS), Parser(STOPS if switches.max_calls == 1 else ())
  made: dict[Any, ToolTurns] = {}  # by tokenizer

  def turns_of(tokenizer: Any) -> ToolTurns:
    if tokenizer not in made:
      made[tokenizer] = ToolTurns(tokenizer, [tool.shown for tool in toolbox.tools.values()])
    return made[tokenizer]

  play = play_lib.build(prompt, parser, toolbox, turns_of, switches)
  return recipe_lib.Recipe(
    name="tool_agent",
    prompt=prompt,
    stops=parser.stops,
    switches=switches,
    measures=measures,
    tool_tokens=lambda tokenizer: turns_of(tokenizer).tokens,
    searches=switches.search,
    **answered.fields(play, answered.Reward(parser, switches.reward)),
  )
