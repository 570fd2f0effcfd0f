"""A model behind a server answers in an evaluation, in every recipe's own turns. The server's answers are scripted."""

import json

import pytest
from console import ragrl
from refusals import refused
from scripted_server import completion, continuation, serving

from ragrl_jax import config as config_lib, recipes, retrieval, settings
from ragrl_jax.data import writers
from ragrl_jax.jobs import evaluate
from ragrl_jax.prompting.marked import MarkedTokenizer
from ragrl_jax.prompting.tokenizer import ByteTokenizer
from ragrl_jax.structs import Example, Passage

EXAMPLES = [Example(f"q{i}", f"Where is {i}?", (f"town {i}",)) for i in range(5)]
USAGE = dict(usage=dict(prompt_tokens=100, completion_tokens=10))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  place = tmp_path_factory.mktemp("endpoint")
  writers.write_examples(place / "questions.jsonl.gz", EXAMPLES)
  towns = [Passage(str(i), f"Town {i}", f"Town {i} is where {i} is.") for i in range(9)]
  retrieval.build_index(towns, "hashing", place / "index", progress=False)
  return place


def config_of(place, url, recipe="search_r1", switches=None, **endpoint):
  config = config_lib.default_config()
  config.recipe, config.switches = recipe, recipes.switches(recipe) | (switches or {})
  config.prompting.update(dict(tokenizer="bytes", chat=False))
  config.retrieval.update(dict(index=str(place / "index"), top_k=1))
  config.rollout.update(dict(context=8192, max_new_tokens=200))
  config.endpoint.update(dict(model="m", url=url, key_variable="", retries=1, timeout_s=60.0, deadline_s=120.0))
  config.endpoint.update(endpoint)
  return config


def run(place, config, out, checkpoint=None, **more):
  return evaluate.evaluate(config, checkpoint, str(place / "questions.jsonl.gz"), place / out, **more)


def rows(place, out, name="predictions.jsonl"):
  return [json.loads(line) for line in (place / out / name).read_text().splitlines()]


def number_of(messages):
  text = messages if isinstance(messages, str) else "".join(message["content"] for message in messages)
  return text.partition("Where is ")[2][0]


def searching(messages, _):
  """A model that searches once and answers right. As servers do, it leaves the stop strings out."""
  if messages[-1]["content"].strip().startswith("<information>"):
    return completion(f"<think> b </think><answer> town {number_of(messages)} ", **USAGE)
  return completion(f"<think> a </think><search> town {number_of(messages)} ", **USAGE)


def test_search_r1_is_played_as_a_chat_and_its_price_is_counted(place, monkeypatch):
  monkeypatch.setenv("MY_KEY", "s3cret")
  with serving(searching) as (url, server):
    config = config_of(place, url, key_variable="MY_KEY", input_price=2.5, output_price=10.0, concurrency=2)
    metrics = run(place, config, "chat")
  assert (metrics["em"], metrics["searches"], metrics["n"]) == (1.0, 1.0, 5)
  # 2 calls of 100 tokens in and 10 out; 200 · 2.5 + 20 · 10 = 700 millionths.
  assert metrics["measure"] == dict(calls=2.0, tokens_in=200.0, tokens_out=20.0, cost=pytest.approx(700e-6))
  described = metrics["settings"]["endpoint"] | dict(model=metrics["settings"]["model"])
  assert described | dict(model="m", url=url, input_price=2.5) == described
  assert set(server.keys) == {"Bearer s3cret"} and server.most <= 2 and "s3cret" not in json.dumps(metrics)
  first, second = (body for body in server.asked if "Where is 3" in body["messages"][0]["content"])
  sent = dict(stop=["</search>", "</answer>"], max_tokens=200, temperature=0.0, model="m")
  assert first | sent == first and [m["role"] for m in first["messages"]] == ["user"]
  assert [m["role"] for m in second["messages"]] == ["user", "assistant", "user"]
  assert second["messages"][1]["content"] == "<think> a </think><search> town 3 </search>"
  assert second["messages"][2]["content"].strip().startswith("<information>Doc 1(Title: Town 3) Town 3 is where")
  (row,) = [row for row in rows(place, "chat", "episodes.jsonl") if row["id"] == "q3"]
  assert row["facts"]["usage"] == dict(calls=2, tokens_in=200, tokens_out=20)
  assert [segment["owner"] for segment in row["segments"]] == ["environment", "model", "environment", "model"]


def test_a_killed_or_refused_evaluation_pays_for_no_answer_twice(place):
  with serving(lambda messages, n: 404) as (url, _):
    says = "status 404.*Check the address, the model and the key"
    refused(says, run, place, config_of(place, url), "refused", error=ConnectionError)
  with serving(lambda messages, n: searching(messages, n) if n < 5 else 401) as (url, _):
    config = config_of(place, url, concurrency=1)
    config.retrieval.max_failed_share = 0.0
    refused("so it goes", run, place, config, "killed", error=evaluate.harness.TooManyFailures)
  assert not rows(place, "killed")
  with serving(searching) as (other, server):
    config.endpoint.url = other
    assert run(place, config, "killed")["em"] == 1.0
    assert len(server.asked) == 2 * 5 - 4
    config.endpoint.url = url
    refused("other settings.*endpoint", run, place, config, "killed")  # a model elsewhere is another model


def test_samples_differ_and_repeat(place):
  with serving(lambda messages, n: f"<answer> {n} </answer>") as (url, server):
    config = config_of(place, url, recipe="untrained", switches=dict(method="closed_book", max_searches=0))
    config.endpoint.cache = str(place / "drawn")
    run(place, config, "seed0", sample=True)
    config.seed = 1
    run(place, config, "seed1", sample=True)
    assert len(server.asked) == 10 and server.asked[0]["temperature"] == 1.0
    run(place, config, "seed1_again", sample=True)
    assert len(server.asked) == 10  # the same draws come from the disk
    config.seed = 0
    metrics = run(place, config, "seeds", seeds=2)
    assert len(server.asked) == 15 and metrics["seeds"] == 2 and metrics["measure"]["calls"] == 1.0
  assert rows(place, "seed1") == rows(place, "seed1_again")
  assert rows(place, "seeds/seed_0") == rows(place, "seed0") != rows(place, "seeds/seed_1")


def test_what_a_server_does_not_take_is_left_out(place, caplog):
  # It ignores the stop string, which ends the turn all the same.
  with serving(lambda messages, n: "<answer> town 1 </answer> and more") as (url, server):
    config = config_of(place, url, omit="temperature, stop", limit="max_completion_tokens", concurrency=1)
    config.data.max_examples = 2
    metrics = run(place, config, "omitted")
  assert "its first 2 questions are asked (config.data.max_examples)" in caplog.text
  assert metrics["em"] == 0.5 and set(server.asked[0]) == {"model", "messages", "max_completion_tokens"}
  assert metrics["measure"]["calls"] == 1.0 and "cost" not in metrics["measure"]  # it counts no tokens
  assert all(row["segments"][1]["text"].endswith("</answer>") for row in rows(place, "omitted", "episodes.jsonl"))


@pytest.mark.parametrize("protocol", ["continue", "completions"])
def test_a_server_that_continues_a_text_has_results_in_the_assistants_turn(place, protocol):
  def answer(asked, n):
    made = completion if protocol == "continue" else continuation
    text = asked if isinstance(asked, str) else "".join(message["content"] for message in asked)
    if "<result>\n" in text:
      return made(f"<answer> \\boxed{{town {number_of(asked)}}} ", stop_reason="</answer>", **USAGE)
    return made(f"<search> town {number_of(asked)} ", stop_reason="</search>", **USAGE)

  with serving(answer) as (url, server):
    metrics = run(place, config_of(place, url, "released", dict(agent="research"), protocol=protocol), protocol)
  assert (metrics["em"], metrics["searches"], metrics["measure"]["calls"]) == (1.0, 1.0, 2.0)
  (_, second) = (body for body in server.asked if number_of(body.get("messages") or body["prompt"]) == "2")
  continued = "<search> town 2 </search> <result>\nTown 2\nTown 2 is where 2 is.\n</result>"
  if protocol == "completions":
    assert second["prompt"].endswith(continued) and "messages" not in second
  else:
    assert second["messages"][-1] == dict(role="assistant", content=continued)
    assert second["continue_final_message"] is True and second["add_generation_prompt"] is False


def test_flare_looks_at_the_servers_log_probabilities(place):
  def answer(asked, n):
    written = asked.partition("?\n")[2]
    tokens = {" It": 0.0, " is. And": 0.0}  # with the question's documents
    if written and "Documents:" not in asked:  # p of " grows" is .14: below both .8 and .4
      tokens = {" Town 5": 0.0, " grows": -2.0, ". So": 0.0}
    elif written:
      tokens = {f" <answer> town {number_of(asked)} ": 0.0}
    return continuation("".join(tokens), logprobs=dict(tokens=[*tokens], token_logprobs=[*tokens.values()]))

  with serving(answer) as (url, server):
    config = config_of(place, url, "untrained", dict(method="flare", max_searches=2), protocol="completions")
    refused("config.endpoint.logprobs=True", run, place, config, "flare_blind")
    config.endpoint.logprobs = True
    metrics = run(place, config, "flare")
  assert metrics["em"] == 1.0 and metrics["searches"] == 2.0 and server.asked[-1]["logprobs"] == 1
  found = [[s["query"] for s in row["segments"] if "query" in s] for row in rows(place, "flare", "episodes.jsonl")]
  assert found[3] == ["Where is 3?", "Town 5."]
  with serving(lambda messages, n: continuation("text")) as (url, _):
    config.endpoint.url, config.retrieval.max_failed_share = url, 1.0
    assert run(place, config, "flare_none")["failed"] == 5  # it was asked for log-probabilities and sent none


def test_what_is_refused_before_anything_is_asked(place, monkeypatch):
  monkeypatch.delenv("NO_SUCH_KEY", raising=False)
  url = "http://127.0.0.1:9/v1"
  for section, change, says in (
    ("endpoint", dict(url="", key_variable="NO_SUCH_KEY"), "'NO_SUCH_KEY' holds no key"),
    ("endpoint", dict(url="ftp://x"), "begins with http.*config.endpoint.url"),
    ("prompting", dict(tokenizer=""), "config.prompting.tokenizer is empty"),
    ("endpoint", dict(omit="stop,top_k"), "omit='stop,top_k': .*top_k"),
    ("prompting", dict(thinking="off"), "config.prompting.thinking='off': it has no effect on a chat server"),
    ("endpoint", dict(protocol="grpc"), "config.endpoint.protocol='grpc'"),
    ("retrieval", dict(index=""), "config.retrieval.index is empty"),
    ("endpoint", dict(model=""), "either a checkpoint answers"),
  ):
    config = config_of(place, url)
    config[section].update(change)
    refused(says, run, place, config, "refused_early")
  refused("either a checkpoint answers", run, place, config_of(place, url), "both", place)
  for name in ("model", "temperature", "max_tokens"):
    refused(rf"config.endpoint.more sets \['{name}'\]", settings.Endpoint, more={name: 1, "seed": 1})
  assert settings.Endpoint(more=dict(temperature=1), omit="temperature").more  # the server gets this one
  config.endpoint.model, config.endpoint.more = "m", dict(top_p=0.9)
  config.rollout.top_p = 0.8
  refused("more sets top_p, which sampled answers have", run, place, config, "refused_early")
  assert not (place / "refused_early").exists()


def test_chats_of_ids_can_be_read_back():
  tokenizer = MarkedTokenizer(ByteTokenizer())
  chat = [dict(role="system", content="é {x}"), dict(role="user", content="<assistant> no role")]
  ids = tokenizer.render(chat)
  assert tokenizer.messages(ids) == [*chat, dict(role="assistant", content="")]
  assert tokenizer.decode(ids) == "é {x}<assistant> no role"
  more = [*ids, *tokenizer.encode("a"), *tokenizer.answered("b")]
  assert [m["role"] for m in tokenizer.messages(more)] == ["system", "user", "assistant", "user", "assistant"]
  assert tokenizer.messages([*ids, *tokenizer.encode("so far")])[-1]["content"] == "so far"
  refused("'tool'", tokenizer.render, [dict(role="tool", content="")])
  refused("not a chat", tokenizer.messages, tokenizer.encode("text"))


def test_the_command(place):
  with serving(searching) as (url, _):
    command = ["evaluate", "--config=search_r1", f"--data={place}/questions.jsonl.gz", f"--out={place}/command"]
    command += [f"--config.retrieval.index={place}/index"]
    named = ["--config.endpoint.model=m", f"--config.endpoint.url={url}", "--config.prompting.tokenizer=bytes"]
    named += ["--config.prompting.chat=False", "--config.endpoint.output_price=10", "--config.endpoint.input_price=2.5"]
    ragrl(*command, *named, says="10 calls, 1,000 tokens in, 100 tokens out, cost 0.0035")
    done = ragrl(*command)
  assert done.returncode == 2 and done.stderr.startswith("error: either a checkpoint answers")
