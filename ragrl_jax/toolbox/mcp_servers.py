"""The tools of MCP servers, by the official SDK (the extra `mcp`). One session is kept open for each server."""

import asyncio
import atexit
import functools
import json
import os
import shlex
from typing import Any

from ragrl_jax.toolbox.tool import Refused, Tool, loop

CLOSED = -32000  # the SDK's code for a connection that has ended
END_S = 10.0  # seconds that a server has to end with this process; the SDK kills it before


@functools.cache
def tools_of(where: str, timeout_s: float) -> tuple[Tool, ...]:
  """The tools of a server, listed once in a process. It is started, or asked, at the first call.

  Args:
    where: a command, whose process is the server on its standard input and output, with this process's environment; or
      the http://… or https://… address of a server (streamable HTTP).
    timeout_s: seconds within which it must list its tools.

  Raises:
    ValueError: the SDK is not installed; no such command; the server gives no list in time.
  """
  server = Server(where)
  asked = asyncio.run_coroutine_threadsafe(asyncio.wait_for(server.tools(), timeout_s), loop())
  try:
    listed = asked.result()
  except TimeoutError:
    why = f"it gave no list of its tools within {timeout_s:g} s (config.switches.timeout_s)"
  except Exception as error:  # noqa: BLE001  (whatever keeps a server from starting is told to who named it)
    why = _causes(error)
  else:
    atexit.register(server.close)
    return listed
  server.close()
  raise ValueError(f"config.switches.mcp: the MCP server {where!r} cannot be used: {why}.")


class Server:
  """A server and the session with it. All methods run on `loop()`.

  Args:
    where: see `tools_of`.

  Raises:
    ValueError: the SDK is not installed, or there is no command.
  """

  def __init__(self, where: str):
    try:
      import mcp
    except ImportError:
      raise ValueError(
        "config.switches.mcp needs the official MCP SDK, which is not installed: pip install 'ragrl_jax[mcp]'."
      ) from None
    self._where: Any = where
    if not where.startswith(("http://", "https://")):
      command, *arguments = shlex.split(where) or [""]
      if not command:
        raise ValueError("config.switches.mcp has an empty entry: name commands or addresses, with | between them.")
      self._where = mcp.StdioServerParameters(command=command, args=arguments, env=dict(os.environ))
    self._opened: asyncio.Future[Any] | None = None  # the client, as soon as it is connected
    self._holding: asyncio.Task[None] | None = None

  def close(self) -> None:
    """Ends the session and the server's process, from any other thread."""
    asyncio.run_coroutine_threadsafe(self._close(), loop()).result(END_S)

  async def _close(self) -> None:
    if self._holding is not None:
      self._holding.cancel()
      await asyncio.gather(self._holding, return_exceptions=True)

  async def tools(self) -> tuple[Tool, ...]:
    """All tools that the server lists."""
    client, listed, cursor = await self._client(), [], None
    while True:
      page = await client.list_tools(cursor=cursor)
      listed += page.tools
      if not (cursor := page.next_cursor):
        break
    return tuple(
      Tool(one.name, one.description or "", one.input_schema, functools.partial(self._call, one.name)) for one in listed
    )

  async def _call(self, name: str, arguments: dict[str, Any]) -> str:
    import mcp

    client = await self._client()
    try:
      result = await client.call_tool(name, arguments)
    except mcp.MCPError as error:
      if error.code != CLOSED:  # the server's answer, and others wait for theirs
        raise
      self._forget(client)
      raise ConnectionError("the MCP server closed the connection") from error
    text = "\n".join(block.text if block.type == "text" else f"[{block.type}]" for block in result.content)
    if result.is_error:
      raise Refused(text or "the server says that the call is wrong")
    if not result.content and result.structured_content is not None:
      return json.dumps(result.structured_content, ensure_ascii=False)
    return text

  async def _client(self) -> Any:
    """The connected client. After a connection has ended, a new one: a process is started anew."""
    if self._opened is None or self._holding is None or self._holding.done():
      self._opened = asyncio.get_running_loop().create_future()
      self._holding = asyncio.create_task(self._hold(self._opened))
    # A call whose time is over does not take the connection with it: the next one finds it made.
    return await asyncio.shield(self._opened)

  def _forget(self, client: Any) -> None:
    opened = self._opened
    if opened is not None and opened.done() and not opened.cancelled() and opened.exception() is None:
      if opened.result() is client and self._holding is not None:
        self._holding.cancel()
        self._opened = None

  async def _hold(self, opened: asyncio.Future[Any]) -> None:
    """Keeps a connection open, in a task of its own: a connection must be closed by the task that opened it."""
    import mcp

    try:
      async with mcp.Client(self._where) as client:
        opened.set_result(client)
        await asyncio.Event().wait()  # until the task is cancelled, or the connection breaks
    except Exception as error:  # noqa: BLE001  (given to who waits for the connection; a later call makes another)
      if not opened.done():
        opened.set_exception(ConnectionError(_causes(error)))
    finally:
      if not opened.done():
        opened.cancel()


def _causes(error: BaseException) -> str:
  """The error in words; of a group of errors, each."""
  if isinstance(error, BaseExceptionGroup):
    return "; ".join(dict.fromkeys(map(_causes, error.exceptions)))
  return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}".rstrip(": ")
