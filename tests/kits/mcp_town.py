"""An MCP server for tests, by the official SDK: `python mcp_town.py [PORT]`, else on standard input and output."""

import asyncio
import os
import sys

from mcp.server.mcpserver import Image, MCPServer
from mcp_types import EmbeddedResource, TextResourceContents

server = MCPServer("town")


@server.tool()
def born(name: str, year: bool = False) -> str:
  """Where somebody was born."""
  return f"{name} was born in {'1900' if year else 'Tolper'}."


@server.tool()
async def slow(seconds: float) -> str:
  """Takes its time."""
  await asyncio.sleep(seconds)
  return f"slept {seconds:g}"


@server.tool()
def die() -> str:
  """Ends the server's process."""
  os._exit(3)


@server.tool()
def process() -> int:
  """The number of the server's process."""
  return os.getpid()


@server.tool()
def secret() -> str:
  """What the environment holds."""
  return os.environ.get("TOWN_SECRET", "nothing")


@server.tool()
def picture() -> list:
  """Gives more than text."""
  letter = TextResourceContents(uri="town://letter", text="A letter.")
  return ["The town:", Image(data=b"none", format="png"), EmbeddedResource(resource=letter)]


@server.tool()
def long(letters: int) -> str:
  """Gives a long text."""
  return "x" * letters


if __name__ == "__main__":
  if len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]))
  else:
    server.run("stdio")
