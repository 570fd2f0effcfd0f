"""Programs of the recipe `agent`, for its tests: one for each thing that a program may do."""

import asyncio
import concurrent.futures
import contextlib
import json
import threading
import time

import httpx
from patience import until

TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}]


def ask(task, messages, **more):
  return task.post("chat/completions", messages=messages, **more)["choices"][0]["message"]


def user(text):
  return dict(role="user", content=text)


def loop(task):
  """A tool loop that writes its whole history again for each request, as clients do."""
  messages = [user(task.question)]
  for turn in range(3):
    said = ask(task, messages, tools=TOOLS)
    if not said.get("tool_calls"):
      return said["content"]
    written = lambda name, arguments: dict(name=name, arguments=json.dumps(json.loads(arguments), indent=1))
    calls = [dict(id=f"mine-{turn}", type="function", function=written(**c["function"])) for c in said["tool_calls"]]
    messages.append(dict(role="assistant", content=(said["content"] or "") + " ", tool_calls=calls))
    for call in calls:
      found = task.search(json.loads(call["function"]["arguments"])["query"], 1)
      messages.append(dict(role="tool", tool_call_id=call["id"], content=found[0]["text"]))


def one_call(task):
  return ask(task, [user(task.question)], tools=TOOLS, parallel_tool_calls=False)["content"]


def forgets(task):
  ask(task, [user(task.question)])
  second = ask(task, [user(task.question), dict(role="assistant", content="Something else."), user("Well?")])
  return second["content"]


def retries(task):
  """Its first request is too long. The search before it belongs to the request that is answered."""
  task.search("Rome", 1)
  try:
    ask(task, [user(task.question + " and why?" * 100)])
  except httpx.HTTPStatusError as error:
    assert error.response.json()["error"]["code"] == "context_length_exceeded"
  return ask(task, [user(task.question)])["content"]


def impatient(task):
  """Gives up its request, and sends it again."""
  send = lambda timeout: httpx.post(f"{task.base_url}/chat/completions", json=body, timeout=timeout)
  body = dict(messages=[user(task.question)])
  with contextlib.suppress(httpx.TimeoutException):
    send(0.3)
  return send(60).json()["choices"][0]["message"]["content"]


def shortens(task):
  messages = [user(task.question)]
  messages += [dict(role="assistant", content=ask(task, messages)["content"]), user("Well?")]
  ask(task, messages)
  return ask(task, messages[2:])["content"]


def dies(task):
  ask(task, [user(task.question)])
  raise KeyError("the key\nof it")


def exits(task):
  raise SystemExit("usage: …")


def hangs(task):
  ask(task, [user(task.question)])
  time.sleep(60)


FREE = threading.Event()  # ends these two


def sleeps(task):
  FREE.wait(120)


async def never_awaits(task):
  FREE.wait(120)


async def at_once(task):
  return "Italy"


def talks(task):
  messages = [user(task.question)]
  while True:
    messages += [dict(role="assistant", content=ask(task, messages)["content"]), user("More " * 5)]


def silent(task):
  return "Italy"


def odd(task):
  return 3


async def coroutine(task):
  said = await asyncio.to_thread(ask, task, [user(task.question)])
  return dict(answer=said["content"], reward=0.25, steps=[1, 2], why="It says so.")


def varied(task):
  """A search and two turns; then a third turn, before which some rewrite what was said. All by what was said."""
  messages, said = [user(task.question)], ""
  for more in (" ".join(passage["text"] for passage in task.search(task.question, 1)), "Well?"):
    said = ask(task, messages, max_tokens=6)["content"]
    messages += [dict(role="assistant", content=said), user(more)]
  if len(said) % 2:
    messages = [user("Anew."), *messages[2:]]
  last = ask(task, messages, max_tokens=6)["content"]
  return dict(answer=last, reward=(sum(map(ord, said + last)) % 7) / 7)


def stops(task):
  return ask(task, [user(task.question)], stop=["!"])["content"]


def both(task):
  """Two requests of other histories at the same time."""
  with concurrent.futures.ThreadPoolExecutor() as pool:
    said = list(pool.map(lambda text: ask(task, [user(text)])["content"], ("One?", "Two?")))
  return said[0]


def paid(example, answer, facts):
  return 0.5 if answer == "Italy" and facts["requests"] == 1 else None


SEEN = {}  # what `look` was answered


def look(task):
  """Sends the requests that the endpoint refuses, and one for a stream."""
  post = lambda page, **how: httpx.post(f"{task.base_url}/{page}", **dict(timeout=60) | how)
  chat = dict(messages=[user("x")])
  SEEN.update(
    url=task.base_url,
    host=post("chat/completions", json=chat, headers=dict(host="elsewhere")),
    site=post("chat/completions", json=chat, headers=dict(origin="http://elsewhere")),
    key=httpx.post(f"{task.base_url.rsplit('/', 2)[0]}/0123456789abcdef/v1/chat/completions", json=chat, timeout=60),
    n=post("chat/completions", json=chat | dict(n=2)),
    search=post("search", json=dict(query=3)),
    k=post("search", json=dict(query="x", k=1000)),
    page=post("embeddings", json={}),
    get=httpx.get(f"{task.base_url}/chat/completions", timeout=60),
    models=httpx.get(f"{task.base_url}/models", timeout=60),
  )
  with httpx.stream("POST", f"{task.base_url}/chat/completions", json=chat | dict(stream=True), timeout=60) as said:
    SEEN["stream"] = [line for line in said.iter_lines() if line]
  return "done"


RUNNING, MOST = set(), []  # of `slow`: episodes that run, and how many there were each time


def slow(task):
  """Takes its time until two have run at the same time, and asks nothing."""
  RUNNING.add(task.id)
  MOST.append(len(RUNNING))
  until(lambda: max(MOST) > 1)
  time.sleep(0.05)  # for a third one
  RUNNING.discard(task.id)
