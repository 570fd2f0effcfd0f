"""One tool, and the event loop on which all tools run."""

import asyncio
import contextlib
import dataclasses
import inspect
import json
import re
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ragrl_jax.toolbox import schemas

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Refused(Exception):
  """A call that the tool does not take: the model's mistake, which it is told. It is not tried again."""


@dataclasses.dataclass(frozen=True)
class Tool:
  """A tool as a model sees it, and what a call does.

  Attributes:
    name, description: for the model.
    parameters: JSON schema of the arguments, an object.
    run: (arguments) → the result as text. It is awaited on `loop()`. It raises Refused for a mistake of the model's;
      any other error is the tool's own failure.

  Raises:
    ValueError: a name that templates cannot show.
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
    """The tool as chat templates take it."""
    function = dict(name=self.name, description=self.description, parameters=dict(self.parameters))
    return dict(type="function", function=function)


def of_function(function: Callable[..., Any]) -> Tool:
  """A typed Python function as a tool; see `schemas.of_function`.

  A plain function runs in a thread, an `async def` on `loop()`, where it must not block. A text that it returns is the
  result; any other value is written as JSON. A ValueError is for the model: it is told the message. Errors of a class
  below ValueError are not: they are seldom about the arguments (JSONDecodeError of a server's answer).

  Raises:
    ValueError: its signature has no schema.
  """
  description, parameters = schemas.of_function(function)

  async def run(arguments: dict[str, Any]) -> str:
    try:
      if inspect.iscoroutinefunction(function):
        result = await function(**arguments)
      else:
        result = await _in_thread(function, arguments)
    except ValueError as error:
      if type(error) is not ValueError:
        raise
      raise Refused(" ".join(str(error).split()) or "the arguments are not accepted") from error
    except SystemExit as error:  # it must end neither the loop nor the run
      raise RuntimeError(f"SystemExit: {error}") from error
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)

  return Tool(getattr(function, "__name__", str(function)), description, parameters, run)


def _in_thread(function: Callable[..., Any], arguments: Mapping[str, Any]) -> asyncio.Future[Any]:
  loop = asyncio.get_running_loop()
  given = loop.create_future()

  def work() -> None:
    result, error = None, None
    try:
      result = function(**arguments)
    except BaseException as raised:  # noqa: BLE001  (raised in the coroutine that called)
      error = raised
    with contextlib.suppress(RuntimeError):  # the loop has ended with the process
      loop.call_soon_threadsafe(_settle, given, result, error)

  # Not a pool: Python waits for a pool's threads at exit, so a tool that hangs would keep a finished run alive.
  threading.Thread(target=work, name="tool", daemon=True).start()
  return given


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
  if future.done():  # its time was over
    return
  if error is None:
    future.set_result(result)
  elif isinstance(error, SystemExit | KeyboardInterrupt | StopIteration):  # a future cannot hold StopIteration
    future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))
  else:
    future.set_exception(error)


_LOCK = threading.Lock()
_LOOPS: list[asyncio.AbstractEventLoop] = []


def loop() -> asyncio.AbstractEventLoop:
  """The event loop of all tools, in a thread that ends with the process. Connections last as long as it."""
  with _LOCK:
    if not _LOOPS:
      _LOOPS.append(asyncio.new_event_loop())
      threading.Thread(target=_LOOPS[0].run_forever, name="toolbox", daemon=True).start()
    return _LOOPS[0]
