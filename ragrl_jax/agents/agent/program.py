"""Runs programs: Python functions in threads, coroutines on one event loop, commands in processes."""

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
import json
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from ragrl_jax.agents.agent.task import Result, Task, read
from ragrl_jax.agents.toolbox import tool

COMMAND = "command:"
MOST_BYTES = 1 << 20  # most bytes that a command may print
MOST_LATE = 128  # most functions that still run in their threads after their time limit
LOOP_S = 1.0  # seconds in which the event loop of `async def` functions must give a sign
LOOK_S = 0.5  # seconds between two looks whether a command has ended


class Died(Exception):
  """The program returned no valid result. The message names the program and the reason."""


class Program:
  """A program, given by its name: "FILE.py:FUNCTION", "MODULE:FUNCTION" or "command:WORDS".

  A function takes a `Task`. All `async def` functions run on one event loop; any other function runs in its own thread.
  A command reads the task as JSON from its standard input, and has OPENAI_BASE_URL and OPENAI_API_KEY in its
  environment. The last line that it prints is its result, as JSON or text.

  Raises:
    ValueError: the file, module, function or command does not exist, or the function takes no task alone.
  """

  def __init__(self, name: str):
    self.name = name
    setting = "config.switches.program"
    self._command = tool.words_of(name.removeprefix(COMMAND), setting) if name.startswith(COMMAND) else []
    if name.startswith(COMMAND) and not self._command:
      raise ValueError(f"{setting}={name!r}: there is no command after {COMMAND!r}.")
    self._function = None if self._command else tool.function_of(name, setting)
    if self._function is not None:
      try:
        inspect.signature(self._function).bind("task")
      except TypeError as error:
        raise ValueError(f"{setting}={name!r}: it must be a function of the task alone ({error}).") from None
      except ValueError:  # not written in Python, so its arguments are unknown
        pass
    self._threads: list[tuple[concurrent.futures.Future[Any], asyncio.Future[Any]]] = []

  async def run(self, task: Task) -> Result:
    """Runs the program on a task, and reads what it returns.

    Raises:
      Died: the program raised an error, exited with a status other than 0, took longer than `task.timeout_s`, or
        returned no result (`task.read`); or MOST_LATE earlier calls still run.
    """
    try:
      returned = await asyncio.wait_for(self._run(task), task.timeout_s)
    except TimeoutError:
      why = f"gave no result within {task.timeout_s:g} s (config.switches.timeout_s)"
      if inspect.iscoroutinefunction(self._function) and (who := await tool.blocker(LOOP_S)):
        why += f": {who} is an `async def` that does not await, so that no other one can run"
      raise Died(f"the program {self.name} {why}.") from None
    try:
      return read(returned)
    except ValueError as error:
      raise Died(f"the program {self.name}: {error}") from None

  def _run(self, task: Task) -> Awaitable[Any]:
    if self._function is None:
      return self._process(task)
    if inspect.iscoroutinefunction(self._function):
      # All programs share the tools' loop: they may keep HTTP clients, which belong to one loop.
      return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._guarded(self._function, task), tool.loop()))
    return self._thread(self._function, task)

  async def _guarded(self, function: Callable[[Task], Awaitable[Any]], task: Task) -> Any:
    if current := asyncio.current_task():
      current.set_name(self.name)  # for the message of a program that blocks the loop
    try:
      return await function(task)
    except (Exception, SystemExit) as error:  # the function is the user's, so any error fails only this episode
      raise Died(self._raised(error)) from error

  def _thread(self, function: Callable[[Task], Any], task: Task) -> asyncio.Future[Any]:
    self._threads = [one for one in self._threads if not one[0].done()]
    if (late := sum(future.done() for _, future in self._threads)) >= MOST_LATE:
      raise Died(
        f"the program {self.name} is not started: {late} earlier calls still run in their threads after their time "
        "limit. Give what it waits for a time limit of its own."
      )
    thread = tool.in_thread(functools.partial(self._called, function, task), "program")
    future = asyncio.wrap_future(thread)
    self._threads.append((thread, future))
    return future

  def _called(self, function: Callable[[Task], Any], task: Task) -> Any:
    try:
      return function(task)
    except BaseException as error:  # as in `_guarded`; nothing else ends this thread
      raise Died(self._raised(error)) from error

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
      output, errors = await self._talk(process, task.json().encode() + b"\n")
    finally:
      self._kill(process)
    if process.returncode:
      last = errors.decode(errors="replace").strip().splitlines()[-1:] or [""]
      raise Died(f"the program {self.name} ended with status {process.returncode}: {last[0][:300]}")
    lines = output.decode(errors="replace").strip().splitlines()
    if not lines:
      return None
    try:
      value = json.loads(lines[-1])
    except (ValueError, RecursionError):
      return lines[-1]
    return value if value is None or isinstance(value, dict | str) else lines[-1]

  async def _talk(self, process: asyncio.subprocess.Process, task: bytes) -> list[bytes]:
    """Sends the task; returns what the process printed, and its errors, once it has ended. If it is too much: Died.

    What the process has left running is ended, too.
    """
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
    assert stdin and stdout and stderr

    async def send() -> None:
      with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it does not read its task
        stdin.write(task)
        await stdin.drain()
        stdin.close()

    async def printed(stream: asyncio.StreamReader) -> bytes:
      outputs = bytearray()
      while part := await stream.read(1 << 16):
        if len(outputs) <= MOST_BYTES:
          outputs += part
        elif process.returncode is None:
          self._kill(process)
      return bytes(outputs)

    talk = asyncio.gather(send(), printed(stdout), printed(stderr))
    try:
      while process.returncode is None and not talk.done():
        await asyncio.wait({talk}, timeout=LOOK_S)
      if not talk.done():  # what it has started and left running holds its output open
        self._kill(process)
      _, *outputs = await talk
    finally:
      talk.cancel()
    await process.wait()
    if max(map(len, outputs)) > MOST_BYTES:
      raise Died(f"the program {self.name} printed more than {MOST_BYTES} bytes, the most that it may print.")
    return outputs

  @staticmethod
  def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):  # the process and its children have ended
      os.killpg(process.pid, signal.SIGKILL)

  def _raised(self, error: BaseException) -> str:
    words = " ".join(str(error).split())[:300]
    return f"the program {self.name} raised {type(error).__name__}: {words}"
