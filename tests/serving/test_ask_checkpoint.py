"""A question asked live: what is told while it is answered is the episode that a rollout plays."""

import asyncio
import contextlib
import io
import itertools
import types
from unittest import mock

import asked
import pytest
import small_engine as kit
from console import ragrl

from ragrl_jax import recipes, structs
from ragrl_jax.judging import judge_api
from ragrl_jax.recipes import steps as steps_lib
from ragrl_jax.rollout.tools import RetrievalTools
from ragrl_jax.serving import ask_checkpoint, live_text
from ragrl_jax.structs import Example

QUESTION = Example("q", "Where was Kormin born?", ("Tolper",))


def ask(asker, example=QUESTION, shown=None, **how):
  """(answers, everything told, which `shown` is told too)."""
  told = []
  tell = lambda event: told.append(event) or (shown and shown.tell(event))
  with contextlib.closing(asker):
    return asyncio.run(asker.ask(example, tell=tell, **how)), told


def test_everything_is_told_as_it_happens():
  (answer,), told = ask(asked.asker(asked.SEARCHED))
  kinds = [event["event"] for event in told]
  assert [kind for kind, _ in itertools.groupby(kinds)] == "prompt said searching found said answer".split()
  assert kinds.count("said") > 4  # slices of five tokens
  said = "".join(event["text"] for event in told if event["event"] == "said")
  assert said == "".join(asked.SEARCHED)
  assert next(e["query"] for e in told if e["event"] == "searching") == "birthplace of Kormin"
  found = next(e for e in told if e["event"] == "found")
  assert [p["id"] for p in found["passages"]] == ["7", "8"] and found["query"] == "birthplace of Kormin"
  assert told[-1] is answer and answer["answer"] == "Tolper" and answer["outcome"] == 1 and answer["searches"] == 1
  runs = [run for segment in answer["trace"]["segments"] if segment["owner"] == "model" for run in segment["runs"]]
  assert ["Kormin was born in Tolper.", "found", "stands in passage 1, Kormin"] in runs
  assert ["[1]", "cite", "cites passage 1, Kormin"] in runs
  assert [s["owner"] for s in answer["episode"]["segments"]] == ["environment", "model", "environment", "model"]


def test_a_question_with_its_own_passages():
  text = "<relevance>[1]</relevance>\n<analysis>see 1</analysis>\n<answer>Tolper</answer>"
  example = Example("q", "Where was he born?", ("Tolper",), tuple(asked.TOWNS), supporting=(0,))
  asker = asked.asker((text,), recipe="arena")
  (answer,), told = ask(asker, example)
  prompt = bytes(asker.player.engine.prompts[0]).decode()
  assert "Kormin was born in Tolper." in prompt and told[0] == dict(told[0], event="prompt", text=prompt)
  assert (answer["answer"], answer["outcome"], answer["searches"]) == ("Tolper", 1, 0)
  runs = answer["trace"]["segments"][1]["runs"]
  assert any(kind == "cite" and "Kormin" in where for _, *more in runs if more for kind, where in [more]), runs


@pytest.mark.parametrize("greedy", [True, False])
def test_the_tokens_are_those_of_a_rollout(greedy):
  prompt = types.SimpleNamespace(messages=lambda example: [dict(role="user", content=example.question)])
  parser = types.SimpleNamespace(answer=lambda text: None)
  recipe = types.SimpleNamespace(tool_tokens=None, play=kit.play, prompt=prompt, parser=parser, needs_passages=False)
  recipe.outcome = lambda example, episode: 0.0
  whole = kit.rollout(kit.engine()).run(kit.requests(1, 3), step=0, greedy=greedy)
  episodes = []

  async def play(example, policy, tools):
    episodes.append(await kit.play(example, policy, tools))
    return episodes[-1]

  one = asked.asker((), recipe=recipe, engine=kit.engine(), play=play, tools=kit.Tools(), max_new_tokens=12)
  answers, told = ask(one, kit.requests(1, 1)[0].example, samples=3, greedy=greedy)
  by_sample = {episode.sample: episode for episode in episodes}
  assert [kit.drawn(by_sample[i]) for i in range(3)] == [kit.drawn(episode) for episode in whole]
  for sample, episode in enumerate(whole):
    said = "".join(e["text"] for e in told if e["event"] == "said" and e["sample"] == sample)
    assert said == "".join(s.text for s in episode.segments if s.owner == structs.MODEL)
    assert answers[sample]["tokens"] == episode.num_model_tokens
  assert not kit.engine()._conversations


class Judge:
  """Records its pairs, and answers with what the test says; an error is raised.

  By default, it finds that a claim follows if the basis holds its last word.
  """

  pace = types.SimpleNamespace(workers=1, batch=8, deadline_s=120.0)

  def __init__(self, says="the last word"):
    self.says, self.pairs = says, []

  def judge(self, pairs):
    self.pairs += pairs
    if isinstance(self.says, Exception):
      raise self.says
    follows = [float(claim.split()[-1].strip('."') in basis) for basis, claim in pairs]
    return follows if self.says == "the last word" else [self.says] * len(pairs)


def test_a_judge_reads_the_steps_of_a_recipe_that_has_none():
  texts = (asked.SEARCHED[0], "<think>He is from Nowhere</think><answer>Nowhere</answer>")
  (answer,), told = ask(asked.asker(texts, judge=Judge()))
  assert sum(event["event"] == "judging" for event in told) == 3 and answer["outcome"] == 0
  verdicts = {step["term"]: step["verdict"] for step in answer["trace"]["judged"]}
  assert verdicts == dict(think_search=0.0, information_think=0.0, think_answer=1.0)


def test_each_step_is_judged_by_the_judge_of_its_kind():
  judges = {name: Judge(1.0) for name in ("", *steps_lib.TERMS)}
  (answer,), _ = ask(asked.asker(asked.SEARCHED, judge=judges))
  thought = 'It says "Kormin was born in Tolper." [1]'
  assert judges[""].pairs == [] and judges["think_search"].pairs == [("I look it up.", "birthplace of Kormin")]
  assert judges["think_answer"].pairs == [(thought, "Tolper")]
  ((results, claim),) = judges["information_think"].pairs
  assert results.startswith("Doc 1(Title: Kormin)") and claim == thought
  assert not answer["no_verdict"] and len(answer["trace"]["judged"]) == 3


@pytest.mark.parametrize("says, why", [
  (judge_api.JudgeFailed("no verdict: the server is down"), "the server is down"), (None, "could not be read"),
])  # fmt: skip
def test_a_verdict_that_did_not_come_is_told_with_its_reason(says, why):
  file = io.StringIO()
  judges = {name: Judge(says if name == "think_search" else 1.0) for name in steps_lib.TERMS}
  (answer,), _ = ask(asked.asker(asked.SEARCHED, judge=judges), shown=live_text.LiveText(file))
  assert answer["ended"] == "answer" and why in answer["no_verdict"] == answer["episode"]["facts"][structs.NO_VERDICT]
  verdicts = {step["term"]: step["verdict"] for step in answer["trace"]["judged"]}
  assert verdicts == dict(information_think=1.0, think_search=None, think_answer=1.0)
  lines = file.getvalue().splitlines()
  assert "     judged │ no verdict · query after its thought: birthplace of Kormin" in lines
  assert any(line.startswith(" no verdict │ ") and why in line for line in lines)
  assert lines[-1].endswith("ended by answer; right; no verdict on 1 of 3 steps")


def test_the_judge_of_a_recipe_that_fails_ends_no_answer():
  judge = Judge(judge_api.JudgeFailed("the server is down"))
  veritas = recipes.get("veritas", None, instructions="none")  # asks about (results, thought) itself
  (answer,), _ = ask(asked.asker(asked.SEARCHED, recipe=veritas, judge=judge))
  assert (answer["answer"], answer["ended"], answer["no_verdict"]) == ("Tolper", "answer", "the server is down")
  assert len(judge.pairs) == 3 and [step["verdict"] for step in answer["trace"]["judged"]] == [None] * 3


def test_the_answer_to_a_question_without_right_answers_is_not_judged():
  judge, example = Judge(1.0), Example("q", "Where?", (), tuple(asked.TOWNS))
  for recipe, switches, text in (
    ("arena", dict(accuracy="judge"), "<analysis>see 1</analysis>\n<answer>Tolper</answer>"),
    ("when_to_search", dict(similarity="ngrams"), "<think>I know</think><answer>Tolper</answer>"),
    ("untrained", dict(correctness="judge", method="closed_book"), "<answer>Tolper</answer>"),
  ):
    recipe = recipes.get(recipe, None, **switches)
    (answer,), _ = ask(asked.asker((text,), recipe=recipe, judge={"": judge}), example)
    assert answer["ended"] != "failed" and judge.pairs == [], recipe.name


def test_a_search_that_fails_ends_the_answer():
  down = types.SimpleNamespace(search=mock.Mock(side_effect=structs.ToolFailed("no retriever answers")))
  (answer,), told = ask(asked.asker(asked.SEARCHED[:1], tools=RetrievalTools(down)))
  assert (answer["ended"], answer["failure"], answer["outcome"]) == ("failed", "no retriever answers", None)
  assert told[-1] is answer


def test_questions_that_cannot_be_asked():
  for example, recipe, says in (
    (Example("q", " ", ()), "search_r1", "the question is empty"),
    (Example("q", "x" * 100_001, ()), "search_r1", "the question: no prompt fits"),
    (Example("q", "Who?", ()), "arena", "arena needs questions with passages"),
  ):
    with pytest.raises(ValueError, match=says):
      ask(asked.asker((), recipe=recipe), example)


def test_the_command_refuses_such_a_question_before_the_model_is_read(tmp_path):
  (tmp_path / "config.json").write_text("{}")  # enough of a model folder to be found
  (tmp_path / "model.safetensors").write_bytes(b"")
  told = ragrl("ask", "--config=arena:smoke", f"--checkpoint={tmp_path}", "Who?")
  assert told.returncode == 2 and "arena needs questions with passages" in told.stderr, told.stderr


def test_agreement_and_conversations_by_hand():
  answers = ["the Tolper.", None, "tolper", "Danbel", None]
  want = [("the Tolper.", 2, 0.4), (None, 2, 0.4), ("Danbel", 1, 0.2)]
  assert ask_checkpoint.agreement(answers) == [dict(answer=one, count=n, share=share) for one, n, share in want]
  assert ask_checkpoint.in_conversation([], "Who?") == "Who?"
  asked_again = ask_checkpoint.in_conversation([("Who?", "Kormin")], "Where?")
  assert asked_again == "Earlier question: Who?\nEarlier answer: Kormin\nQuestion now: Where?"


def test_the_terminal_shows_the_trace_and_obeys_none_of_it():
  texts = (
    "<think>I look\nit up.</think><search>\x1b[2Jbirthplace</search>",
    '<think>It says "Kormin was born in Tolper." [1]</think><answer>Tolper \x1b]0;x\x07</answer>',
  )
  file = io.StringIO()
  ask(asked.asker(texts, judge=Judge()), shown=live_text.LiveText(file))
  text = file.getvalue()
  assert not any(not sign.isprintable() and sign != "\n" for sign in text)
  lines = text.splitlines()
  assert all(line[11:14] == " │ " and len(line) <= 214 for line in lines)
  for line in (
    "      model │ <think>I look",
    r"            │ it up.</think><search>\x1b[2Jbirthplace</search>",
    r"     search │ \x1b[2Jbirthplace",
    "      found │ 1 Kormin: Kormin was born in Tolper. He is a smith.",
    "     quotes │ ✓ “Kormin was born in Tolper.” stands in passage 1, Kormin",
    "      cites │ [1]: cites passage 1, Kormin",
    "     judged │ does not follow · query after its thought: " + r"\x1b[2Jbirthplace",
  ):
    assert line in lines, text
  assert any(line.startswith(r"     answer │ Tolper \x1b]0;x\x07") for line in lines), text
  assert "1 search, " in lines[-1] and lines[-1].endswith("ended by answer; wrong")
  without = Example("q", "Where?", ())  # right answers
  ask(asked.asker(asked.SEARCHED), without, shown=live_text.LiveText(file))
  assert file.getvalue().endswith("ended by answer\n")
