"""The data of the warm start, made over real HTTP with a scripted server."""

import asyncio
import collections
import contextlib
import json
import sqlite3
import threading
import types

import pytest
from console import ragrl
from patience import reached
from refusals import refused
from scripted_server import serving

from ragrl_jax import recipes
from ragrl_jax.chat import client
from ragrl_jax.cli import generation
from ragrl_jax.data import readers, writers
from ragrl_jax.recipes.care import generate
from ragrl_jax.structs import Episode, Example, Passage, ToolFailed

PASSAGES = Passage("a", "Tower", "The tower stands in Paris. It is tall."), Passage("b", "Paris", "Paris is in France.")
FACTS = ((0, "The tower stands in Paris."), (1, "Paris is in France."))


def question(name, **fields):
  return Example(name, f"Question {name}?", ("France",), **{**dict(passages=PASSAGES, evidence=FACTS), **fields})


@contextlib.contextmanager
def answering(answer, together=1):
  """A server that answers by `answer(model, prompt) → text, dict (a whole message), status, or event to wait for`.

  No answer is sent before `together` requests were open at the same time.
  """

  def reply(messages, number):
    said = answer(server.asked[number - 1]["model"], messages[-1]["content"])
    if isinstance(said, threading.Event):
      return lambda: reached(said.is_set), "late"
    if isinstance(said, dict):
      said = dict(choices=[dict(finish_reason="stop", message=dict(role="assistant", **said))])
    return lambda: reached(lambda: server.most >= together), said

  with serving(reply) as (server_url, server):
    server.url = server_url
    yield server


@pytest.fixture
def serve():
  with contextlib.ExitStack() as stack:
    yield lambda *how: stack.enter_context(answering(*how))


def prompts(server, model=None):
  """The prompts that the server, or one of its models, was asked."""
  return [body["messages"][-1]["content"] for body in server.asked if model in (None, body["model"])]


def endpoint(server, model, folder, **settings):
  sampling = settings.pop("sampling", None)
  made = client.Client(server.url, model, **dict(timeout_s=60.0, deadline_s=60.0, retries=2, backoff_s=0.01) | settings)
  return client.CachedClient(made, folder / "answers", sampling=sampling)


def run(server, examples, folder, **settings):
  models = [endpoint(server, name, folder, **settings) for name in ("reads", "inserts")]
  return asyncio.run(generate.transcripts(examples, *models, concurrency=4))


REASONED = "I need to know where it stands. Then the country."
WOVEN = "First: The tower stands in Paris. Then: Paris is in France. So The tower stands in Paris. It is France."


def by_question(model, prompt):
  if "Question refused?" in prompt:
    return 400
  if "Question wrong?" in prompt:
    return f"{REASONED} Answer: Spain"
  if model == "reads":
    if "Question apart?" in prompt:
      return dict(content="Answer: the France", reasoning=REASONED)
    return f"<think>{REASONED}</think> It is so. Answer: France"
  if "Question changed?" in prompt:
    return WOVEN.replace("Paris is in France.", "Paris lies in France.")
  if "Question tagged?" in prompt:
    return f"<think>{WOVEN}"
  return WOVEN


def test_which_transcripts_are_kept(serve, tmp_path):
  server = serve(by_question, 2)
  examples = [question(name) for name in ("good", "wrong", "apart", "changed", "tagged")]
  examples += [question("bare", evidence=()), question("elsewhere", evidence=((0, "The tower stands in Rome."),))]
  kept, counts = run(server, examples, tmp_path)
  assert [example.id for example, _ in kept] == ["good", "apart"]
  assert counts == {"kept": 2, "wrong answer": 1, "evidence changed": 1, "tags": 1, "no evidence": 2}
  reads, inserts = prompts(server, "reads"), prompts(server, "inserts")
  assert len(reads) == 5 and len(inserts) == 4 and 1 < server.most <= 4
  assert all("It is tall." in prompt for prompt in reads) and not any("It is tall." in prompt for prompt in inserts)
  assert all(REASONED in p and "\nThe tower stands in Paris.\nParis is in France.\n" in p for p in inserts)

  recipe = recipes.get("care")
  for example, turns in kept:
    terms = recipe.score(example, Episode.from_text(recipe, example, turns))
    assert terms == dict(accuracy=1.0, format=1.0, retrieval=1.0)
    assert recipe.parser.quotes(turns[0][1]) == [FACTS[0][1], FACTS[1][1], FACTS[0][1]]

  # Again with one more question: only the missing one is asked.
  before = len(server.asked)
  again, _ = run(server, [*examples, question("new")], tmp_path)
  assert [prompt.count("Question new?") for prompt in prompts(server)[before:]] == [1, 1]
  assert again[:2] == kept


def test_an_endpoint_that_fails_now_and_then(serve, tmp_path):
  over = threading.Event()
  script = [503, 429, "Answer: x", 500, 500, 500, over]
  server = serve(lambda model, prompt: script.pop(0))
  ask = lambda text, **settings: asyncio.run(
    endpoint(server, "reads", tmp_path, **settings).ask([dict(role="user", content=text)])
  )
  assert ask("one", sampling=dict(temperature=0.5)) == client.Completion("Answer: x")  # at the third attempt
  assert server.asked[0]["temperature"] == 0.5
  refused("gave no answer after 3 calls: status 500", ask, "two", error=ToolFailed)
  assert len(server.asked) == 6
  refused("NoAnswerInTime", ask, "three", error=ToolFailed, deadline_s=0.2)  # before its answer
  over.set()
  script[:] = ["now", "too"]
  assert ask("two").content == "now" and ask("two").content == "now"  # failures are not stored, answers are
  assert ask("two", sampling=dict(temperature=0.1)).content == "too"  # other sampling is another question


def test_invalid_settings_stop_the_job_at_once(serve, tmp_path, monkeypatch):
  monkeypatch.setattr(client, "DEAD", 6)
  server = serve(lambda model, prompt: 401)
  with pytest.raises(ConnectionError, match="reads at http://.*status 401.*Check the address, the model and the key"):
    run(server, [question(str(number)) for number in range(30)], tmp_path)
  assert len(server.asked) < 20  # the calls in progress
  server = serve(lambda model, prompt: 500)
  with pytest.raises(ConnectionError, match="status 500"):  # no server there
    run(server, [question(str(number)) for number in range(30)], tmp_path, retries=0)
  assert 6 <= len(server.asked) < 20
  kept, counts = run(server, [question("a"), question("b")], tmp_path, retries=0)
  assert not kept and counts == {"no answer": 2}
  refused("http://", client.Client, "localhost:8000", "m")


def test_a_question_that_is_refused_is_skipped_counted_and_asked_again_at_the_end(serve, tmp_path, caplog):
  """One question in twenty is refused for good, and one failure is temporary."""
  failed = []

  def answer(model, prompt):
    if "Question 7?" in prompt:
      failed.append(7)
      return 400
    if "Question 9?" in prompt and 9 not in failed:
      failed.append(9)
      return 503
    return by_question(model, prompt)

  server = serve(answer)
  kept, counts = run(server, [question(str(number)) for number in range(20)], tmp_path, retries=0)
  assert [example.id for example, _ in kept] == [str(number) for number in range(20) if number != 7]
  assert counts == {"kept": 19, "no answer": 1} and failed.count(7) == 2
  assert len(caplog.records) == 1 and "2 of 20 questions got no answer" in caplog.text


def test_the_exit_status_says_if_too_many_are_missing(monkeypatch, capsys):
  monkeypatch.setattr(generation, "MAX_MISSING", types.SimpleNamespace(value=0.05))
  generation.report(collections.Counter({"kept": 19, "no answer": 1}), "OUT")
  assert capsys.readouterr().out == "     19  kept\n      1  no answer\nOUT\n"
  with pytest.raises(SystemExit, match="2 of 20 questions got no answer.*--max_missing=0.05"):
    generation.report(collections.Counter({"kept": 18, "no answer": 2}), "OUT")


def test_of_nested_facts_the_longest_is_wrapped():
  text = generate.wrapped("a b c. b c. (a)", ["b c.", "a b c.", "(a)"])
  assert text == "<retrieval>a b c.</retrieval> <retrieval>b c.</retrieval> <retrieval>(a)</retrieval>"


def test_the_launcher(serve, tmp_path):
  server = serve(by_question)
  writers.write_examples(tmp_path / "asked.jsonl", [question("good"), question("wrong"), question("refused")])
  files = [f"--{flag}={tmp_path}/{name}" for flag, name in (("data", "asked.jsonl"), ("out", "sft.jsonl.gz"))]
  urls = [f"--{who}_url={server.url}" for who in ("reasoner", "inserter")]
  models = [*urls, "--reasoner_model=reads", "--inserter_model=inserts"]
  done = ragrl("make-care-sft", *files, f"--answers={tmp_path}/answers", *models)
  assert done.returncode == 1 and "1 of 3 questions got no answer" in done.stderr, done.stderr
  assert "1  kept" in done.stdout and "1  wrong answer" in done.stdout and "1  no answer" in done.stdout
  (made,) = readers.read_examples(tmp_path / "sft.jsonl.gz")
  assert made.id == "good" and made.meta["turns"][0][1].startswith("<think>\nFirst: <retrieval>The tower")
  with contextlib.closing(sqlite3.connect(tmp_path / "answers")) as connection:
    kept = [json.loads(value) for (value,) in connection.execute("SELECT value FROM entries")]
  assert {answer["question"]["max_tokens"] for answer in kept} == {4096} and kept[0]["reply"]["content"]
