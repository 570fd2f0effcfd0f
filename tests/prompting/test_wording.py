"""Prompts from a user's own file: how it is read, what is refused, and who takes one."""

import dataclasses

import pytest
from refusals import refused

from ragrl_jax import recipes
from ragrl_jax.judging import prompts
from ragrl_jax.prompting import wording
from ragrl_jax.structs import Example, Passage
from ragrl_jax.testing import scripted

EXAMPLE = Example("1", "Is {question} a {name}?", ("no",))
KNOWN = {"paper": "Answer: {question}", "none": "{question}"}


def file(tmp_path, text):
  path = tmp_path / "wording.txt"
  path.write_bytes(text if isinstance(text, bytes) else text.encode())
  return f"file:{path}"


def chosen(choice, **more):
  return wording.resolve(choice, KNOWN, **dict(setting="config.x", needs=("question",), may=("titles",)) | more)


def test_a_name_and_a_file_are_filled_in_once(tmp_path):
  assert chosen("paper").messages(question="{question}") == [dict(role="user", content="Answer: {question}")]
  # Other braces are text, doubled ones stand for single ones, and a value is never filled in.
  mine = chosen(file(tmp_path, 'É {{titles}} {"a": 1} {} {question}{titles}\n\n'))
  want = dict(role="user", content='É {titles} {"a": 1} {} {titles}T\n')
  assert mine.messages(question="{titles}", titles="T") == [want]


def test_roles(tmp_path):
  text = "\ufeff[system]\r\nRules.\r\n\r\n[user]\r\nAsk {question}\r\n[assistant]\r\n<think>\r\n"
  said = [(message["role"], message["content"]) for message in chosen(file(tmp_path, text)).messages(question="Q")]
  assert said == [("system", "Rules.\n"), ("user", "Ask Q"), ("assistant", "<think>")]
  # Only a file that begins with a role has roles; and where a text is wanted, none has.
  assert chosen(file(tmp_path, "{question}\n[user]\nx")).text(question="Q") == "Q\n[user]\nx"
  assert chosen(file(tmp_path, "[user]\n{question}"), roles=False).text(question="Q") == "[user]\nQ"


@pytest.mark.parametrize(("text", "said"), [
  ("no place", "the placeholder {question} is missing"),
  ("{question} {quesion}", "{quesion} is not a placeholder here; there is {question}, {titles}. Write {{quesion}}"),
  (" \n", "the file is empty"), ("[user]\n{question}\n[system]\n\n", "the message under [system] is empty"),
  (b"\xff{question}", "must be UTF-8 text (invalid start byte at byte 0)"),
])  # fmt: skip
def test_a_bad_file_is_refused_in_one_line(tmp_path, text, said):
  name = file(tmp_path, text)
  with pytest.raises(ValueError) as error:
    chosen(name)
  assert str(error.value).startswith(f"config.x={name}: ") and said in str(error.value) and "\n" not in str(error.value)


def test_what_is_no_file_and_no_name_is_refused(tmp_path):
  for choice, says in (
    ("papr", r"config\.x='papr': it must be 'paper', 'none' or 'file:PATH'\."),
    (f"file:{tmp_path / 'nothing'}", r"config\.x=file:.*nothing: the file cannot be read \(No such file"),
    (f"file:{tmp_path}", r"cannot be read \(Is a directory"),
  ):
    refused(says, chosen, choice)


ASKS = ("Q: {question}", f"Q: {EXAMPLE.question}", "question")
SHOWN = dataclasses.replace(EXAMPLE, passages=(Passage("1", "T", "One."), Passage("2", "U", "Two.")))


@pytest.mark.parametrize(("name", "text", "user", "needs"), [
  ("search_r1", *ASKS), ("veritas", *ASKS), ("when_to_search", *ASKS), ("untrained", *ASKS),
  ("released", "Q: {question}, \\boxed{}", f"Q: {EXAMPLE.question}, \\boxed{{}}", "question"),
  ("arena", "{question}\n{references} {[1,5]}", f"{EXAMPLE.question}\n1. One.\n2. Two. {{[1,5]}}", "references"),
  ("lear", "{question}\nP {passages}", f"{EXAMPLE.question}\nP 1. T: One.\n2. U: Two.", "passages"),
])  # fmt: skip
def test_recipes_take_instructions_from_a_file(name, text, user, needs, tmp_path):
  recipe = recipes.get(name, instructions=file(tmp_path, f"[system]\nMine.\n[user]\n{text}"))
  assert recipe.prompt.messages(SHOWN) == [dict(role="system", content="Mine."), dict(role="user", content=user)]
  with pytest.raises(ValueError, match=f"config.switches.instructions.*the placeholder {{{needs}}} is missing"):
    recipes.get(name, instructions=file(tmp_path, text.replace(f"{{{needs}}}", "")))
  with pytest.raises(ValueError, match=r"instructions='papr': it must be 'paper', .* or 'file:PATH' \(config\.switch"):
    recipes.get(name, instructions="papr")


@pytest.mark.parametrize("name", ["search_r1", "veritas"])
def test_search_agents_take_their_notice_from_a_file(name, tmp_path):
  recipe = recipes.get(name, notice=file(tmp_path, "Once more."))
  _, tape = scripted.play(recipe, EXAMPLE, ["hm", "<answer> no </answer>"])
  assert ("observe", "Once more.") in tape
  with pytest.raises(ValueError, match=r"switches\.notice=file:.*{question} is not a placeholder here; there is none"):
    recipes.get(name, notice=file(tmp_path, "{question}"))


@pytest.mark.parametrize("name", prompts.PROMPTS)
def test_judges_take_their_question_from_a_file(name, tmp_path):
  ours = prompts.get(name)
  first, second = ours.values("", "")
  mine = prompts.get(name, file(tmp_path, f"[system]\nJudge.\n[user]\n{{{first}}} / {{{second}}}"))
  system, user = mine.messages("x </think>", "b {claim}")
  assert system == dict(role="system", content="Judge.")
  left, right = user["content"].split(" / ")
  # When to Search's judge sees normalised answers (its prompt), which have no punctuation.
  assert "x" in left and "</think>" not in left and right == ("b claim" if name == "correctness" else "b {claim}")
  assert (mine.read, mine.labels, mine.of_answers) == (ours.read, ours.labels, ours.of_answers)
  assert mine.mark != ours.mark
  with pytest.raises(ValueError, match=rf"config\.judges\.x\.wording=file:.*{{{second}}} is missing"):
    prompts.get(name, file(tmp_path, f"{{{first}}}"), setting="config.judges.x.wording")
  refused(r"config\.judge\.wording='mine.txt': it must be '' or 'file:PATH'", prompts.get, name, "mine.txt")


def test_the_reward_model_is_trained_in_the_words_it_is_asked_in(tmp_path):
  words = file(tmp_path, "{premise} | {claim}")
  recipe = recipes.get("veritas", "reward_model", judge_wording=words)
  pair = Example("1", "a thought", ("1",), (Passage("1", "", "found"),))
  assert recipe.prompt.messages(pair) == [dict(role="user", content="found | a thought")]
  assert recipe.prompt.messages(pair) == prompts.get("information_think", words).messages("found", "a thought")
