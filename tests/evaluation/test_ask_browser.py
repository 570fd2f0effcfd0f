"""The page of `ragrl ask` in a browser, under its own policy: asking, samples, two checkpoints, hostile text."""

import asyncio
import contextlib
import json
import pathlib
import threading
import types

import asked
import pytest
from small_server import running
from test_page import WIDTHS, opened, pytestmark as pytestmark, taken

from ragrl_jax.protocol.http_answer import Answer
from ragrl_jax.recipes import steps as steps_lib
from ragrl_jax.report import rendering
from ragrl_jax.rollout.tools import RetrievalTools
from ragrl_jax.serving import ask_page

ACTIONS = pathlib.Path(__file__).with_name("ask.js").read_text(encoding="utf-8")
FOLLOWS = lambda pairs: [1.0 if "Kormin was" in basis else 0.0 for basis, _ in pairs]  # every second step
JUDGE = types.SimpleNamespace(pace=types.SimpleNamespace(workers=1, batch=8, deadline_s=120.0), judge=FOLLOWS)


class Towns(asked.Towns):
  """Takes until `over` where the query says so."""

  def __init__(self, over):
    self.over = over

  def search(self, queries, k):
    if any("slow" in query for query in queries):
      self.over.wait(PATIENCE)
    return super().search(queries, k)


def says(turn, prompt):
  if b"slow" in bytes(prompt):
    return "<search>slow</search>"
  if b"img src" in bytes(prompt):
    long = "Donaudampfschiff" * 30
    return f"<think>{long} <img src=x onerror=alert(1)>\u202e</think><answer><img src=x> {long[:60]}</answer>"
  return asked.SEARCHED[turn]


# The frame has loaded once the server has answered for the picture, which it does when the page has told what it saw.
# So the browser waits in real time, however long the answers take on this machine.
HOST = """<!doctype html><body style="margin:0"><img src="/told" alt="" hidden>
<iframe src="/" width="{0}" height="{1}" style="border:0;display:block"></iframe>
<script>onmessage = (event) => fetch("/tell", {{method: "POST", body: event.data}});</script>"""
PATIENCE = 120  # seconds for all actions


@contextlib.contextmanager
def served(width, height=900, scheme="", actions=ACTIONS):
  """Gives a frame with a page that acts by itself, under its own policy: its address, and in `told` what it saw."""
  over = threading.Event()
  tools = lambda: RetrievalTools(Towns(over), timeout_s=PATIENCE, top_k=2, judges=dict.fromkeys(steps_lib.TERMS, JUDGE))
  askers = [asked.asker(says, name=name, judge=JUDGE, tools=tools()) for name in ("out/run", "out/other run")]
  application = ask_page.Application(askers)
  text = application._page.replace("</body>", f"<script>{actions}</script></body>")
  text = text.replace("; base-uri", f" '{rendering.hash_of(actions)}'; base-uri")
  application._page = text.replace('<html lang="en">', f'<html lang="en" data-scheme="{scheme}">') if scheme else text

  told, ended = [], asyncio.Event()

  async def framed(scope, receive, send):
    async def sent(message):
      if "headers" in message:
        message["headers"] = [pair for pair in message["headers"] if pair[0] != b"x-frame-options"]
      await send(message)

    if scope["path"] == "/host":
      await Answer(send).text(HOST.format(width, height), b"text/html")
    elif scope["path"] == "/tell":
      parts = [await receive()]
      while parts[-1].get("more_body", False):
        parts.append(await receive())
      told.append(json.loads(b"".join(part["body"] for part in parts)))
      ended.set()
      await Answer(send).text("", b"text/plain")
    elif scope["path"] == "/told":
      with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(ended.wait(), PATIENCE)
      await Answer(send).text("", b"text/plain")
    else:
      await application(scope, receive, sent)

  try:
    with running(framed) as port:
      yield types.SimpleNamespace(as_uri=lambda: f"http://127.0.0.1:{port}/host", told=told)
  finally:
    over.set()
    for asker in askers:
      asker.close()


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
  """What the reader saw at each width."""
  found = {}
  for width in WIDTHS:
    with served(width) as page:
      opened(page, tmp_path_factory.mktemp("seen"), budget="")
    assert page.told, f"the page told nothing within {PATIENCE} s"
    found[width] = page.told[0]
  return found


def test_a_reader_asks_and_hostile_text_stays_text_and_nothing_is_too_wide(seen):
  for found in seen.values():
    assert "error" not in found, found["error"]
    assert found["focus"] == "question" and found["busy"] == [True, False, "Answering …"]
    assert found["said"] == ["Tolper", "Tolper"] and found["status"] == "Answered: Tolper | Tolper"
    quotes, there, cites, cited = found["marks"]
    assert quotes == there == ["Kormin was born in Tolper."] * 2
    assert cites == ["[1]"] * 2 and cited == ["1  Kormin"] * 2
    assert len(found["judged"]) == 6 and "✓ follows" in found["judged"][0]
    assert found["chips"][0] == "1 search" and found["chips"][3:5] == ["ended by answer", "weights of version 3"]
    assert found["waiting"] and found["stopped"] == ["Stopped.", "Stopped."] and found["after"] == ["slow?", "none"]
    assert found["images"] == 0 and found["markup"] == 0 and not found["named"] and not found["labels"]
    assert not found["outside"] and found["wide"][0] <= found["wide"][1], found["outside"]


def test_samples_and_conversations(seen):
  found = seen[WIDTHS[0]]
  assert found["questions"] == ["And <img src=x onerror=alert(1)>?", "Where was Kormin born?"]
  assert found["earlier"] == ["after 1 earlier question"]
  assert all(text.endswith(" in 3 of 3 answers") and text.startswith("<img src=x>") for text in found["agreement"])
  assert [pressed for _, pressed in found["choice"]] == ["true", "false", "false"] * 2
  assert found["chosen"] == ["false", "true", "false", "true", "false", "false"]
  first, second = found["exported"]
  assert second["earlier"] == [["Where was Kormin born?", "Tolper"]] and second["samples"] == 3
  assert [one["name"] for one in first["checkpoints"]] == ["out/run", "out/other run"]
  assert first["checkpoints"][0]["answers"][0]["episode"]["segments"][2]["found"][0]["id"] == "7"


def test_screenshots_of_asking(seen, tmp_path, width, scheme):
  height = seen[width]["height"]
  with served(width, height, scheme) as page:
    taken(page, tmp_path, width, height, f"ask_{width}_{scheme}", budget="")
