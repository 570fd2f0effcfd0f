"""Tools, the functions that users name, the event loop on which all tools run, and the calls of tools.

A `Toolbox` checks the arguments, limits the time, repeats failed calls, and tells refusals from failures.
"""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import json
import pathlib
import re
import shlex
import shutil
import threading
import types
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ragrl_jax.agents.toolbox import schemas
from ragrl_jax.chat.client import daemon

LONGEST = 1 << 20  # most characters of a result; `config.switches.max_result_tokens` cuts it further
# The futures of a call's threads. One that is not done after the call's time limit still runs.
THREADS: contextvars.ContextVar[list[asyncio.Future[Any]]] = contextvars.ContextVar("threads")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Refused(Exception):
  """The tool refuses a call because of the model's mistake. The model reads the message; the call is not repeated."""


@dataclasses.dataclass(frozen=True)
class Tool:
  """A tool: what the model sees of it, and the function that a call runs.

  Attributes:
    name, description: texts for the model.
    parameters: the JSON schema of the arguments, whose type is "object".
    run: arguments → the result as text. It is awaited on `loop()`. It raises Refused if the model made a mistake; any
      other error is a failure of the tool.

  Raises:
    ValueError: the name has characters that chat templates cannot show, or is too long.
  """

  name: str
  description: str
  parameters: Mapping[str, Any]
  run: Callable[[dict[str, Any]], Awaitable[str]]

  def __post_init__(self):
    if not _NAME.fullmatch(self.name):
      raise ValueError(f"a tool has the name {self.name!r:.80}: it must be of letters, digits and _ . - (64 at most).")

  @property
  def shown(self) -> dict[str, Any]:
    """The tool in the format of chat templates: {"type": "function", "function": …}."""
    function = dict(name=self.name, description=self.description, parameters=dict(self.parameters))
    return dict(type="function", function=function)


def of_function(function: Callable[..., Any]) -> Tool:
  """Makes a tool from a typed Python function; see `schemas.of_function`.

  A plain function runs in a thread. An `async def` function runs on `loop()`, where it must not block. A returned text
  is the result; any other value is written as JSON. A ValueError is a refusal: the model reads its message. An error of
  a subclass of ValueError is a failure of the tool, because it rarely concerns the arguments (a JSONDecodeError, for
  example, usually concerns a server's response).

  Raises:
    ValueError: the signature has no schema.
  """
  description, parameters = schemas.of_function(function)

  async def run(arguments: dict[str, Any]) -> str:
    try:
      if inspect.iscoroutinefunction(function):
        result = await function(**arguments)
      else:
        thread = asyncio.wrap_future(in_thread(functools.partial(function, **arguments), "tool"))
        THREADS.get([]).append(thread)
        result = await asyncio.shield(thread)
    except ValueError as error:
      if type(error) is not ValueError:
        raise
      raise Refused(" ".join(str(error)[:LONGEST].split()) or "the arguments are not accepted") from error
    except SystemExit as error:  # a tool must not end the event loop or the run
      raise RuntimeError(f"SystemExit: {error}") from error
    return result[:LONGEST] if isinstance(result, str) else _json(result)

  return Tool(getattr(function, "__name__", str(function)), description, parameters, run)


def _json(value: Any) -> str:
  """The value as JSON, not much further than LONGEST characters."""
  parts, size = [], 0
  for part in json.JSONEncoder(ensure_ascii=False).iterencode(value):
    parts.append(part)
    size += len(part)
    if size > LONGEST:
      break
  return "".join(parts)


def in_thread(function: Callable[[], Any], name: str) -> concurrent.futures.Future[Any]:
  """Runs a function of the user's in a thread of this name. It may hang, so the thread is a daemon."""

  def work() -> Any:
    try:
      return function()
    except (
      SystemExit,
      KeyboardInterrupt,
      StopIteration,
      asyncio.CancelledError,
      concurrent.futures.CancelledError,
    ) as error:
      # A future cannot hold StopIteration. A CancelledError is that of the tool's own tasks: nobody cancels a thread.
      raise RuntimeError(f"{type(error).__name__}: {error}") from error

  return daemon(work, name=name)


_LOCK = threading.Lock()
_LOOPS: list[asyncio.AbstractEventLoop] = []


def loop() -> asyncio.AbstractEventLoop:
  """The event loop of all tools. It runs in a daemon thread until the process ends, so connections can stay open."""
  with _LOCK:
    if not _LOOPS:
      _LOOPS.append(asyncio.new_event_loop())
      threading.Thread(target=_LOOPS[0].run_forever, name="toolbox", daemon=True).start()
    return _LOOPS[0]


async def blocker(patience_s: float) -> str:
  """The name of the task that blocks `loop()`, if the loop gives no sign within this time; else ""."""
  sign = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop()))
  if (await asyncio.wait({sign}, timeout=patience_s))[0]:
    return ""
  running = asyncio.current_task(loop())
  return "a task" if running is None else running.get_name()


@functools.cache
def _module(path: str) -> types.ModuleType:
  """Imports a file as a module. The file is executed once, even if several recipes name it."""
  spec = importlib.util.spec_from_file_location(f"ragrl_program_{pathlib.Path(path).stem}", path)
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def function_of(name: str, setting: str) -> Callable[..., Any]:
  """The user's function "FILE.py:FUNCTION" or "MODULE:FUNCTION", as a setting names it.

  Raises:
    ValueError: the file, module or function does not exist. The message names the setting.
  """
  where, _, function = name.rpartition(":")
  if not where or not function.isidentifier():
    raise ValueError(f"{setting}={name!r}: it must be FILE.py:FUNCTION or MODULE:FUNCTION.")
  if where.endswith(".py"):
    if not pathlib.Path(where).is_file():
      raise ValueError(f"{setting}={name!r}: there is no file {where}.")
    module = _module(str(pathlib.Path(where).absolute()))
  else:
    try:
      module = importlib.import_module(where)
    except ModuleNotFoundError as error:
      raise ValueError(f"{setting}={name!r}: {error}.") from None
  result = getattr(module, function, None)
  if not callable(result):
    raise ValueError(f"{setting}={name!r}: {where} has no function {function}.")
  return result


def words_of(command: str, setting: str) -> list[str]:
  """The words of a command, as a shell divides them; [] for an empty one.

  Raises:
    ValueError: a quotation is not closed, or there is no such executable file. The message names the setting.
  """
  try:
    words = shlex.split(command)
  except ValueError as error:
    raise ValueError(f"{setting}: {command!r} is no command: {error}.") from None
  if not any(words[:1]):
    return []
  if shutil.which(words[0]) is None:
    raise ValueError(f"{setting}: there is no command {words[0]!r}: name an executable file.")
  return words


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
    retries: further tries after a failure, BACKOFF_S later at first. Set 0 if a tool has side effects.
    at_once: most calls that run at the same time. Further calls wait; the wait does not count towards `timeout_s`. A
      function that still runs in its thread after its time limit counts until it returns.

  Raises:
    ValueError: two tools have the same name.
  """

  def __init__(self, tools: Sequence[Tool], *, timeout_s: float, retries: int, at_once: int):
    self.tools: dict[str, Tool] = {}
    for tool in tools:
      if tool.name in self.tools:
        raise ValueError(f"two tools have the name {tool.name!r}: rename one, or leave it out (config.switches).")
      self.tools[tool.name] = tool
    self._timeout_s, self._retries = timeout_s, retries
    self._permits, self._at_once, self._stuck = asyncio.Semaphore(at_once), at_once, 0

  def wrong(self, name: str, arguments: str) -> str:
    """A message for the model if there is no such tool or the arguments (JSON) do not fit its schema; else ""."""
    if name not in self.tools:
      return f"there is no tool {name!r:.80}: there is {', '.join(self.tools)}"
    try:
      problem = schemas.fault(json.loads(arguments), self.tools[name].parameters)
    except RecursionError:
      problem = "the arguments are nested too deep"
    return f"{name}: {problem}" if problem else ""

  async def call(self, name: str, arguments: str) -> Result:
    """Makes a call. It can be awaited on any event loop; the tool runs on `tool.loop()`."""
    if wrong := self.wrong(name, arguments):
      return Result(wrong, REFUSED)
    tool = self.tools[name]
    tried = self._try_call(tool, schemas.fitted(json.loads(arguments), tool.parameters))
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

  async def _try_call(self, tool: Tool, arguments: dict) -> Result:
    why, task = "", asyncio.current_task()
    assert task is not None
    task.set_name(tool.name)  # for the message of a tool that blocks the loop
    for number in range(self._retries + 1):
      if number:
        await asyncio.sleep(BACKOFF_S * 2 ** (number - 1))
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
      running = [thread for thread in threads if not thread.done()]
      if not running:
        self._permits.release()
      for thread in running:
        self._stuck += 1
        thread.add_done_callback(self._ended)

  def _ended(self, thread: asyncio.Future) -> None:
    if not thread.cancelled():
      thread.exception()  # read, so that asyncio does not log it: nobody waits for it
    self._stuck -= 1
    self._permits.release()
