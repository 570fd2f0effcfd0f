"""Runs programs: Python functions in threads, coroutines on one event loop, commands in processes."""

import asyncio
import contextlib
import inspect
import json
import os
import shlex
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from ragrl_jax.recipes.agent.task import Task
from ragrl_jax.toolbox import named, tool

COMMAND = "command:"
MOST_BYTES = 1 << 20  # most bytes that a command may print


class Died(Exception):
  """The program returned no valid result. The message names the program and the reason."""


class Program:
  """A program, given by its name: "FILE.py:FUNCTION", "MODULE:FUNCTION" or "command:WORDS".

  A function takes a `Task`. All `async def` functions run on one event loop; any other function runs in its own thread.
  A command reads the task as JSON from its standard input, and has OPENAI_BASE_URL and OPENAI_API_KEY in its
  environment. The last line that it prints is its result, as JSON or text.

  Args:
    name: as above.

  Raises:
    ValueError: the file, module or function does not exist, or there is no command after "command:".
  """

  def __init__(self, name: str):
    self.name = name
    self._command = shlex.split(name.removeprefix(COMMAND)) if name.startswith(COMMAND) else []
    if name.startswith(COMMAND) and not self._command:
      raise ValueError(f"config.switches.program={name!r}: there is no command after {COMMAND!r}.")
    self._function = None if self._command else named.function_of(name, "config.switches.program")

  async def run(self, task: Task) -> Any:
    """Runs the program on a task, and returns what the program returns.

    Raises:
      Died: the program raised an error, exited with a status other than 0, or took longer than `task.timeout_s`.
    """
    try:
      return await asyncio.wait_for(self._run(task), task.timeout_s)
    except TimeoutError:
      limit = f"{task.timeout_s:g} s (config.switches.timeout_s)"
      raise Died(f"the program {self.name} gave no result within {limit}.") from None

  def _run(self, task: Task) -> Awaitable[Any]:
    if self._function is None:
      return self._process(task)
    if inspect.iscoroutinefunction(self._function):
      # All programs share the tools' loop: they may keep HTTP clients, which belong to one loop.
      return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._guarded(self._function, task), tool.loop()))
    return self._thread(self._function, task)

  async def _guarded(self, function: Callable[[Task], Awaitable[Any]], task: Task) -> Any:
    try:
      return await function(task)
    except (Exception, SystemExit) as error:  # the function is the user's, so any error fails only this episode
      raise Died(self._raised(error)) from error

  def _thread(self, function: Callable[[Task], Any], task: Task) -> asyncio.Future[Any]:
    loop = asyncio.get_running_loop()
    given = loop.create_future()

    def work() -> None:
      result, died = None, None
      try:
        result = function(task)
      except (Exception, SystemExit) as error:  # noqa: BLE001  (as above)
        died = Died(self._raised(error))
        died.__cause__ = error
      with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits for the result
        loop.call_soon_threadsafe(_settle, given, result, died)

    # A daemon thread instead of a pool: Python waits for a pool's threads at exit, and a program may hang.
    threading.Thread(target=work, name="program", daemon=True).start()
    return given

  async def _process(self, task: Task) -> Any:
    environment = {**os.environ, "OPENAI_BASE_URL": task.base_url, "OPENAI_API_KEY": task.api_key}
    pipe = asyncio.subprocess.PIPE
    try:
      process = await asyncio.create_subprocess_exec(
        *self._command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
      )
    except OSError as error:
      raise Died(f"the program {self.name} could not be started: {error}.") from None
    try:
      said, errors = await process.communicate(task.json().encode() + b"\n")
    finally:
      with contextlib.suppress(ProcessLookupError):  # the process and its children have ended
        os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
      last = errors.decode(errors="replace").strip().splitlines()[-1:] or [""]
      raise Died(f"the program {self.name} ended with status {process.returncode}: {last[0][:300]}")
    if len(said) > MOST_BYTES:
      raise Died(f"the program {self.name} printed {len(said)} bytes: it may print at most {MOST_BYTES}.")
    lines = said.decode(errors="replace").strip().splitlines()
    if not lines:
      return None
    try:
      value = json.loads(lines[-1])
    except (ValueError, RecursionError):
      return lines[-1]
    return value if value is None or isinstance(value, dict | str) else lines[-1]

  def _raised(self, error: BaseException) -> str:
    words = " ".join(str(error).split())[:300]
    return f"the program {self.name} raised {type(error).__name__}: {words}"


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
  if future.done():  # the deadline has passed
    return
  if error is None:
    future.set_result(result)
  else:
    future.set_exception(error)
