"""The tools of MCP servers, with the official SDK (the extra `mcp`). One session per server stays open."""

import asyncio
import atexit
import functools
import json
import os
import sys
from typing import Any

from ragrl_jax.agents.toolbox import relay
from ragrl_jax.agents.toolbox.tool import Refused, Tool, loop, words_of
from ragrl_jax.store import addresses

CLOSED = -32000  # the SDK's error code for a closed connection
END_S = 10.0  # seconds to wait for a server's end; the SDK kills its process earlier


@functools.cache
def tools_of(where: str, timeout_s: float) -> tuple[Tool, ...]:
  """The tools of a server. The server is started or contacted once per process; later calls return the same tools.

  Args:
    where: a command, which is started with this process's environment and is the server on its standard input and
      output; or the http://… or https://… address of a server (streamable HTTP).
    timeout_s: most seconds until the server has listed its tools.

  Raises:
    ValueError: the SDK is not installed, the command does not exist, or the server does not list its tools in time.
  """
  server = Server(where)
  future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(server.tools(), timeout_s), loop())
  try:
    tools = future.result()
  except TimeoutError:
    why = f"it gave no list of its tools within {timeout_s:g} s (config.switches.timeout_s)"
  except Exception as error:  # noqa: BLE001  (any reason is reported to the user who named the server)
    why = _causes(error)
  else:
    atexit.register(server.close)
    return tools
  server.close()
  where, why = map(addresses.without_credentials, (where, why))
  raise ValueError(f"config.switches.mcp: the MCP server {where!r} cannot be used: {why}.")


class Server:
  """A server and the session with it. All coroutines must run on `tool.loop()`.

  Args:
    where: see `tools_of`.

  Raises:
    ValueError: the SDK is not installed, or there is no such command.
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
      command, *arguments = words_of(where, "config.switches.mcp") or [""]
      if not command:
        raise ValueError("config.switches.mcp has an empty entry: name commands or addresses, separated by |.")
      relayed = ["-I", relay.__file__, command, *arguments]
      self._where = mcp.StdioServerParameters(command=sys.executable, args=relayed, env=dict(os.environ))
    self._opened: asyncio.Future[Any] | None = None  # its result is the connected client
    self._holding: asyncio.Task[None] | None = None

  def close(self) -> None:
    """Ends the session and the server's process. Must be called from another thread than that of `tool.loop()`."""
    asyncio.run_coroutine_threadsafe(self._close(), loop()).result(END_S)

  async def _close(self) -> None:
    if self._holding is not None:
      self._holding.cancel()
      await asyncio.gather(self._holding, return_exceptions=True)

  async def tools(self) -> tuple[Tool, ...]:
    """All tools that the server lists, over all pages of the list.

    Raises:
      ConnectionError: the server cannot be reached or started.
    """
    client, tools, cursor = await self._client(), [], None
    while True:
      page = await client.list_tools(cursor=cursor)
      tools += page.tools
      if not (cursor := page.next_cursor):
        break
    return tuple(
      Tool(one.name, one.description or "", one.input_schema, functools.partial(self._call, one.name)) for one in tools
    )

  async def _call(self, name: str, arguments: dict[str, Any]) -> str:
    import mcp

    client = await self._client()
    try:
      result = await client.call_tool(name, arguments)
    except mcp.MCPError as error:
      if error.code != CLOSED and await _knows(client):  # only this call failed; the session stays open for others
        raise
      self._forget(client)
      how = "closed the connection" if error.code == CLOSED else "has forgotten the session"
      raise ConnectionError(f"the MCP server {how}") from error
    text = "\n".join(map(_text, result.content))
    if result.is_error:
      raise Refused(text or "the server refused the call and gave no reason")
    if not result.content and result.structured_content is not None:
      return json.dumps(result.structured_content, ensure_ascii=False)
    return text

  async def _client(self) -> Any:
    """The connected client. If the connection has ended, this connects again, or starts the command again."""
    if self._opened is None or self._holding is None or self._holding.done():
      self._opened = asyncio.get_running_loop().create_future()
      self._holding = asyncio.create_task(self._hold(self._opened))
    # Shielded, so that a call whose deadline passes does not cancel the connecting: the next call can use it.
    return await asyncio.shield(self._opened)

  def _forget(self, client: Any) -> None:
    opened = self._opened
    if opened is not None and opened.done() and not opened.cancelled() and opened.exception() is None:
      if opened.result() is client and self._holding is not None:
        self._holding.cancel()
        self._opened = None

  async def _hold(self, opened: asyncio.Future[Any]) -> None:
    """Keeps a connection open. It is a separate task, because the task that opens a connection must also close it."""
    import mcp

    try:
      async with mcp.Client(self._where) as client:
        opened.set_result(client)
        await asyncio.Event().wait()  # until the task is cancelled, or the connection breaks
    except Exception as error:  # noqa: BLE001  (passed to the call that waits; a later call connects again)
      if not opened.done():
        opened.set_exception(ConnectionError(_causes(error)))
    finally:
      if not opened.done():
        opened.cancel()


async def _knows(client: Any) -> bool:
  """Whether the server knows the client's session. One that was started anew refuses all its requests."""
  import mcp

  try:
    await client.list_tools(cache_mode="bypass")
  except mcp.MCPError:
    return False
  return True


def _text(block: Any) -> str:
  """The text of a part of a result, which may be that of an embedded document; the part's type if it has none."""
  text = getattr(block.resource if block.type == "resource" else block, "text", None)
  return f"[{block.type}]" if text is None else text


def _causes(error: BaseException) -> str:
  """The message of an error; for a group of errors, all their messages."""
  if isinstance(error, BaseExceptionGroup):
    return "; ".join(dict.fromkeys(map(_causes, error.exceptions)))
  return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}".rstrip(": ")
