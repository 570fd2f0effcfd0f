"""Calls tools: checks the arguments, limits the time, repeats failed calls, and tells refusals from failures."""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import Sequence

from ragrl_jax.agents.toolbox import schemas
from ragrl_jax.agents.toolbox.tool import LONGEST, THREADS, Refused, Tool, blocker, loop

OK, REFUSED, FAILED = "ok", "refused", "failed"
BACKOFF_S = 0.5  # seconds before the second try; doubled for each further try
BLOCKED_S = 5.0  # seconds, after a call's time limit, in which the tools' event loop must give a sign


@dataclasses.dataclass(frozen=True)
class Result:
  """The result of a call.

  Attributes:
    text: the tool's result, or the error message; at most LONGEST characters.
    kind: OK; REFUSED: the model made a mistake (unknown tool, wrong arguments, refused by the tool); FAILED: the tool
      failed in all tries (error, or no result in time).
  """

  text: str
  kind: str = OK


class _Stuck(Exception):
  """All permits are held by threads whose time limit has passed."""


class Toolbox:
  """Tools by name.

  Args:
    timeout_s: most seconds per try of a call.
    retries: further tries after a failure. Set 0 if a tool has side effects.
    at_once: most calls that run at the same time. Further calls wait; the wait does not count towards `timeout_s`. A
      function that still runs in its thread after its time limit counts until it returns.
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
    self._permits, self._at_once, self._stuck = asyncio.Semaphore(at_once), at_once, 0

  def wrong(self, name: str, arguments: str) -> str:
    """A message for the model if there is no such tool or the arguments (JSON) do not fit its schema; else ""."""
    if name not in self.tools:
      return f"there is no tool {name!r:.80}: there is {', '.join(self.tools)}"
    try:
      found = schemas.fault(json.loads(arguments), self.tools[name].parameters)
    except RecursionError:
      found = "the arguments are nested too deep"
    return f"{name}: {found}" if found else ""

  async def call(self, name: str, arguments: str) -> Result:
    """Makes a call. It can be awaited on any event loop; the tool runs on `tool.loop()`."""
    if wrong := self.wrong(name, arguments):
      return Result(wrong, REFUSED)
    tool = self.tools[name]
    tried = self._tried(tool, schemas.fitted(json.loads(arguments), tool.parameters))
    work = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(tried, loop()))
    try:
      while True:
        if (await asyncio.wait({work}, timeout=self._timeout_s))[0]:
          return work.result()
        if who := await blocker(BLOCKED_S):
          return Result(
            f"{name} failed: {who} is an `async def` that has not awaited anything for {BLOCKED_S:g} s, so that no "
            "tool can run. Await in it, or write it as a plain `def`.",
            FAILED,
          )
    finally:
      work.cancel()

  async def _tried(self, tool: Tool, arguments: dict) -> Result:
    why, task = "", asyncio.current_task()
    assert task is not None
    task.set_name(tool.name)  # for the message of a tool that blocks the loop
    for number in range(self._retries + 1):
      if number:
        await asyncio.sleep(self._backoff_s * 2 ** (number - 1))
      limit = None
      try:
        async with self._permit(), asyncio.timeout(self._timeout_s) as limit:
          # A copy for each try, because the tool may change its arguments.
          return Result((await tool.run(json.loads(json.dumps(arguments))))[:LONGEST])
      except Refused as refused:
        return Result(f"{tool.name}: {refused}"[:LONGEST], REFUSED)
      except _Stuck as stuck:
        return Result(f"{tool.name} failed: {stuck}", FAILED)
      except (Exception, asyncio.CancelledError) as error:  # any error of the user's tool is its failure
        if isinstance(error, asyncio.CancelledError) and task.cancelling():
          raise  # this call is cancelled, and not a task inside the tool
        if isinstance(error, TimeoutError) and limit and limit.expired():
          why = f"no answer within {self._timeout_s:g} s (config.switches.timeout_s)"
        else:
          why = f"{type(error).__name__}: {' '.join(str(error)[:3000].split())[:300]}".rstrip(": ")
    tries = f" in {self._retries + 1} tries" if self._retries else ""
    return Result(f"{tool.name} failed{tries}: {why}", FAILED)

  @contextlib.asynccontextmanager
  async def _permit(self):
    """Waits for a permit, and gives it back when the call's threads have ended, which may be after its time limit."""
    while True:
      if self._stuck >= self._at_once:
        raise _Stuck(
          f"{self._stuck} calls still run in their threads after their time limit, and no more may run at once "
          "(config.switches.at_once). Give what the tools wait for a time limit of its own."
        )
      with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(self._timeout_s):
          await self._permits.acquire()
        break
    threads: list[asyncio.Future] = []
    THREADS.set(threads)
    try:
      yield
    finally:
      left = [one for one in threads if not one.done()]
      if not left:
        self._permits.release()
      for one in left:
        self._stuck += 1
        one.add_done_callback(self._ended)

  def _ended(self, thread: asyncio.Future) -> None:
    if not thread.cancelled():
      thread.exception()  # read, so that asyncio does not log it: nobody waits for it
    self._stuck -= 1
    self._permits.release()
