"""The server's replies are the engine's own tokens, whole or streamed, and its refusals say what to change."""

import codecs
import contextlib
import json
import socket
import threading
from concurrent import futures

import httpx
import numpy as np
import pytest
import small_engine as kit
from flax import nnx
from patience import until
from small_server import CLIENT, MODEL, drawn, post, serving, stream

from ragrl_jax import structs
from ragrl_jax.engine import lanes
from ragrl_jax.learner import forward, packing
from ragrl_jax.protocol import http_limits
from ragrl_jax.serving.openai_server import Limits

PROMPT = "Question 1??"
ASKED = dict(messages=[dict(role="user", content=PROMPT)], max_tokens=40, return_token_ids=True, logprobs=True)
IDS = kit.TOKENIZER.encode(PROMPT)


@pytest.fixture
def server():  # one at a time: the tests share an engine
  with serving() as (url, _):
    yield url


def tokens(choice):
  """(ids, logprobs) of a chat's choice."""
  return choice["token_ids"], [entry["logprob"] for entry in choice["logprobs"]["content"]]


OWN = {"greedy": dict(temperature=0.0), "seeded": dict(seed=5), "warm": dict(seed=9, temperature=0.6)}


@pytest.fixture(scope="module")
def own():
  """What the engine itself draws, each reply in one turn."""
  engine = kit.engine()
  found = {name: drawn(engine, IDS, budget=40, **how) for name, how in OWN.items()}
  found["second"] = drawn(engine, IDS, budget=40, seed=5, sample=1)
  return found


def test_tokens_and_logprobs_are_the_engines_own(own, server):
  # 40 tokens are five chunks of 8: the turn is drawn in five slices here, and in one turn there.
  for name, how in OWN.items():
    ids, logprobs, end = own[name]
    status, said = post(server, "chat/completions", **ASKED, **how)
    (choice,) = said["choices"]
    assert status == 200 and tokens(choice) == (ids, logprobs) and said["prompt_token_ids"] == IDS
    assert choice["message"]["content"] == kit.TOKENIZER.decode(ids) and choice["stop_reason"] is None
    assert choice["finish_reason"] == ("length" if end == lanes.FULL else "stop")
    assert said["usage"] == dict(prompt_tokens=len(IDS), completion_tokens=len(ids), total_tokens=len(IDS) + len(ids))
    text = post(server, "completions", prompt=PROMPT, max_tokens=40, logprobs=0, return_token_ids=True, **how)[1]
    (choice,) = text["choices"]
    assert (choice["token_ids"], choice["logprobs"]["token_logprobs"]) == (ids, logprobs)
    # A token's text begins where the decoded text before it ends, also within a character.
    raw = [kit.TOKENIZER.token_bytes(token) for token in ids]
    assert [bytes(entry["bytes"]) for entry in said["choices"][0]["logprobs"]["content"]] == raw
    starts = [len(codecs.getincrementaldecoder("utf-8")("replace").decode(b"".join(raw[:i]))) for i in range(len(raw))]
    assert choice["logprobs"]["text_offset"] == starts
    assert choice["prompt_token_ids"] == IDS and "".join(choice["logprobs"]["tokens"])[:5] == choice["text"][:5]
  assert len({tuple(one[0]) for one in own.values()}) == 4
  said = post(server, "chat/completions", **ASKED, temperature=5e-38)[1]  # near zero is greedy, too
  assert said["choices"][0]["token_ids"] == own["greedy"][0]


def test_a_streamed_reply_is_the_whole_one(own, server):
  for name, how in OWN.items():
    *chunks, usage = stream(server, "chat/completions", **ASKED, **how, stream_options=dict(include_usage=True))
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == len(own[name][0])
    choices = [chunk["choices"][0] for chunk in chunks]
    assert chunks[0]["prompt_token_ids"] == IDS and choices[0]["delta"] == dict(role="assistant", content="")
    assert "".join(c["delta"].get("content", "") for c in choices) == kit.TOKENIZER.decode(own[name][0])
    assert [i for c in choices for i in c.get("token_ids", ())] == own[name][0]
    found = [e["logprob"] for c in choices if c["logprobs"] for e in c["logprobs"]["content"]]
    assert found == own[name][1] and len(chunks) > 4
    whole = post(server, "chat/completions", **ASKED, **how)[1]["choices"][0]
    assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + [whole["finish_reason"]]
    text = stream(server, "completions", prompt=PROMPT, max_tokens=40, **how)
    assert "".join(chunk["choices"][0]["text"] for chunk in text) == whole["message"]["content"]


def test_stop_strings_cut_the_text_and_end_the_tokens(own, server):
  ids = own["greedy"][0]
  data = bytes(ids)
  for first, last in ((6, 9), (7, 8), (15, 18), (2, 3), (0, 2)):  # chunks end at 8 and 16
    stop = data[first:last].decode("latin-1")
    if not stop.isascii():
      continue
    at = data.find(stop.encode())
    how = dict(temperature=0, stop=["never so", stop])
    choice = post(server, "chat/completions", **ASKED, **how)[1]["choices"][0]
    assert choice["message"]["content"] == data[:at].decode(errors="replace")
    assert choice["token_ids"] == ids[: at + len(stop)]
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == stop
    chunks = stream(server, "chat/completions", **ASKED, **how)
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == choice["message"]["content"]
    kept = post(server, "completions", prompt=PROMPT, max_tokens=40, include_stop_str_in_output=True, **how)[1]
    assert kept["choices"][0]["text"] == data[: at + len(stop)].decode(errors="replace")


def test_several_prompts_and_replies(own, server):
  asked = dict(prompt=[PROMPT, IDS], n=2, seed=5, max_tokens=40, return_token_ids=True)
  said = post(server, "completions", **asked)[1]
  assert [choice["index"] for choice in said["choices"]] == [0, 1, 2, 3]
  assert [choice["token_ids"] for choice in said["choices"][:2]] == [own["seeded"][0], own["second"][0]]
  assert len({tuple(choice["token_ids"]) for choice in said["choices"]}) == 4
  chunks, parts = stream(server, "completions", **asked), {}
  for chunk in chunks:
    parts.setdefault(chunk["choices"][0]["index"], []).extend(chunk["choices"][0]["token_ids"])
  assert [parts[i] for i in range(4)] == [choice["token_ids"] for choice in said["choices"]]


def test_ids_of_rows_without_a_token_are_accepted_and_shown_as_nothing(server):
  # The model has 264 rows, the tokenizer 258 ids.
  ids = [*IDS, 258, 263]
  said = post(server, "completions", prompt=ids, max_tokens=5, temperature=0, return_token_ids=True)[1]
  assert said["choices"][0]["prompt_token_ids"] == ids and said["usage"]["prompt_tokens"] == len(ids)
  assert kit.TOKENIZER.decode(ids) == PROMPT


def test_a_chat_goes_on_with_the_assistants_message(server):
  begun = dict(role="assistant", content="Well, ")
  asked = ASKED | dict(messages=[*ASKED["messages"], begun], temperature=0, max_tokens=12)
  said = post(server, "chat/completions", **asked, continue_final_message=True, add_generation_prompt=False)[1]
  assert said["prompt_token_ids"] == kit.TOKENIZER.encode(PROMPT + "Well, ")
  text = post(server, "completions", prompt=PROMPT + "Well, ", temperature=0, max_tokens=12)[1]
  assert said["choices"][0]["message"]["content"] == text["choices"][0]["text"]


@pytest.mark.slow  # compiles the learner's forward pass
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_the_learners_scores(server, temperature):
  said = post(server, "chat/completions", **ASKED, seed=3, temperature=temperature)[1]
  ids, logprobs = tokens(said["choices"][0])
  prompt = structs.Segment(structs.ENVIRONMENT, tuple(said["prompt_token_ids"]), "")
  episode = structs.Episode((prompt, structs.Segment(structs.MODEL, tuple(ids), "", tuple(logprobs))))
  packed = packing.pack_items(packing.of_episode(episode, (0.0,)), rows=1, lengths=(kit.CONTEXT,))
  (block,) = packed.blocks
  scores = nnx.jit(forward.scores, static_argnames=("temperature", "chunk"))
  scored, _ = scores(kit.model(), block, temperature=temperature, chunk=16)
  mask = np.asarray(block.loss_mask).astype(bool)
  assert mask.sum() == len(ids)
  np.testing.assert_allclose(np.asarray(scored)[mask], logprobs, atol=1e-4)
  np.testing.assert_allclose(np.asarray(block.sampler_logprobs)[mask], logprobs, atol=1e-6)


MESSAGES, CHAT, TEXT = dict(messages=ASKED["messages"]), "chat/completions", "completions"


@pytest.mark.parametrize("page, body, status, says", [
  (CHAT, dict(MESSAGES, model="gpt"), 404, "'gpt' is not served here: ask for 'small'"),
  (CHAT, dict(messages=[]), 400, "messages must be a list"),
  (CHAT, dict(messages=[dict(role="robot", content="")]), 400, r"messages[0] must have a role"),
  (CHAT, dict(messages=[dict(role="user", content=[dict(type="image_url")])]), 400, "messages[0].content"),
  (CHAT, dict(MESSAGES, temperature=3), 400, "temperature=3: it must be a number from 0 to 2"),
  (CHAT, dict(MESSAGES, temperature=True), 400, "temperature=True"),
  (CHAT, dict(MESSAGES, max_tokens=90), 400, "at most 84, since the prompt has 12 of 96"),
  (CHAT, dict(MESSAGES, max_tokens=97), 400, "max_tokens=97: it must be a whole number from 1 to 96"),
  (CHAT, dict(messages=[dict(role="user", content="x" * 96)]), 400, "the prompt has 96 tokens"),
  # More than 16 characters for each token of the context, and too many tokens in the first of them.
  (CHAT, dict(messages=[dict(role="user", content="x" * 1537)]), 400, "characters: prompt and reply"),
  (CHAT, dict(messages=[dict(role="user", content="", name="x" * 1537)]), 400, "characters: prompt"),
  (TEXT, dict(prompt=["a", "x" * 1537]), 400, "the prompt has 1537 characters: prompt and reply together may"),
  (CHAT, dict(MESSAGES, tools=[dict(function=dict(name="f"))]), 400, "no known format of tool calls"),
  (CHAT, dict(MESSAGES, tool_choice="required"), 400, "leave out tools and tool_choice"),
  (CHAT, dict(messages=[dict(role="assistant", tool_calls=[{}])]), 400, "leave out tool_calls"),
  (CHAT, dict(MESSAGES, frequency_penalty=0.5), 400, "frequency_penalty=0.5 is not supported"),
  (CHAT, dict(MESSAGES, top_logprobs=3), 400, "top_logprobs=3 is not supported"),
  (CHAT, dict(MESSAGES, n=1.5), 400, "n=1.5: it must be a whole number"),
  (CHAT, dict(MESSAGES, stop=[""]), 400, "stop must be"), (CHAT, dict(MESSAGES, stop="\ud800"), 400, "surrogate"),
  (CHAT, dict(MESSAGES, **{"\ud800": 1}), 400, "unknown field"),  # half a surrogate pair; in ASCII, it is escaped
  (CHAT, dict(MESSAGES, tempersture=1), 400, "unknown field 'tempersture'"),
  (TEXT, dict(MESSAGES), 400, "unknown field 'messages'"), (TEXT, dict(prompt=""), 400, "the prompt is empty"),
  (TEXT, dict(prompt=[1, "a"]), 400, "prompt must be"),
  (TEXT, dict(prompt=[1, 264]), 400, "the prompt has the token id 264: this model's ids are 0 to 263"),
  (TEXT, dict(prompt=["a"] * 65), 400, "65 prompts: at most 64"),
  (TEXT, dict(prompt=["a"] * 9, n=8), 400, "at most 64 replies per request"),
  ("weights", dict(step="x"), 400, "the body must be {}"), ("nothing", {}, 404, "no page '/v1/nothing'"),
])  # fmt: skip
def test_refusals_say_what_to_change(server, page, body, status, says):
  body = body if page == "weights" else dict(model=MODEL) | body
  said = CLIENT.post(f"{server}/{page}", content=json.dumps(body))
  error = said.json()["error"]
  assert said.status_code == status and says in error["message"] and "\n" not in said.text
  assert error["type"] == "invalid_request_error" and {"param", "code"} < error.keys()


def test_bodies_that_are_no_json_methods_and_other_sites(server):
  assert CLIENT.post(f"{server}/completions", content=b"{").status_code == 400
  assert CLIENT.post(f"{server}/completions", content=b"[" * 100_000).status_code == 400
  assert CLIENT.get(f"{server}/completions").status_code == 405
  assert CLIENT.get(f"{server}/models", headers=dict(origin="http://elsewhere")).status_code == 403
  refused = CLIENT.get(f"{server}/models", headers=dict(host="elsewhere"))
  assert refused.status_code == 400 and refused.headers["connection"] == "close"
  (model,) = CLIENT.get(f"{server}/models").json()["data"]
  assert model["id"] == MODEL and CLIENT.get(f"{server}/models/{MODEL}").json() == model
  assert CLIENT.get(f"{server}/models/other").json()["error"]["code"] == "model_not_found"


class Held:
  """An engine whose steps wait until they are let go."""

  def __init__(self):
    self.inner, self.go, self.steps = kit.engine(), threading.Event(), 0

  def __getattr__(self, name):
    return getattr(self.inner, name)

  def step(self):
    self.steps += 1
    self.go.wait(120)
    return self.inner.step()


def waiting(url):
  return CLIENT.get(url.replace("/v1", "/health")).json()["waiting"]


def test_limits_of_body_and_queue():
  held = Held()
  limits = Limits(max_bytes=400, max_waiting=2)
  with serving(held, limits=limits) as (url, _), futures.ThreadPoolExecutor() as pool:
    status, said = post(url, "completions", prompt="x" * 400)
    assert status == 413 and "400 bytes" in said["error"]["message"]
    assert post(url, "completions", prompt="a", n=3)[0] == 400  # no wait would help
    two = pool.submit(post, url, "completions", prompt="a", n=2)
    until(lambda: waiting(url) == 2)
    status, said = post(url, "completions", prompt="a")
    assert status == 429 and said["error"]["type"] == "rate_limit_error"
    held.go.set()
    assert two.result()[0] == 200 and waiting(url) == 0


def test_the_time_limit_ends_a_request_and_frees_its_lanes():
  held = Held()
  with serving(held, limits=Limits(timeout_s=0.5)) as (url, _):
    status, said = post(url, "completions", prompt="a", n=2)
    assert status == 504 and "0.5 s" in said["error"]["message"] and said["error"]["type"] == "server_error"
    held.go.set()
    until(lambda: waiting(url) == 0 and not held.inner._conversations)
    until(lambda: post(url, "completions", prompt="a")[0] == 200)  # a busy machine may need longer than 0.5 s


def test_a_key_is_wanted_where_there_is_one():
  with serving(key="sesame") as (url, _):
    for headers in (None, dict(authorization="Bearer sesam"), dict(authorization="Bearer")):
      status, said = post(url, "completions", headers, prompt="a")
      assert status == 401 and said["error"]["code"] == "invalid_api_key" and "sesame" not in str(said)
    known = dict(authorization="Bearer sesame")
    assert post(url, "completions", known, prompt="a")[0] == 200
    health = url.replace("/v1", "/health")
    assert CLIENT.get(health).status_code == 401 and CLIENT.get(health, headers=known).json()["status"] == "ok"


@contextlib.contextmanager
def asked_by(url, buffer=None, **body):
  """A client that has sent a request and reads nothing; `buffer` is the size of its receive buffer."""
  body = json.dumps(dict(model=MODEL, prompt="a") | body).encode()
  head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n".encode()
  with socket.socket() as client:
    if buffer:
      client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    client.connect(("127.0.0.1", httpx.URL(url).port))
    client.sendall(head + body)
    yield client


@pytest.mark.parametrize("n, steps", [(64, 4), (1, 2)])
def test_a_client_that_leaves_frees_its_lanes_and_its_places_in_the_queue(n, steps):
  # Only the chunk that was being drawn is, of ten; and of six rows on four lanes one more, for the other two.
  held = Held()
  with serving(held) as (url, _):
    with asked_by(url, n=n, max_tokens=80):
      until(lambda: held.steps and waiting(url) == n)
    until(lambda: waiting(url) == 0)
    held.go.set()
    until(lambda: not held.inner._conversations)
    assert held.steps <= steps


def test_more_replies_than_rows_follow_each_other():
  # Six rows. Each reply is the engine's own, whatever its place in the queue; 64 is the limit of a request.
  engine, how = kit.engine(), dict(seed=5, max_tokens=12, return_token_ids=True)
  prompts = [f"{PROMPT}{'!' * number}" for number in range(9)]
  of_one = [drawn(engine, IDS, seed=5, sample=sample)[0] for sample in range(9)]
  of_each = [drawn(engine, kit.TOKENIZER.encode(p), seed=5, place=place)[0] for place, p in enumerate(prompts)]
  with serving() as (url, _), futures.ThreadPoolExecutor() as pool:
    said = post(url, "completions", prompt=PROMPT, n=9, **how)[1]["choices"]
    assert [choice["token_ids"] for choice in said] == of_one
    said = post(url, "completions", prompt=prompts, **how)[1]["choices"]
    assert [choice["token_ids"] for choice in said] == of_each
    many = [pool.submit(stream, url, "completions", prompt="a", n=64, max_tokens=4) for _ in range(3)]
    assert [len({chunk["choices"][0]["index"] for chunk in one.result()}) for one in many] == [64] * 3
    until(lambda: waiting(url) == 0 and not engine._conversations)


def test_a_client_that_does_not_read_holds_no_row_and_is_dropped():
  # 64 replies of 80 tokens with log-probabilities are some 500 kB of events; the buffers hold about 80 kB.
  held, got = Held(), b""
  with serving(held, guard=http_limits.Guard(read_s=1.0)) as (url, _):
    with asked_by(url, buffer=1, n=64, max_tokens=80, stream=True, logprobs=1) as deaf:
      until(lambda: held.steps and waiting(url) == 64)
      held.go.set()
      assert post(url, "completions", prompt="a", max_tokens=2)[0] == 200  # others are answered meanwhile
      until(lambda: not held.inner._conversations and waiting(url) == 0)
      deaf.settimeout(60)
      with contextlib.suppress(ConnectionResetError):  # what had arrived, and then the end
        while part := deaf.recv(1 << 20):
          got += part
  assert got.startswith(b"HTTP/1.1 200 OK") and b"[DONE]" not in got


def test_an_engine_that_fails_is_told_to_all():
  held = Held()
  held.step = lambda: (_ for _ in ()).throw(RuntimeError("lost"))
  with serving(held) as (url, _):
    status, said = post(url, "completions", prompt="a")
    assert status == 500 and said["error"]["message"] == "the engine has failed: see the server's log."
    assert post(url, "completions", prompt="a")[0] == 500
    assert CLIENT.get(url.replace("/v1", "/health")).status_code == 503


def test_weights_change_between_replies_and_drop_none():
  held = Held()
  other = nnx.split(kit.model(1))[1]
  before = drawn(held.inner, IDS, budget=40)[0]
  first, first_version = held.inner.weights, held.inner.version

  def reload(step):
    if step == 13:
      raise ValueError("there is no step 13.")
    held.inner.load(other, version=step or 99)
    return held.inner.version

  asked = dict(prompt=PROMPT, max_tokens=40, seed=0, return_token_ids=True)
  try:
    with serving(held, reload=reload) as (url, application), futures.ThreadPoolExecutor() as pool:
      old = pool.submit(stream, url, "completions", **asked)
      until(lambda: held.steps)
      change = pool.submit(CLIENT.post, f"{url}/weights", json=dict(step=40))
      until(lambda: application._gate.shut)  # it waits for the old reply; later ones wait for it
      assert not change.done() and CLIENT.post(f"{url}/weights", json={}).status_code == 409
      new = [pool.submit(post, url, "completions", **asked) for _ in range(3)]
      until(lambda: waiting(url) == 4)
      held.go.set()
      chunks = old.result()
      assert [i for chunk in chunks for i in chunk["choices"][0]["token_ids"]] == before
      assert {chunk["system_fingerprint"] for chunk in chunks} == {f"version-{first_version}"}
      assert change.result().json() == dict(object="weights", version=40)
      for one in new:
        status, said = one.result()
        assert status == 200 and said["system_fingerprint"] == "version-40"
        assert said["choices"][0]["token_ids"] != before
      refused = CLIENT.post(f"{url}/weights", json=dict(step=13))
      assert refused.status_code == 400 and refused.json()["error"]["message"] == "there is no step 13."
      assert post(url, "completions", **asked)[1]["choices"][0]["token_ids"] == said["choices"][0]["token_ids"]
  finally:
    held.inner.load(first, version=first_version)


def test_new_weights_wait_for_running_replies_for_a_limited_time():
  held, loaded, limits = Held(), [], Limits(drain_s=0.2)
  with serving(held, reload=loaded.append, limits=limits) as (url, application), futures.ThreadPoolExecutor() as pool:
    running = pool.submit(post, url, "completions", prompt="a")
    until(lambda: held.steps)
    refused = CLIENT.post(f"{url}/weights", json={})
    assert refused.status_code == 503 and "0.2 s" in refused.json()["error"]["message"]
    assert not application._gate.shut and not loaded  # whoever waited goes on
    later = pool.submit(post, url, "completions", prompt="a")
    until(lambda: waiting(url) == 2)
    held.go.set()
    assert running.result()[0] == later.result()[0] == 200
    assert CLIENT.post(f"{url}/weights", json={}).status_code == 200 and loaded == [None]


@pytest.mark.slow  # 200 clients at a time
def test_two_hundred_streams_at_a_time_and_nothing_compiles():
  with serving() as (url, application):
    asked = lambda i: dict(prompt=f"Question {i}{'?' * (i % 9)}", max_tokens=24, seed=i, return_token_ids=True)
    alone = {i: post(url, "completions", **asked(i))[1]["choices"][0] for i in range(0, 200, 20)}
    with kit.compilations() as heard, futures.ThreadPoolExecutor(200) as pool:
      found = [*pool.map(lambda i: stream(url, "completions", **asked(i)), range(200))]
    assert not heard
    for i, one in alone.items():
      assert [t for chunk in found[i] for t in chunk["choices"][0]["token_ids"]] == one["token_ids"]
      assert "".join(chunk["choices"][0]["text"] for chunk in found[i]) == one["text"]
    ends = [chunks[-1]["choices"][0]["finish_reason"] for chunks in found]
    assert set(ends) <= {"stop", "length"} and waiting(url) == 0 and not application._thread.engine._conversations
