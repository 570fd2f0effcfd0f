"""The tools of real MCP servers, on standard input and output and over HTTP: listed, called, and started again."""

import functools
import os
import pathlib
import shlex
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest
import resident
from patience import until
from tool_functions import called

from ragrl_jax.agents.toolbox import mcp_servers
from ragrl_jax.agents.toolbox.tool import FAILED, OK, REFUSED, Result, Toolbox

KIT = pathlib.Path(__file__).parents[1] / "kits" / "mcp_town.py"
STDIO = shlex.join([sys.executable, str(KIT)])


def box(where, **how):
  how = dict(timeout_s=120.0, retries=0, at_once=64) | how
  return Toolbox(mcp_servers.tools_of(where, 60.0), **how)


@pytest.fixture(scope="module")
def port():
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    return free.getsockname()[1]


@pytest.fixture
def over_http(port):
  """(address, start): a server on this machine, and what starts it anew; its processes end with the test."""
  running = []

  def listens():
    with socket.socket() as client:
      return client.connect_ex(("127.0.0.1", port)) == 0

  def start():
    running.append(subprocess.Popen([sys.executable, str(KIT), str(port)], stderr=subprocess.DEVNULL))
    until(listens)

  start()
  yield f"http://127.0.0.1:{port}/mcp", start
  for process in running:
    process.kill()
    process.wait()


def test_without_the_sdk_the_message_says_what_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, "mcp", None)  # an import of it fails
  with pytest.raises(ValueError, match=r"needs the official MCP SDK, .*: pip install 'ragrl_jax\[mcp\]'"):
    mcp_servers.tools_of("python other.py", 5.0)


@pytest.mark.agents
def test_a_servers_tools_are_listed_and_called(monkeypatch, over_http):
  monkeypatch.setenv("TOWN_SECRET", "x1")  # a server by command has this process's environment
  for where in (f"{STDIO} ", over_http[0]):
    toolbox = box(where)
    assert list(toolbox.tools) == ["born", "slow", "die", "process", "secret", "picture", "long"]
    shown = toolbox.tools["born"].shown["function"]
    assert shown["description"] == "Where somebody was born." and shown["parameters"]["required"] == ["name"]
    found = called(
      toolbox, ("born", dict(name="Danbel")), ("born", dict(name="Danbel", year=True)), ("born", dict(year=True)),
      ("born", dict(name=3)), ("born", dict(name="Danbel", year="yes")), ("walk", {}), ("slow", dict(seconds=0)),
    )  # fmt: skip
    assert [one.text for one in found[:2]] == ["Danbel was born in Tolper.", "Danbel was born in 1900."]
    assert [one.kind for one in found] == [OK, OK, REFUSED, REFUSED, REFUSED, REFUSED, OK]
    assert found[2].text == "born: the arguments must have 'name'"
  found = called(box(f"{STDIO} "), ("secret", {}), ("picture", {}))
  assert found == [Result("x1"), Result("The town:\n[image]\nA letter.")]


@pytest.mark.agents
def test_what_the_server_refuses_is_told_to_the_model():
  """A schema that this library cannot check: the server checks it, and its words are the model's to read."""
  toolbox = box(STDIO)
  loose = {name: mcp_servers.Tool(name, "", {}, one.run) for name, one in toolbox.tools.items()}
  toolbox.tools.update(loose)
  (found,) = called(toolbox, ("born", dict(name=["x"])))
  assert found.kind == REFUSED and "valid string" in found.text


@pytest.mark.agents
def test_calls_share_one_session_and_run_at_the_same_time():
  toolbox, begin = box(STDIO), time.monotonic()
  found = called(toolbox, *[("slow", dict(seconds=5))] * 8)
  assert {one.text for one in found} == {"slept 5"} and time.monotonic() - begin < 35  # one after the other: 40
  numbers = called(toolbox, *[("process", {})] * 4)
  assert len({one.text for one in numbers}) == 1 and int(numbers[0].text) != os.getpid()
  # A slow call has its own deadline; the session goes on.
  quick = []
  while numbers[0] not in quick:  # a busy machine may be late, but not always
    slow, *others = called(box(STDIO, timeout_s=0.5), ("slow", dict(seconds=120)), ("process", {}))
    assert slow == Result("slow failed: no answer within 0.5 s (config.switches.timeout_s)", FAILED)
    quick += others
    assert len(quick) < 20
  assert called(toolbox, ("process", {})) == [numbers[0]]


@pytest.mark.agents
def test_a_killed_server_is_started_again():
  toolbox = box(STDIO, retries=2)
  (before,) = called(toolbox, ("process", {}))
  os.kill(int(before.text), signal.SIGKILL)
  (after,) = called(toolbox, ("process", {}))  # the first try may meet the closed connection
  assert after.kind == OK and after.text != before.text
  # One that dies in a call fails it; calls beside it are tried again, and later ones find a new server.
  (died,) = called(box(STDIO), ("die", {}))
  assert died == Result("die failed: ConnectionError: the MCP server closed the connection", FAILED)
  slow, _ = called(toolbox, ("slow", dict(seconds=0.5)), ("process", {}))
  assert slow == Result("slept 0.5")


@pytest.mark.agents
def test_a_killed_http_server_is_found_again(over_http):
  where, start = over_http
  toolbox = box(where, retries=1)
  (before,) = called(toolbox, ("process", {}))
  (died,) = called(toolbox, ("die", {}))
  (gone,) = called(toolbox, ("process", {}))
  assert died.kind == gone.kind == FAILED and "connection" in gone.text
  start()
  (after,) = called(toolbox, ("process", {}))
  assert after.kind == OK and after.text != before.text


@pytest.mark.agents
def test_a_server_that_was_started_anew_gets_a_new_session(monkeypatch, over_http):
  """Servers before the protocol of 2026 refuse requests of sessions that they do not know."""
  import mcp

  where, start = over_http
  monkeypatch.setattr("mcp.Client", functools.partial(mcp.Client, mode="legacy"))
  toolbox = box(f"{where}?", retries=1)
  (before,) = called(toolbox, ("process", {}))
  os.kill(int(before.text), signal.SIGKILL)
  os.waitpid(int(before.text), 0)
  start()
  (after,) = called(toolbox, ("process", {}))
  assert after.kind == OK and after.text != before.text


@pytest.mark.agents
@pytest.mark.parametrize("where, timeout_s, says", [
  ("/no/such/file", 60.0, "there is no command '/no/such/file'"), ("true", 60.0, "Connection closed"),
  ("sleep 600", 1.0, r"it gave no list of its tools within 1 s \(config.switches.timeout_s\)"),
  ("http://127.0.0.1:9/mcp", 60.0, "ConnectError"), ("''", 60.0, "has an empty entry"),
])  # fmt: skip
def test_servers_that_cannot_be_used_are_named_at_the_start(where, timeout_s, says):
  with pytest.raises(ValueError, match=f"config.switches.mcp.*{says}"):
    mcp_servers.tools_of(where, timeout_s)


@pytest.mark.agents
def test_a_message_of_any_length_is_not_kept():
  toolbox = box(f"{STDIO}  ")
  before = resident.peak()
  (short,), (long,) = called(toolbox, ("long", dict(letters=1 << 18))), called(toolbox, ("long", dict(letters=10**8)))
  assert len(short.text) == 1 << 18
  assert long == Result("long failed: ConnectionError: the MCP server closed the connection", FAILED)
  assert resident.peak() - before < 50 << 20
  assert called(toolbox, ("born", dict(name="Danbel")))[0].kind == OK  # a new server


@pytest.mark.agents
def test_servers_end_with_the_process():
  program = (
    "import sys, asyncio\nfrom ragrl_jax.agents.toolbox import mcp_servers, tool\n"
    "box = tool.Toolbox(mcp_servers.tools_of(sys.argv[1], 60.0), timeout_s=9, retries=0, at_once=4)\n"
    "print(asyncio.run(box.call('process', '{}')).text)\n"
  )
  done = subprocess.run([sys.executable, "-c", program, STDIO], capture_output=True, text=True, timeout=120)
  assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
  until(lambda: not psutil.pid_exists(int(done.stdout)))
  with pytest.raises(ProcessLookupError):
    os.kill(int(done.stdout), 0)
