"""One tool, the functions that users name, and the event loop on which all tools run."""

import asyncio
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
import threading
import types
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ragrl_jax.agents.toolbox import schemas

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
        _, thread = in_thread(functools.partial(function, **arguments), "tool")
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


def in_thread(function: Callable[[], Any], name: str) -> tuple[threading.Thread, asyncio.Future[Any]]:
  """Runs a function of the user's in a thread of this name; the future has its result on the running event loop."""
  loop = asyncio.get_running_loop()
  given = loop.create_future()

  def work() -> None:
    result, error = None, None
    try:
      result = function()
    except BaseException as raised:  # noqa: BLE001  (`_settle` raises it in the calling coroutine)
      error = raised
    with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits for the result
      loop.call_soon_threadsafe(_settle, given, result, error)

  # A daemon thread instead of a pool: Python waits for a pool's threads at exit, and the function may hang.
  thread = threading.Thread(target=work, name=name, daemon=True)
  thread.start()
  return thread, given


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
  if future.done():  # the deadline has passed
    return
  if error is None:
    future.set_result(result)
  elif isinstance(error, SystemExit | KeyboardInterrupt | StopIteration | asyncio.CancelledError):
    # A future cannot hold StopIteration. A CancelledError is that of the tool's own tasks: nobody cancels a thread.
    future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))
  else:
    future.set_exception(error)


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
