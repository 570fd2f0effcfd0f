"""Calls of tools: arguments checked, with a deadline, tried again, and told apart by what went wrong."""

import asyncio
import dataclasses
import json
from collections.abc import Sequence

from ragrl_jax.toolbox import schemas
from ragrl_jax.toolbox.tool import Refused, Tool, loop

OK, REFUSED, FAILED = "ok", "refused", "failed"
BACKOFF_S = 0.5  # wait before the second try; it doubles with every further one


@dataclasses.dataclass(frozen=True)
class Result:
  """What a call gave.

  Attributes:
    text: the result; else what is wrong.
    kind: OK; REFUSED, the model's mistake (no such tool, other arguments, the tool's own refusal); or FAILED, the
      tool's (no answer in time, an error) after all tries.
  """

  text: str
  kind: str = OK


class Toolbox:
  """Tools by name.

  Args:
    tools: with different names.
    timeout_s: seconds of one try of a call.
    retries: tries after the first one, for failures. A tool that changes something should have none.
    at_once: most calls at the same time; further ones wait, and their seconds begin after that.
    backoff_s: seconds before the second try.

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
    """What is wrong with a call, in words for the model: there is no such tool, or it takes other arguments; else "".

    Args:
      name: the tool's.
      arguments: JSON, an object.
    """
    if name not in self.tools:
      return f"there is no tool {name!r:.80}: there is {', '.join(self.tools)}"
    found = schemas.fault(json.loads(arguments), self.tools[name].parameters)
    return f"{name}: {found}" if found else ""

  async def call(self, name: str, arguments: str) -> Result:
    """The result of a call. It may be awaited on any event loop; the tool runs on its own. Arguments as for `wrong`."""
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
          # Each try has arguments of its own: the tool may change them.
          return Result(await tool.run(json.loads(json.dumps(arguments))))
      except Refused as refused:
        return Result(f"{tool.name}: {refused}", REFUSED)
      except Exception as error:  # noqa: BLE001  (the tool is the user's: whatever it raises is its own failure)
        if isinstance(error, TimeoutError) and limit.expired():
          why = f"no answer within {self._timeout_s:g} s (config.switches.timeout_s)"
        else:
          why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    tries = f" in {self._retries + 1} tries" if self._retries else ""
    return Result(f"{tool.name} failed{tries}: {why}", FAILED)
