"""External agents: see README.md."""

import asyncio
import dataclasses
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax import structs
from ragrl_jax.agents.agent import program as program_lib, task as task_lib
from ragrl_jax.agents.agent.session import Reading, Session
from ragrl_jax.agents.calls.formats import CLOSINGS
from ragrl_jax.agents.toolbox import tool
from ragrl_jax.recipes import parts, recipe as recipe_lib
from ragrl_jax.recipes.parts import Prompt
from ragrl_jax.settings.fields import Rules, setting
from ragrl_jax.structs import Episode, Example

KINDS = ("em", "f1", "judge", "program")


@dataclasses.dataclass(frozen=True)
class Parser(parts.Parser):
  """Reads transcripts: in a run, the program itself returns its answer. stops: those that requests may use."""

  stops: tuple[str, ...] = ()

  def stop(self, text: str) -> str:
    """The longest stop string that the text ends with, or "eos"."""
    return max((stop for stop in self.stops if text.endswith(stop)), key=len, default="eos")

  def answer(self, text: str) -> str | None:
    """The whole text; None if it is empty."""
    return text.strip() or None


class Reward(parts.AnswerReward):
  """Scores one episode. `kind`: one of KINDS, or a function of (example, answer, facts).

  A function returns a number, or None if the episode cannot be scored.
  """

  def earned(self, example: Example, episode: Episode) -> float | None:
    """The term `answer`; None if the program, the judge or the function gave no number."""
    if self.kind == "program":
      return episode.facts.get("reward")
    if self.kind in KINDS:
      return super().earned(example, episode)
    earned = self.kind(example, parts.last_answer(self.parser, episode) or "", episode.facts)
    return None if earned is None else float(earned)


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

  def rules(self) -> Rules:
    must = f"{', '.join(KINDS)} or FILE.py:FUNCTION"
    yield self.reward in KINDS or ":" in self.reward, self.refusal("reward", self.reward, must)


def make_play(program: program_lib.Program, prompt: Prompt, stops: Sequence[str], switches: Switches):
  """The coroutine. `prompt` is that of an episode whose program sent no request."""
  # Imported here, because a server's packages take time to import and other recipes do not need them.
  from ragrl_jax.agents.agent.gateway import Gateway

  gateway = Gateway()
  readings: dict[Any, Reading] = {}  # by tokenizer
  permits: weakref.WeakKeyDictionary[Any, asyncio.Semaphore] = weakref.WeakKeyDictionary()  # by event loop

  async def play(example: Example, policy: structs.Policy, tools: structs.Tools) -> Episode:
    tokenizer, loop = policy.tokenizer, asyncio.get_running_loop()
    if tokenizer not in readings:
      readings[tokenizer] = Reading(tokenizer, stops)
    if loop not in permits:
      permits[loop] = asyncio.Semaphore(switches.at_once)
    async with permits[loop]:
      split, timeout_s = switches.rewritten == "split", switches.timeout_s
      session = Session(policy, tools, readings[tokenizer], max_requests=switches.max_requests, split=split)
      url = await gateway.open(session, readings[tokenizer], timeout_s)
      result, error = task_lib.Result(), ""
      try:
        task = task_lib.Task(example.id, example.question, example.passages, url, timeout_s=timeout_s)
        result = await program.run(task)
      except program_lib.Died as died:
        error = str(died)
      except asyncio.CancelledError:  # the run ends: the reply that is being sampled is cancelled, too
        await session.close(cancel=True)
        raise
      finally:
        gateway.close(url)
        await session.close()
    if session.crashed is not None:
      raise session.crashed
    if session.failure:
      raise structs.ToolFailed(session.failure)
    # The policy used up the context or the requests. The program's error follows from that, so the episode is scored.
    if error and not (switches.errors == "score" or session.ended):
      raise structs.ToolFailed(error)
    facts = dict(answer=result.answer, requests=session.requests, tool_calls=session.calls, searches=session.searches)
    facts |= dict(reward=result.reward) if result.reward is not None else {}
    facts |= dict(error=error) if error else {}
    facts |= dict(rewrites=session.rewrites) if session.rewrites else {}
    return session.episode({**result.facts, **facts}, prompt.messages(example))

  return play


PRESETS: dict[str, dict[str, Any]] = {"paper": {}}


def measures(example: Example, episode: Episode) -> Mapping[str, float | None]:
  """Counts of one episode: requests, tool calls and searches.

  `errors` is 1 if the program's error was scored, else 0. `rewrites` counts how often the program rewrote its history.
  """
  facts = episode.facts
  counts = {name: facts.get(name) for name in ("requests", "tool_calls", "searches")}
  return counts | dict(errors=float("error" in facts), rewrites=float(len(facts.get("rewrites", ()))))


def build(switches: Switches) -> recipe_lib.Recipe:
  """The recipe with these switches.

  Raises:
    ValueError: the program or the reward function does not exist.
  """
  # A request may ask for one call alone, whose closing mark then ends the reply.
  stops = tuple(dict.fromkeys([*filter(None, switches.stops.split("|")), *CLOSINGS]))
  prompt, parser = Prompt("none", {"none": "{question}"}), Parser(stops)
  kind: Any = switches.reward
  if kind not in KINDS:
    kind = tool.function_of(kind, "config.switches.reward")
  play = make_play(program_lib.Program(switches.program), prompt, stops, switches)
  return recipe_lib.Recipe(
    name="agent",
    prompt=prompt,
    stops=stops,
    switches=switches,
    measures=measures,
    searches=switches.search,
    **parts.answer_fields(play, Reward(parser, kind)),
  )
