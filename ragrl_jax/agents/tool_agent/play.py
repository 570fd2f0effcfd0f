"""The episode: the model calls tools and reads their results, turn by turn; then it answers."""

import asyncio
import dataclasses
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ragrl_jax import structs
from ragrl_jax.agents.calls.call_texts import Malformed, ToolCall
from ragrl_jax.agents.calls.turns import ToolTurns
from ragrl_jax.agents.tool_agent.parser import Parser
from ragrl_jax.agents.toolbox.tool import Tool
from ragrl_jax.agents.toolbox.toolbox import FAILED, OK, REFUSED, Result, Toolbox
from ragrl_jax.prompting import passages
from ragrl_jax.recipes.parts import Prompt
from ragrl_jax.structs import Episode, Example, Passage, Segment

if TYPE_CHECKING:
  from ragrl_jax.agents.tool_agent.recipe import Switches


async def _by_the_episode(arguments: dict[str, Any]) -> str:
  raise NotImplementedError("the run's own search is called by `play`, with the episode's tools")


SEARCH = Tool(
  "search",
  "Finds passages on what is asked for, the best ones first.",
  dict(
    type="object",
    properties=dict(query=dict(type="string", description="what to look for")),
    required=["query"],
    additionalProperties=False,
  ),
  _by_the_episode,
)


@dataclasses.dataclass
class Counts:
  """Counts of one episode.

  Attributes:
    malformed: turns whose calls could not be read.
    calls: calls that could be read.
    refused: calls that were the model's mistake.
    failed: calls that failed in the tool.
    searches: calls of the run's own search that did not fail.
  """

  malformed: int = 0
  calls: int = 0
  refused: int = 0
  failed: int = 0
  searches: int = 0


@dataclasses.dataclass(frozen=True)
class Made:
  """A call and its result. `found` has the passages of a search; it is None for any other tool."""

  name: str
  result: Result
  query: str = ""
  found: tuple[Passage, ...] | None = None


def build(prompt: Prompt, parser: Parser, toolbox: Toolbox, turns_of: Callable[[Any], ToolTurns], switches: "Switches"):
  """Makes the coroutine that plays an episode.

  Args:
    prompt, parser, switches: those of the recipe.
    toolbox: the tools. SEARCH is one of them if the model may use the run's own search.
    turns_of: makes the `ToolTurns` of a tokenizer.
  """
  max_turns, masks = switches.max_turns, switches.failure == "mask"

  async def play(example: Example, policy: structs.Policy, tools: structs.Tools) -> Episode:
    turns, counts, answer, why = turns_of(policy.tokenizer), Counts(), None, "turns"
    stop = tuple(one for one in parser.stops if one == turns.form.closing)
    talk = policy.start(turns.prompt(prompt.messages(example)))
    for turn in range(max_turns + 1):  # the last turn can only answer
      said = await talk.generate(stop=stop)
      calls, wrong = _read(turns, said, 1 if turns.single else switches.max_calls)
      if not calls and not wrong:
        answer = parser.answer(said.text)
        why = None if answer is None else "answer"
        break
      counts.malformed += bool(wrong)
      if turn == max_turns:
        break
      # The calls of a turn run at the same time, while the engine samples for other episodes.
      made = await asyncio.gather(*(_made(call, toolbox, tools) for call in calls))
      _count(counts, made)
      if failed := [one.result.text for one in made if one.result.kind == FAILED and masks]:
        raise structs.ToolFailed(failed[0])
      shown = [(one.name, passages.cut(_shown(one), policy.tokenizer, switches.max_result_tokens)) for one in made]
      new = turns.after(shown or [("", f"error: {wrong}")], ended=said.stop == "eos")
      searches = [one for one in made if one.found is not None]
      query = "; ".join(one.query for one in searches) if searches else None
      found = [passage for one in searches for passage in one.found or ()] if searches else None
      if not talk.observe(new, query=query, found=found):
        why = "budget"
        break
    return talk.end(why, answer=answer, **dataclasses.asdict(counts))

  return play


def _read(turns: ToolTurns, said: Segment, most: int) -> tuple[list[ToolCall], str]:
  """(calls of the turn, error message for the model). The message is empty if the calls are valid."""
  try:
    calls = turns.calls(said.text, said.ids)
  except Malformed as error:
    return [], f"the call cannot be read: {error}"
  return (calls, "") if len(calls) <= most else ([], f"{len(calls)} calls in one turn: at most {most} are allowed")


async def _made(call: ToolCall, toolbox: Toolbox, tools: structs.Tools) -> Made:
  if toolbox.tools.get(call.name) is not SEARCH or toolbox.wrong(call.name, call.arguments):
    return Made(call.name, await toolbox.call(call.name, call.arguments))
  query = json.loads(call.arguments)["query"]
  try:  # config.retrieval has the deadline and the retries of a search
    found = tuple(await tools.search(query))
  except structs.ToolFailed as failure:
    return Made(call.name, Result(f"search failed: {failure}", FAILED))
  listed = passages.block(found).strip().removeprefix(passages.OPEN).removesuffix(passages.CLOSE)
  return Made(call.name, Result(listed or "No passages were found."), query, found)


def _shown(made: Made) -> str:
  return made.result.text if made.result.kind == OK else f"error: {made.result.text}"


def _count(counts: Counts, made: list[Made]) -> None:
  counts.calls += len(made)
  counts.refused += sum(one.result.kind == REFUSED for one in made)
  counts.failed += sum(one.result.kind == FAILED for one in made)
  counts.searches += sum(one.found is not None for one in made)
