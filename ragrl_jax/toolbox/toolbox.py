"""Calls tools: checks the arguments, limits the time, repeats failed calls, and tells refusals from failures."""

import asyncio
import dataclasses
import json
from collections.abc import Sequence

from ragrl_jax.toolbox import schemas
from ragrl_jax.toolbox.tool import Refused, Tool, loop

OK, REFUSED, FAILED = "ok", "refused", "failed"
BACKOFF_S = 0.5  # seconds before the second try; doubled for each further try


@dataclasses.dataclass(frozen=True)
class Result:
  """The result of a call.

  Attributes:
    text: the tool's result, or the error message.
    kind: OK; REFUSED: the model made a mistake (unknown tool, wrong arguments, refused by the tool); FAILED: the tool
      failed in all tries (error, or no result in time).
  """

  text: str
  kind: str = OK


class Toolbox:
  """Tools by name.

  Args:
    tools: the tools; their names must differ.
    timeout_s: most seconds per try of a call.
    retries: further tries after a failure. Set 0 if a tool has side effects.
    at_once: most calls that run at the same time. Further calls wait; the wait does not count towards `timeout_s`.
    backoff_s: seconds before the second try; doubled for each further try.

  Raises:
    ValueError: two tools have the same name.
  """

  def __init__(
    self, tools: Sequence[Tool], *, timeout_s: float, retries: int, at_once: int, backoff_s: float = BACKOFF_S
  ):
    self.tools: dict[str, Tool] = {}
    for one in tools:
      if one.name in self.tools:
        raise ValueError(f"two tools have the name {one.name!r}: rename one, or leave it out (config.switches).")
      self.tools[one.name] = one
    self._timeout_s, self._retries, self._backoff_s = timeout_s, retries, backoff_s
    self._permits = asyncio.Semaphore(at_once)

  def wrong(self, name: str, arguments: str) -> str:
    """Checks a call without making it.

    Args:
      name: the tool's name.
      arguments: the arguments, a JSON object as text.

    Returns:
      A message for the model if the tool does not exist or the arguments do not fit its schema; else "".
    """
    if name not in self.tools:
      return f"there is no tool {name!r:.80}: there is {', '.join(self.tools)}"
    try:
      found = schemas.fault(json.loads(arguments), self.tools[name].parameters)
    except RecursionError:
      found = "the arguments are nested too deep"
    return f"{name}: {found}" if found else ""

  async def call(self, name: str, arguments: str) -> Result:
    """Makes a call. It can be awaited on any event loop; the tool runs on `tool.loop()`.

    Args:
      name, arguments: as in `wrong`.
    """
    if wrong := self.wrong(name, arguments):
      return Result(wrong, REFUSED)
    tried = self._tried(self.tools[name], json.loads(arguments))
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(tried, loop()))

  async def _tried(self, tool: Tool, arguments: dict) -> Result:
    why = ""
    for number in range(self._retries + 1):
      if number:
        await asyncio.sleep(self._backoff_s * 2 ** (number - 1))
      try:
        async with self._permits, asyncio.timeout(self._timeout_s) as limit:
          # A copy for each try, because the tool may change its arguments.
          return Result(await tool.run(json.loads(json.dumps(arguments))))
      except Refused as refused:
        return Result(f"{tool.name}: {refused}", REFUSED)
      except (Exception, asyncio.CancelledError) as error:  # any error of the user's tool is its failure
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
          raise  # this call is cancelled, and not a task inside the tool
        if isinstance(error, TimeoutError) and limit.expired():
          why = f"no answer within {self._timeout_s:g} s (config.switches.timeout_s)"
        else:
          why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}".rstrip(": ")
    tries = f" in {self._retries + 1} tries" if self._retries else ""
    return Result(f"{tool.name} failed{tries}: {why}", FAILED)
