import asyncio
import json
import subprocess
import sys
import threading
import time
import types

import pytest
import tool_functions
from patience import LIMIT_S, reached, until
from tool_functions import called

from ragrl_jax.agents.toolbox import tool
from ragrl_jax.agents.toolbox.tool import FAILED, OK, REFUSED, Result, Toolbox


@pytest.fixture(autouse=True)
def a_new_list_of_calls_and_no_pause_between_tries(monkeypatch):
  monkeypatch.setattr(tool, "BACKOFF_S", 0.0)
  tool_functions.CALLS.clear()


def box(*names, timeout_s=20.0, retries=0, at_once=64):
  tools = [tool.of_function(getattr(tool_functions, name)) for name in names]
  return Toolbox(tools, timeout_s=timeout_s, retries=retries, at_once=at_once)


def test_results_are_texts_or_json():
  typed = dict(text="é", number=1, sure=False, mode=3, names=[], scores={}, many=[])
  calls = ("add", dict(a=2.0)), ("capital", dict(country="Italy")), ("typed", typed)
  sum_, said, whole = called(box("add", "capital", "typed"), *calls)
  assert sum_ == Result("3", OK) and said.text.startswith("Rome is the capital.")
  assert json.loads(whole.text) == typed | dict(size=None, what=None, nothing=None, either="x") and "é" in whole.text


def test_the_models_mistakes_are_told_and_never_tried_again():
  toolbox = box("add", "capital", retries=3)
  found = called(toolbox, ("walk", {}), ("add", dict(a="2")), ("add", {}), ("capital", dict(country="Spain")))
  assert found == [
    Result("there is no tool 'walk': there is add, capital", REFUSED),
    Result("add: 'a' must be of type integer, not \"2\"", REFUSED), Result("add: the arguments must have 'a'", REFUSED),
    Result("capital: I do not know Spain", REFUSED),
  ]  # fmt: skip
  assert tool_functions.CALLS == ["capital"]  # the others did not reach their tools
  listing = tool.Tool("listing", "", dict(type="object", properties=dict(x=dict(type="array"))), None)
  deep = '{"x": ' + "[" * 700 + "]" * 700 + "}"
  wrong = Toolbox([listing], timeout_s=1.0, retries=0, at_once=1).wrong("listing", deep)
  assert wrong == "listing: the arguments are nested too deep"


def test_failures_are_tried_again(monkeypatch):
  monkeypatch.setattr(tool, "BACKOFF_S", 0.1)
  tool_functions.FAILS[0] = 2
  begin = time.monotonic()
  (found,) = called(box("flaky", retries=2), ("flaky", {}))
  assert found == Result("up", OK) and tool_functions.CALLS == ["flaky"] * 3
  assert time.monotonic() - begin > 0.3  # 0.1 s, then 0.2 s
  tool_functions.FAILS[0] = 9
  (found,) = called(box("flaky", retries=1), ("flaky", {}))
  assert found == Result("flaky failed in 2 tries: ConnectionError: the line is down", FAILED)
  (found,) = called(box("flaky"), ("flaky", {}))
  assert found == Result("flaky failed: ConnectionError: the line is down", FAILED)


def test_odd_tools_fail_alone():
  calls = ("exits", {}), ("odd", {}), ("garbled", {}), ("add", dict(a=1))
  found = called(box("exits", "odd", "garbled", "add"), *calls)
  assert [one.kind for one in found] == [FAILED, FAILED, FAILED, OK]
  assert found[0].text == "exits failed: RuntimeError: SystemExit: usage"
  assert "Object of type object is not JSON serializable" in found[1].text and "JSONDecodeError" in found[2].text


@pytest.mark.parametrize("name", ["hangs_up", "hangs_up_in_a_thread"])
def test_a_tool_whose_own_task_is_cancelled_fails(name):
  (found,) = called(box(name, retries=1), (name, {}))
  assert found.kind == FAILED and found.text.startswith(f"{name} failed in 2 tries: ")
  assert "CancelledError" in found.text and tool_functions.CALLS == [name] * 2


def test_a_call_that_is_cancelled_ends():
  async def cancelled():
    call = asyncio.create_task(box("slow", retries=9).call("slow", json.dumps(dict(seconds=60.0))))
    await reached(lambda: tool_functions.CALLS)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
      await call
    await asyncio.sleep(0.1)

  asyncio.run(cancelled())
  assert tool_functions.CALLS == ["slow"]  # it is not tried again


@pytest.mark.parametrize("name", ["slow", "sleeps"])  # on the event loop, and in a thread
def test_a_deadline_ends_a_call(name):
  toolbox, others = box(name, "add", timeout_s=0.2), []
  while "2" not in others:  # a busy machine may not add in time, but not always
    begin = time.monotonic()
    found, other = called(toolbox, (name, dict(seconds=120)), ("add", dict(a=1)))
    assert found == Result(f"{name} failed: no answer within 0.2 s (config.switches.timeout_s)", FAILED)
    others.append(other.text)
    assert time.monotonic() - begin < 60 and len(others) < 20


@pytest.mark.parametrize("name", ["slow", "sleeps"])
def test_calls_run_at_the_same_time(name, monkeypatch):
  for at_once, met in ((64, 6), (2, 2)):
    most = tool_functions.meeting(monkeypatch, met)
    found = called(box(name, timeout_s=200.0, at_once=at_once), *[(name, dict(seconds=0.4))] * 6)
    assert [one.text for one in found] == ["slept 0.4"] * 6 and len(most) == 6 and max(most) == met


def test_waiting_for_a_turn_is_not_the_tools_time():
  kinds = []
  while {OK} not in kinds:  # a busy machine may stop one of them for longer than 0.6 s, but not in every try
    found = called(box("slow", timeout_s=1.0, at_once=1), *[("slow", dict(seconds=0.4))] * 4)  # 1.6 s in all
    kinds.append({one.kind for one in found})
    assert len(kinds) < 20


def test_a_tool_that_hangs_does_not_keep_the_process():
  program = (
    "import asyncio, time\nfrom ragrl_jax.agents.toolbox import tool\n"
    "def hangs() -> str:\n  time.sleep(600)\n"
    "box = tool.Toolbox([tool.of_function(hangs)], timeout_s=0.2, retries=0, at_once=4)\n"
    "print(asyncio.run(box.call('hangs', '{}')).kind)\n"
  )
  done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=250)
  assert done.stdout == "failed\n" and done.returncode == 0, done.stderr


def test_functions_are_found_by_name(tmp_path):
  (tmp_path / "mine.py").write_text("def f(x: int) -> int:\n  return x\n")
  assert tool.function_of(f"{tmp_path}/mine.py:f", "config.switches.tools")(3) == 3
  with pytest.raises(ValueError, match="config.switches.tools='.*mine.py:g': .* has no function g"):
    tool.function_of(f"{tmp_path}/mine.py:g", "config.switches.tools")


@pytest.fixture
def free(monkeypatch):
  """Ends the calls of `sleeps` and `never_awaits`."""
  event = threading.Event()
  monkeypatch.setattr(tool_functions, "WAITS", types.SimpleNamespace(sleeps=lambda _: event.wait(LIMIT_S)))
  return event


def test_threads_of_tools_that_hang_are_counted_and_bounded(free):
  # 5 calls of 3 tries each are 15 threads, if each try may have one; at_once=2 allows two.
  before, toolbox = threading.active_count(), box("sleeps", "add", timeout_s=0.2, retries=2, at_once=2)
  found = called(toolbox, *[("sleeps", dict(seconds=4.0))] * 5)
  assert {one.kind for one in found} == {FAILED} and threading.active_count() <= before + 2 + 1  # and the tools' loop
  assert "2 calls still run in their threads after their time limit" in found[-1].text
  (found,) = called(toolbox, ("add", dict(a=1)))
  assert found.kind == FAILED and "config.switches.at_once" in found.text
  free.set()  # the threads end, and their permits come back
  until(lambda: called(toolbox, ("add", dict(a=1))) == [Result("2", OK)])


def test_an_async_tool_that_never_awaits_is_named(monkeypatch, free):
  monkeypatch.setattr(tool, "BLOCKED_S", 0.2)
  toolbox = box("never_awaits", "add", timeout_s=0.2)
  found = called(toolbox, ("never_awaits", dict(seconds=1.5)), ("add", dict(a=1)))
  assert [one.kind for one in found] == [FAILED, FAILED]
  assert "never_awaits is an `async def` that has not awaited anything" in found[1].text
  free.set()
  until(lambda: called(toolbox, ("add", dict(a=1))) == [Result("2", OK)])  # the loop runs again


def test_long_results_are_cut_before_they_are_kept():
  calls = ("long_text", dict(letters=3 << 20)), ("long_list", dict(numbers=10**6))
  found = called(box("long_text", "long_list"), *calls)
  assert len(found[0].text) == len(found[1].text) == tool.LONGEST and found[1].text.startswith("[0, 1, 2, ")
