"""A program's requests become one episode: its tokens are those that were sampled, and what goes wrong is named."""

import asyncio
import contextlib
import gc
import json
import shlex
import sys
import textwrap
import threading
import time
import types
from unittest import mock

import agent_programs
import httpx
import patience
import pytest
import resident
import small_tokenizers
from scripted_chat import ChatPolicy, Tools, call

from ragrl_jax import recipes, structs
from ragrl_jax.agents.agent import program as program_lib, task as task_lib
from ragrl_jax.agents.agent.session import Session
from ragrl_jax.learner import packing
from ragrl_jax.prompting.huggingface import HuggingFaceTokenizer
from ragrl_jax.run import rewards
from ragrl_jax.store import episodes as episodes_lib
from ragrl_jax.structs import ENVIRONMENT, MODEL, Example
from ragrl_jax.testing import scripted

EXAMPLE = Example("q1", "Where is Rome?", ("Italy",))
CALL = call("search", query="Rome")


def played(name, policy, tools=None, **switches):
  recipe = recipes.get("agent", program=f"agent_programs:{name}", **switches)
  return recipe, scripted.run(recipe.play(EXAMPLE, policy, tools or Tools()))


def refused(says, name, policy, tools=None, **switches):
  with pytest.raises(structs.ToolFailed, match=says):
    played(name, policy, tools, **switches)


def test_a_tool_loop_is_one_conversation_token_by_token(tokenizer):
  policy = ChatPolicy(tokenizer, ["I look.\n" + CALL, "Italy"])
  recipe, episode = played("loop", policy, search=True)
  prompt, said, found, answer = episode.segments
  assert [s.owner for s in episode.segments] == [ENVIRONMENT, MODEL, ENVIRONMENT, MODEL] and not episode.starts
  # The client wrote the call's JSON anew, with other white space: the tokens are those that were sampled.
  assert said.ids == (*tokenizer.encode("I look.\n" + CALL), tokenizer.eos_ids[0])
  end, begin = "\n", "<|im_start|>"
  assert tokenizer.decode(found.ids) == "\n" + "tool\nRome is in Italy.\nassistant\n"
  whole = tokenizer.encode_template(f"{end}{begin}tool\nRome is in Italy.<|im_end|>\n{begin}assistant\n")
  assert list(found.ids) == whole and found.query == "Rome" and [p.id for p in found.found] == ["p"]
  assert "<tools>" in prompt.text and answer.text == "Italy" and episode.ended == "eos"
  assert episode.facts == dict(answer="Italy", requests=2, tool_calls=1, searches=1) and episode.num_searches == 1
  assert recipe.score(EXAMPLE, episode) == dict(answer=1.0) and recipe.outcome(EXAMPLE, episode) == 1.0
  assert recipe.measures(EXAMPLE, episode) == dict(requests=2, tool_calls=1, searches=1, errors=0.0, rewrites=0.0)
  (item,) = packing.of_episode(episode, (0.0, 1.0))
  assert [int(i) for i in item.tokens[item.loss_mask]] == [*said.ids, *answer.ids]


def test_a_rewritten_history_is_refused_with_its_turn(tokenizer):
  says = r"messages\[1\] \(assistant\) was 'Italy' and is now 'Something else.'"
  refused(says, "forgets", ChatPolicy(tokenizer, ["Italy", "no"]))
  says = r"messages\[0\] \(user\) was 'Where is Rome\?' and is now 'Well\?'"
  refused(says, "shortens", ChatPolicy(tokenizer, ["Italy", "no", "x"]))
  # The template may be the one that rewrites.
  forgetful = HuggingFaceTokenizer.__new__(HuggingFaceTokenizer)
  forgetful.__dict__.update(tokenizer.__dict__)
  forgetful.template = lambda messages, **how: "".join([f"{len(messages)}", *(m["content"] for m in messages)])
  says = "the chat template renders earlier turns differently"
  refused(says, "talks", ChatPolicy(forgetful, ["Italy"] * 3), max_requests=3)


def test_a_rewritten_history_is_split_into_rows_and_requests_at_the_same_time_are_answered_in_turn(tokenizer):
  recipe, episode = played("forgets", ChatPolicy(tokenizer, ["Spain", "Italy"]), rewritten="split")
  assert episode.starts == (2,) and [len(part) for part in episode.conversations] == [2, 2]
  assert [part[1].text for part in episode.conversations] == ["Spain", "Italy"]
  assert "messages[1] (assistant)" in episode.facts["rewrites"][0]
  assert recipe.measures(EXAMPLE, episode)["rewrites"] == 1.0
  # Each conversation is a row. The old turn is the environment's in the new row: it is trained once.
  scored = rewards.score(recipe, [EXAMPLE], [episode], 0)
  first, second = rewards.items(scored)
  assert tokenizer.decode(second.tokens).count("Something else.") == 1
  assert [tokenizer.decode(item.tokens[item.loss_mask]) for item in (first, second)] == ["Spain", "Italy"]
  assert first.rewards.tolist() == second.rewards.tolist() == [0.0, 1.0] and first.episode == second.episode == (0, 0)
  # It is kept so over a checkpoint, and in the log.
  saved = json.loads(json.dumps(episodes_lib.record(episode)))
  assert episodes_lib.of_record(saved).conversations == episode.conversations
  # A third conversation begins where it left out what was there.
  _, episode = played("shortens", ChatPolicy(tokenizer, ["a", "b", "c"]), rewritten="split")
  assert episode.starts == (4,) and episode.conversations[1][1].text == "c"
  _, episode = played("both", ChatPolicy(tokenizer, ["x", "y"]), rewritten="split")
  assert episode.starts == (2,) and {part[1].text for part in episode.conversations} == {"x", "y"}


def test_a_client_that_did_not_wait_for_its_reply_gets_it_when_it_asks_again(tokenizer):
  _, episode = played("impatient", ChatPolicy(tokenizer, lambda segments: time.sleep(0.6) or "Italy"))
  assert episode.facts == dict(answer="Italy", requests=1, tool_calls=0, searches=0) and len(episode.segments) == 2


def test_a_program_that_dies_or_hangs_is_named(tokenizer, caplog):
  refused("agent_programs:dies raised KeyError: 'the key", "dies", ChatPolicy(tokenizer, ["x"]))
  refused("exits raised SystemExit: usage", "exits", ChatPolicy(tokenizer, []))
  began, late = time.monotonic(), r"hangs gave no result within 0.3 s \(config.switches.timeout_s\)"
  refused(late, "hangs", ChatPolicy(tokenizer, ["x"]), timeout_s=0.3)
  assert time.monotonic() - began < 50
  refused("odd: it returned int: it must be a text, None or a mapping", "odd", ChatPolicy(tokenizer, []))
  refused("the index is gone", "loop", ChatPolicy(tokenizer, [CALL, "x"]), Tools(fails=True), search=True)
  away = mock.Mock(side_effect=structs.ToolFailed("the model's server is down"))
  refused("the model's server is down", "loop", ChatPolicy(tokenizer, away))
  assert "completions failed" not in caplog.text  # it is no internal error
  # By choice it is an episode without an answer.
  recipe, episode = played("dies", ChatPolicy(tokenizer, ["Italy"]), errors="score")
  assert episode.facts["answer"] is None and "KeyError" in episode.facts["error"]
  assert recipe.score(EXAMPLE, episode) == dict(answer=0.0) and recipe.measures(EXAMPLE, episode)["errors"] == 1.0


def test_the_policys_limits_are_no_failure(tokenizer):
  recipe, episode = played("talks", ChatPolicy(tokenizer, ["x"] * 9), max_requests=2)
  assert episode.ended == "requests" and episode.facts["requests"] == 2 and "HTTPStatusError" in episode.facts["error"]
  assert recipe.score(EXAMPLE, episode) == dict(answer=0.0)
  _, episode = played("talks", ChatPolicy(tokenizer, ["x"] * 9, room=80))
  assert episode.ended == "budget" and 1 <= episode.facts["requests"] < 9
  _, episode = played("retries", ChatPolicy(tokenizer, ["Italy"], room=120), search=True)
  assert episode.facts["answer"] == "Italy" and not episode.starts and episode.segments[0].query == "Rome"
  _, episode = played("silent", ChatPolicy(tokenizer, []))
  assert episode.ended == "silent" and episode.num_model_tokens == 0 and episode.facts["answer"] == "Italy"


def test_coroutines_and_what_a_program_returns(tokenizer):
  recipe, episode = played("coroutine", ChatPolicy(tokenizer, ["Rome"]), reward="program")
  counts = dict(requests=1, tool_calls=0, searches=0)
  assert episode.facts == dict(answer="Rome", reward=0.25, steps=[1, 2], why="It says so.", **counts)
  assert recipe.score(EXAMPLE, episode) == dict(answer=0.25) and recipe.outcome(EXAMPLE, episode) == 0.0


def test_a_command_reads_its_task_and_prints_its_answer(tmp_path, tokenizer):
  script = tmp_path / "agent.py"
  script.write_text(
    textwrap.dedent("""
      import json, os, subprocess, sys, urllib.request
      subprocess.Popen(["sleep", "9999"])  # it holds the output open
      task = json.loads(sys.stdin.readline())
      assert "golds" not in task and os.environ["OPENAI_BASE_URL"] == task["base_url"]
      body = json.dumps(dict(model="any", messages=[dict(role="user", content=task["question"])])).encode()
      request = urllib.request.Request(task["base_url"] + "/chat/completions", body)
      said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
      print("something else")
      print(json.dumps(dict(answer=said, reward=1)))
      sys.exit(int(task["question"] == "Fail?"))
    """)
  )
  recipe = recipes.get("agent", program=f"command:{shlex.join([sys.executable, str(script)])}")
  play = lambda example: scripted.run(recipe.play(example, ChatPolicy(tokenizer, ["Italy"]), Tools()))
  episode = play(EXAMPLE)
  assert episode.facts == dict(answer="Italy", requests=1, tool_calls=0, searches=0, reward=1.0)
  with pytest.raises(structs.ToolFailed, match="ended with status 1"):
    play(Example("q", "Fail?", ("x",)))
  script.chmod(0o755)
  recipe = recipes.get("agent", program=f"command:{script}")
  script.unlink()
  with pytest.raises(structs.ToolFailed, match="could not be started"):
    play(EXAMPLE)


@pytest.mark.parametrize("make, end, start", [
  (small_tokenizers.byte_level, "<|im_end|>", "<|im_start|>"),
  (small_tokenizers.gemma_like, "<end_of_turn>", "<start_of_turn>"),
])  # fmt: skip
def test_a_text_prompt_keeps_its_control_tokens_whatever_the_replys_tokens(tmp_path, make, end, start):
  tokenizer = HuggingFaceTokenizer(make(tmp_path))
  names = tokenizer.control_names
  eos = next(i for i, name in names.items() if name == end)
  first = tokenizer.render([dict(role="user", content="Who?")])
  reading = types.SimpleNamespace(_reading=types.SimpleNamespace(tokenizer=tokenizer))
  for reply in (tokenizer.encode("Kormin"), [token for letter in "Kormin" for token in tokenizer.encode(letter)]):
    text = "".join(names.get(i) or tokenizer.decode([i]) for i in first + reply)
    for after in (f"{end}\n{start}user\nWhy?", "\nnext"):
      prompt = tokenizer.encode_template(text + after)
      for ended in (True, False) if after.startswith(end) else (False,):
        record = types.SimpleNamespace(ids=first + reply + [eos] * ended)
        new = Session._text_after(reading, record, prompt)
        assert "".join(names.get(i) or tokenizer.decode([i]) for i in new) == after.removeprefix(end * ended)


def test_rewards(tokenizer):
  def terms(reply, verdict=1.0, **switches):
    recipe, episode = played("stops", ChatPolicy(tokenizer, [reply]), Tools(verdict=verdict), stops="!", **switches)
    return recipe.score(EXAMPLE, episode)["answer"], recipe.outcome(EXAMPLE, episode)

  assert terms("The Italy!") == (1.0, 1.0) and terms("In Italy!") == (0.0, 0.0)
  assert terms("In Italy!", reward="f1") == (pytest.approx(2 / 3), 0.0)
  assert terms("A boot", reward="judge") == (1.0, 1.0) and terms("A boot", 0.0, reward="judge") == (0.0, 0.0)
  assert terms("A boot", None, reward="judge") == (None, None)
  assert terms("Italy", reward="agent_programs:paid") == (0.5, 1.0)
  assert terms("Spain", reward="agent_programs:paid") == (None, 0.0)
  assert terms("Italy", reward="program") == (None, 1.0)


def test_stop_strings_are_cut_from_the_text_alone_and_without_parallel_calls_a_reply_ends_with_its_first(tokenizer):
  _, episode = played("stops", ChatPolicy(tokenizer, ["Italy! Or not"]), stops="!|?")
  assert episode.facts["answer"] == "Italy" and episode.segments[1].text == "Italy!" and episode.ended == "!"
  refused("stop='!': the run's engine does not know it", "stops", ChatPolicy(tokenizer, ["Italy!"]))


@pytest.mark.parametrize("thought", ["", f"<think>Not {CALL}, I look.</think>\n"])
def test_without_parallel_calls_a_reply_ends_with_its_first_call(tokenizer, thought):
  _, episode = played("one_call", ChatPolicy(tokenizer, [f"{thought}{CALL}\n{CALL}"]))
  assert episode.facts["tool_calls"] == 1 and episode.segments[1].text == thought + CALL
  assert episode.ended == "</tool_call>"


@pytest.mark.parametrize("switches, says", [
  (dict(program="some.py:run"), "there is no file some.py"),
  (dict(program="no.such.module:run"), "No module named 'no"),
  (dict(program="ragrl_jax.agents.agent.programs.ask:walk"), "has no function walk"),
  (dict(program="run"), "must be FILE.py:FUNCTION or MODULE:FUNCTION"), (dict(program="command: "), "no command after"),
  (dict(program="command:/no/such/file"), "config.switches.program: there is no command '/no/such/file'"),
  (dict(program="command:sh 'x"), "is no command: No closing quotation"),
  (dict(program="os:getcwd"), "must be a function of the task alone .too many"),
  (dict(reward="em2"), "must be em, f1, judge, program or FILE.py:FUNCTION"),
  (dict(reward="some.py:paid"), "config.switches.reward='some.py:paid': there is no file"),
])  # fmt: skip
def test_wrong_switches_are_refused_before_anything_runs(switches, says):
  with pytest.raises(ValueError, match=says):
    recipes.get("agent", **switches)


def test_results_that_cannot_be_read():
  rewards_ = (dict(reward=value) for value in ("x", float("nan"), 10**400))
  own = (dict(rewrites=2), dict(error="x"), dict(searches=7))
  for returned in (3, dict(answer=3), *rewards_, dict(more=object()), *own):
    with pytest.raises(ValueError, match="must be|no JSON|uses for its own counts"):
      task_lib.read(returned)


def test_the_endpoint_answers_its_episode_alone(tokenizer):
  _, episode = played("look", ChatPolicy(tokenizer, ["Italy is there"]))
  seen = agent_programs.SEEN
  assert episode.facts["answer"] == "done" and episode.facts["requests"] == 1
  status = {name: said.status_code for name, said in seen.items() if isinstance(said, httpx.Response)}
  assert status == dict(host=400, site=403, key=410, n=400, search=400, k=400, page=404, get=405, models=200)
  parts = [json.loads(line.removeprefix("data: ")) for line in seen["stream"][:-1]]
  assert "".join(part["choices"][0]["delta"].get("content", "") for part in parts) == "Italy is there"
  assert seen["stream"][-1] == "data: [DONE]" and seen["url"].startswith("http://127.0.0.1:")
  late = httpx.post(f"{seen['url']}/chat/completions", json=dict(messages=[]), timeout=60)
  assert late.status_code == 410 and "no episode" in late.json()["error"]["message"]


def test_the_endpoint_ends_with_its_recipe(tokenizer):
  played("coroutine", ChatPolicy(tokenizer, ["Italy"]))  # the loop of coroutines is one for all recipes
  gc.collect()
  servers = lambda: {thread for thread in threading.enumerate() if thread.name in ("gateway", "toolbox")}
  before = servers()
  recipe, _ = played("coroutine", ChatPolicy(tokenizer, ["Italy"]))
  (mine,) = servers() - before
  again = scripted.run(recipe.play(EXAMPLE, ChatPolicy(tokenizer, ["Rome"]), Tools()))
  assert again.segments[-1].text == "Rome" and mine.is_alive()  # one server for all episodes
  del recipe
  gc.collect()
  patience.until(lambda: not mine.is_alive())


def test_programs_run_a_few_at_a_time(tokenizer):
  recipe = recipes.get("agent", program="agent_programs:slow", at_once=2)

  async def all_of_them():
    one = lambda number: recipe.play(Example(str(number), "x", ("y",)), ChatPolicy(tokenizer, []), Tools())
    await asyncio.gather(*map(one, range(6)))

  scripted.run(all_of_them())
  assert len(agent_programs.MOST) == 6 and max(agent_programs.MOST) == 2


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_command_that_prints_without_end_is_stopped(stream):
  code = f"import sys\nwhile True: sys.{stream}.write('word ' * 10000)"
  program = program_lib.Program(f'command:{shlex.quote(sys.executable)} -c "{code}"')
  task = task_lib.Task("q", "Q?", (), "http://127.0.0.1:1/v1", timeout_s=300.0)
  before = resident.peak()
  with pytest.raises(program_lib.Died, match=f"printed more than {1 << 20} bytes"):
    asyncio.run(program.run(task))
  assert resident.peak() - before < 50 << 20


def test_long_answers_and_facts_are_not_kept():
  long = "word " * (1 << 20)
  assert task_lib.read(long).answer == task_lib.read(dict(answer=long)).answer == long[: 1 << 20]
  with pytest.raises(ValueError, match="its facts have 5242[0-9]+ characters as JSON"):
    task_lib.read(dict(answer="x", log=long))


def test_functions_that_hang_are_bounded_and_a_coroutine_that_never_awaits_is_named(monkeypatch):
  monkeypatch.setattr(program_lib, "MOST_LATE", 2)
  monkeypatch.setattr(program_lib, "LOOP_S", 0.2)
  agent_programs.FREE.clear()
  task = task_lib.Task("q", "Q?", (), "http://127.0.0.1:1/v1", timeout_s=0.1)
  made = lambda name: program_lib.Program(f"agent_programs:{name}")
  hanging, blocking, fine = map(made, ("sleeps", "never_awaits", "at_once"))

  async def all_of_them():
    before = threading.active_count()
    for said in ["gave no result within 0.1 s"] * 2 + ["2 earlier calls still run in their threads"] * 3:
      with pytest.raises(program_lib.Died, match=said):
        await hanging.run(task)
    assert threading.active_count() <= before + 2
    held = asyncio.gather(blocking.run(task), fine.run(task), return_exceptions=True)
    assert "never_awaits is an `async def` that does not await" in str((await held)[1])

  asyncio.run(all_of_them())
  agent_programs.FREE.set()

  async def later():
    while True:  # the threads end, and the loop runs again
      with contextlib.suppress(program_lib.Died):
        return await fine.run(task)

  assert asyncio.run(later()).answer == "Italy"
