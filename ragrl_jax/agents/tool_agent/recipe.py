"""Agents that call tools in their model's own format: see README.md."""

import asyncio
import collections
import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from ragrl_jax import structs
from ragrl_jax.agents.calls.call_texts import Malformed, ToolCall
from ragrl_jax.agents.calls.formats import CLOSINGS
from ragrl_jax.agents.calls.turns import ToolTurns
from ragrl_jax.agents.toolbox import mcp_servers, tool as tool_lib
from ragrl_jax.agents.toolbox.tool import FAILED, OK, REFUSED, Result, Toolbox
from ragrl_jax.core.text import tags
from ragrl_jax.prompting import passages
from ragrl_jax.recipes import parts, recipe as recipe_lib
from ragrl_jax.recipes.parts import Prompt
from ragrl_jax.settings.fields import Rules, setting
from ragrl_jax.structs import Episode, Example, Passage, Segment

COUNTS: tuple[str, ...] = ("malformed", "calls", "refused", "failed", "searches")
INSTRUCTIONS = {
  "paper": (
    "Answer the question below. Whatever you do not know for certain, look up or work out with the tools that you "
    "have, as often as it takes; several calls may stand in one turn. As soon as nothing more is needed, call no tool "
    "and give the answer, short and without explanations, between <answer> and </answer>, like this: "
    "<answer> Lisbon </answer>.\nQuestion: {question}"
  ),
  "short": "Use your tools, then answer in <answer> </answer>.\nQuestion: {question}",
  "none": "{question}",
}


@dataclasses.dataclass(frozen=True)
class Parser(parts.Parser):
  """Model text → answer. stops: the stop strings of a turn."""

  stops: tuple[str, ...] = ()

  def answer(self, text: str) -> str | None:
    """The last `<answer>` of a turn, outside its thoughts; None if there is none."""
    pair = tags.last(parts.spoken(text), "answer")
    return None if pair is None else pair.body.strip()


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
    yield (
      self.search or bool(self.tools.strip() or self.mcp.strip()),
      "there is no tool: set config.switches.search, tools or mcp.",
    )


def search(query: Annotated[str, "what to look for"]) -> str:
  """Finds passages on what is asked for, the best ones first."""
  raise NotImplementedError("the run's own search is called by `play`, with the episode's tools")


SEARCH = tool_lib.of_function(search)


@dataclasses.dataclass(frozen=True)
class Made:
  """A call and its result. `found` has the passages of a search; it is None for any other tool."""

  name: str
  result: Result
  query: str = ""
  found: tuple[Passage, ...] | None = None


def make_play(
  prompt: Prompt, parser: Parser, toolbox: Toolbox, turns_of: Callable[[Any], ToolTurns], switches: Switches
):
  """The coroutine. SEARCH is one of the tools if the model may use the run's own search. turns_of: by tokenizer."""
  max_turns, masks = switches.max_turns, switches.failure == "mask"

  async def play(example: Example, policy: structs.Policy, tools: structs.Tools) -> Episode:
    turns, answer, why = turns_of(policy.tokenizer), None, "turns"
    counts = collections.Counter(dict.fromkeys(COUNTS, 0))
    stop = tuple(one for one in parser.stops if one == turns.form.closing)
    conversation = policy.start(turns.prompt(prompt.messages(example)))
    for turn in range(max_turns + 1):  # the last turn can only answer
      reply = await parts.say(conversation, stop, every=True)
      calls, wrong = _read(turns, reply, 1 if turns.single else switches.max_calls)
      if not calls and not wrong:
        answer = parser.answer(parts.tagged(conversation, reply).text)
        why = None if answer is None else "answer"
        break
      counts["malformed"] += bool(wrong)
      if turn == max_turns:
        break
      # The calls of a turn run at the same time, while the engine samples for other episodes.
      results = await asyncio.gather(*(_run_call(call, toolbox, tools) for call in calls))
      failed = [one.result.text for one in results if one.result.kind == FAILED]
      if failed and masks:
        raise structs.ToolFailed(failed[0])
      searches = [one for one in results if one.found is not None]
      refused = sum(one.result.kind == REFUSED for one in results)
      counts.update(calls=len(calls), refused=refused, failed=len(failed), searches=len(searches))
      texts = [(one.name, passages.cut(_shown(one), policy.tokenizer, switches.max_result_tokens)) for one in results]
      new = turns.after(texts or [("", f"error: {wrong}")], ended=reply.stop == "eos")
      query = "; ".join(one.query for one in searches) if searches else None
      passages_found = [passage for one in searches for passage in one.found or ()] if searches else None
      if not conversation.observe(new, query=query, found=passages_found):
        why = "budget"
        break
    return conversation.end(why, answer=answer, **counts)

  return play


def _read(turns: ToolTurns, turn: Segment, most: int) -> tuple[list[ToolCall], str]:
  """(calls of the turn, error message for the model). The message is empty if the calls are valid."""
  try:
    calls = turns.calls(turn.text, turn.ids)
  except Malformed as error:
    return [], f"the call cannot be read: {error}"
  return (calls, "") if len(calls) <= most else ([], f"{len(calls)} calls in one turn: at most {most} are allowed")


async def _run_call(call: ToolCall, toolbox: Toolbox, tools: structs.Tools) -> Made:
  if toolbox.tools.get(call.name) is not SEARCH or toolbox.wrong(call.name, call.arguments):
    return Made(call.name, await toolbox.call(call.name, call.arguments))
  query = json.loads(call.arguments)["query"]
  try:  # config.retrieval has the deadline and the retries of a search
    results = tuple(await tools.search(query))
  except structs.ToolFailed as failure:
    return Made(call.name, Result(f"search failed: {failure}", FAILED))
  block = passages.block(results).strip().removeprefix(passages.OPEN).removesuffix(passages.CLOSE)
  return Made(call.name, Result(block or "No passages were found."), query, results)


def _shown(call: Made) -> str:
  return call.result.text if call.result.kind == OK else f"error: {call.result.text}"


PRESETS: dict[str, dict[str, Any]] = {"paper": {}}


def measures(example: Example, episode: Episode) -> Mapping[str, float | None]:
  """The counts of one episode.

  `malformed`: turns whose calls could not be read. `calls`: those that could; of these `refused` were the model's
  mistake, and `failed` failed in the tool. `searches`: calls of the run's own search that did not fail.
  """
  return {name: episode.facts.get(name) for name in COUNTS}


def toolbox_of(switches: Switches) -> Toolbox:
  """The tools. This starts or contacts the MCP servers.

  Raises:
    ValueError: a tool does not exist or has no schema, two tools have the same name, or a server cannot be used.
  """
  tools = [SEARCH] if switches.search else []
  for name in filter(None, map(str.strip, switches.tools.split(","))):
    tools.append(tool_lib.of_function(tool_lib.function_of(name, "config.switches.tools")))
  for where in filter(None, map(str.strip, switches.mcp.split("|"))):
    tools += mcp_servers.tools_of(where, switches.timeout_s)
  return Toolbox(tools, timeout_s=switches.timeout_s, retries=switches.retries, at_once=switches.at_once)


def build(switches: Switches) -> recipe_lib.Recipe:
  """The recipe with these switches.

  Raises:
    ValueError: as in `toolbox_of`.
  """
  toolbox = toolbox_of(switches)
  prompt, parser = Prompt(switches.instructions, INSTRUCTIONS), Parser(CLOSINGS if switches.max_calls == 1 else ())
  made: dict[Any, ToolTurns] = {}  # by tokenizer

  def turns_of(tokenizer: Any) -> ToolTurns:
    if tokenizer not in made:
      made[tokenizer] = ToolTurns(tokenizer, [tool.shown for tool in toolbox.tools.values()])
    return made[tokenizer]

  play = make_play(prompt, parser, toolbox, turns_of, switches)
  return recipe_lib.Recipe(
    name="tool_agent",
    prompt=prompt,
    stops=parser.stops,
    switches=switches,
    measures=measures,
    tool_tokens=lambda tokenizer: turns_of(tokenizer).tokens,
    searches=switches.search,
    **parts.answer_fields(play, parts.AnswerReward(parser, switches.reward)),
  )
