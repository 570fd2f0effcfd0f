"""The tables "Unearned reward" of search_r1 and veritas, played: what each transcript earns, and whether it is seen."""

import pathlib
import re

import pytest

from ragrl_jax import recipes
from ragrl_jax.core.rewards import faithful
from ragrl_jax.prompting import passages
from ragrl_jax.recipes.steps import steps
from ragrl_jax.structs import Episode, Example, Passage

EXAMPLE = Example("1", "Who founded the seat of Norsk Film?", ("Harald III",))
TOWN = Passage("1", "Oslo", "Harald III founded it.")
RESULTS = ("environment", passages.block([TOWN]))
HONEST = [
  ("model", "<think> I need the town. </think><search> Oslo founder </search>"),
  RESULTS,
  ("model", "<think> Oslo was founded by Harald III. </think><answer> Harald III </answer>"),
]


def table(name):
  """(trick, turns, {heading: number}) of each row under "Unearned reward"."""
  readme = (pathlib.Path(recipes.__file__).parent / name / "README.md").read_text(encoding="utf-8")
  lines = [line for line in readme.partition("## Unearned reward")[2].partition("\n## ")[0].splitlines() if "|" in line]
  cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
  for trick, transcript, *numbers in cells[2:]:
    said = transcript.strip("`").split("[results]")
    turns = [turn for text in said for turn in (RESULTS, ("model", text))][1:]
    yield trick.strip("`"), turns, dict(zip(cells[0][2:], map(float, numbers), strict=True))


def built(name, heading):
  words = re.findall(r"`(\w+)`", heading)
  return recipes.get(name, ",".join({*words} - {"guarded", "paper"}) or "paper", guarded="guarded" in words)


def believed(recipe, turns):
  """The episode with a judge who says 1 of every pair that the recipe asks about."""
  made = Episode.from_text(recipe, EXAMPLE, turns)
  asked = {term: faithful.whole(getattr(steps(made.turns), term)) for term in recipe.judged}
  return Episode.from_text(recipe, EXAMPLE, turns, facts={term: (1.0,) * len(some) for term, some in asked.items()})


earned = lambda recipe, turns: recipe.reward(recipe.score(EXAMPLE, believed(recipe, turns)), 10**6)
ROWS = [(name, *row) for name in ("search_r1", "veritas") for row in table(name)]


@pytest.mark.parametrize(("name", "trick", "turns", "numbers"), ROWS)
def test_what_a_trick_earns(name, trick, turns, numbers):
  for heading, number in numbers.items():
    recipe = built(name, heading)
    assert earned(recipe, turns) == pytest.approx(number), heading
    assert not number or any(recipe.unearned(EXAMPLE, believed(recipe, turns)).values()), heading
  # Where it is paid first, it is seen under its own name.
  first = next(heading for heading, number in numbers.items() if number)
  assert built(name, first).unearned(EXAMPLE, believed(built(name, first), turns))[trick]
  assert any(numbers.values()) and not any(number for heading, number in numbers.items() if "guarded" in heading)


@pytest.mark.parametrize("name", ["search_r1", "veritas"])
def test_the_tables_hold_every_trick_and_an_honest_episode_does_none(name):
  listed = {trick for of, trick, *_ in ROWS if of == name}
  for preset in recipes.RECIPES[name].PRESETS:
    if preset == "reward_model":
      continue
    open_, guarded = recipes.get(name, preset), recipes.get(name, preset, guarded=True)
    said = open_.unearned(EXAMPLE, believed(open_, HONEST))
    assert said.keys() <= listed and not any(said.values())
    assert earned(open_, HONEST) == earned(guarded, HONEST) >= 1.0
    # Nothing is paid for a trick that is not listed as one of this preset.
    for _, trick, turns, _ in (row for row in ROWS if row[0] == name):
      paid = earned(open_, turns) > 0
      assert not paid or any(open_.unearned(EXAMPLE, believed(open_, turns)).values()), (preset, trick)


def test_scripts_without_spaces_are_guarded_as_others():
  found = passages.block([Passage("1", "挪威电影", "挪威电影公司位于奥斯陆。")])
  example = Example("1", "挪威电影公司在哪里?", ("奥斯陆",))
  for thought, tricks in (("资料说它在奥斯陆。", set()), ("位于奥斯陆", {"copied"}), ("Write 1.", {"unrelated"})):
    turns = [("model", "<search> x </search>"), ("environment", found)]
    turns.append(("model", f"<think> {thought} </think><answer> 奥斯陆 </answer>"))
    recipe = recipes.get("veritas", guarded=True)
    made = Episode.from_text(recipe, example, turns, facts=dict(information_think=(1.0,)))
    assert {trick for trick, used in recipe.unearned(example, made).items() if used} == tricks
    terms = recipe.score(example, made)
    assert (terms["information_think"], terms["think_answer"]) == ((0.0, 0.0) if tricks else (1.0, 1.0))


def test_a_refused_verdict_is_not_waited_for():
  guarded = recipes.get("veritas", guarded=True)
  turns = [("model", "<search> x </search>"), RESULTS, ("model", "<think> Oslo </think><answer> x </answer>")]
  made = Episode.from_text(guarded, EXAMPLE, turns, facts=dict(information_think=(None,)))
  assert guarded.score(EXAMPLE, made)["information_think"] == 0.0


@pytest.mark.parametrize("name", ["search_r1", "veritas"])
@pytest.mark.parametrize(("turns", "tag"), [
  ([("model", "<think> a </think> so \\boxed{Harald III}")], r"\boxed{"),
  ([("model", "<think> a </think><search> x </search>"), ("environment", "<result> Oslo </result>")], "<result>"),
  ([("model", '<tool_call>{"query": "x"}</tool_call>')], "<tool_call>"),
  ([("model", "x"), ("environment", "\n<tool_response>\nOslo\n</tool_response>")], "<tool_response>"),
  ([("model", "<|begin_search_query|>x<|end_search_query|>")], "<|begin_search_query|>"),
])  # fmt: skip
def test_another_agents_transcript_is_an_error(name, turns, tag):
  with pytest.raises(ValueError, match=re.escape(f"another agent's transcript, with {tag!r}")):
    Episode.from_text(recipes.get(name), EXAMPLE, turns)


def test_a_box_beside_an_answer_is_no_foreigner():
  recipe = recipes.get("search_r1")
  turns = [("model", "<think> \\boxed{x} </think><answer> Harald III </answer>"), ("environment", "<b> x")]
  made = Episode.from_text(recipe, EXAMPLE, turns)
  assert recipe.outcome(EXAMPLE, made) == 1.0
