"""An episode: a program runs, and the policy's replies to its requests are the turns."""

import asyncio
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ragrl_jax import structs
from ragrl_jax.agents.agent import program as program_lib
from ragrl_jax.agents.agent import task as task_lib
from ragrl_jax.agents.agent.session import Reading, Session
from ragrl_jax.recipes.parts import Prompt
from ragrl_jax.structs import Episode, Example

if TYPE_CHECKING:
  from ragrl_jax.agents.agent.recipe import Switches


def build(program: program_lib.Program, prompt: Prompt, stops: Sequence[str], switches: "Switches"):
  """Makes the coroutine that plays an episode.

  Args:
    program: runs once per episode.
    prompt: the question as a message. It is the prompt of an episode whose program sent no request.
    stops: the stop strings that requests may use.
    switches: the recipe's.
  """
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
        given = task_lib.Task(example.id, example.question, example.passages, url, timeout_s=timeout_s)
        result = _read(program, await program.run(given))
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


def _read(program: program_lib.Program, returned: Any) -> task_lib.Result:
  try:
    return task_lib.read(returned)
  except ValueError as error:
    raise program_lib.Died(f"the program {program.name}: {error}") from None
