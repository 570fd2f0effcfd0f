"""A results tag in a model's own text: a mention loses nothing, and a block that the model writes earns nothing.

Search-R1's qa_em.py takes the last <answer> anywhere, also after a tag that is never closed, so a mention must not hide
it. Results are the environment's segments alone: whatever a model writes between the tags is no search, no evidence and
no format. Live, a turn ends at its first </answer>, so an answer after an unclosed tag is always the model's own.
"""

import pytest

from ragrl_jax import recipes
from ragrl_jax.evaluation import foreign_transcripts
from ragrl_jax.prompting import passages
from ragrl_jax.recipes import steps as steps_lib
from ragrl_jax.recipes.released.agents import AGENTS
from ragrl_jax.structs import MODEL, Episode, Example, Passage
from ragrl_jax.testing import scripted

EXAMPLE = Example(
  "q1", "What is the capital of Norway?", ("Oslo",), (Passage("a", "Norway", "Its capital is Oslo."),),
  supporting=(0,), evidence=((0, "Its capital is Oslo."),),
)  # fmt: skip
FOUND = (Passage("p", "Norway", "Its capital is Oslo."),)  # not the one that the question has
SPOKEN = ("agent", "tool_agent")  # their answers and searches are messages and calls, not tags in a text
EVERY = [
  (name, preset)
  for name, room in recipes.RECIPES.items()
  for preset in room.PRESETS
  if name not in SPOKEN and preset not in ("original", "reward_model")  # their whole reply is the answer, or a verdict
]
SEARCHING = [(name, preset) for name, preset in EVERY if name in ("search_r1", "veritas", "when_to_search", "released")]
SEARCHING = [(name, preset) for name, preset in SEARCHING if preset not in ("r1", "given")]
ANSWERS = {"tags": "<answer> Oslo </answer>", "boxed": "<answer> It is \\boxed{Oslo} </answer>", "box": "\\boxed{Oslo}"}


def tags_of(recipe):
  """(results' tags, query's tags, an answer)."""
  if recipe.name == "released":
    agent = AGENTS[recipe.switches["agent"]]
    return agent.results, agent.query, ANSWERS[agent.answered]
  answer = "Answer: Oslo" if recipe.name == "care" else ANSWERS["tags"]
  return ("<information>", "</information>"), ("<search>", "</search>"), answer


def mentions(tag, action):
  return (
    f"<think> the {tag} block says so </think>{action}",
    f"<think> I read </think><reflect>{tag}</reflect>{action}",
    f"<think> I read </think>The {tag} above, and the next {tag}, say so.\n{action}",
    f"<think> I read </think>{tag}{action}",
    f"{tag}Doc 1(Title: Norway) Its capital is Oslo.<think> I read it </think>{action}",  # begun, never closed
  )


@pytest.mark.parametrize(("name", "preset"), EVERY)
def test_a_mention_loses_no_answer(name, preset):
  recipe = recipes.get(name, preset)
  results, _, answer = tags_of(recipe)
  for said in mentions(results[0], answer):
    assert recipe.parser.answer(said) == "Oslo", said
    assert recipe.parser.answer(said + "\n") == "Oslo"
    if name in ("search_r1", "veritas", "released", "untrained"):
      assert recipe.outcome(EXAMPLE, Episode.from_text(recipe, EXAMPLE, [(MODEL, said)])) == 1.0, said

  if name != "care":  # its answer is all that follows "Answer:"
    across = f"<think> It opens with {results[0]} </think>{answer}, and closes with {results[1]}."
    assert recipe.parser.answer(across) == "Oslo"  # no block begins in a thought and ends outside


@pytest.mark.parametrize(("name", "preset"), SEARCHING)
def test_a_mention_loses_no_query_and_gets_no_notice(name, preset):
  recipe = recipes.get(name, preset)
  results, query, answer = tags_of(recipe)
  searching = f"{query[0]} capital of Norway {query[1]}"
  for asked, told in zip(mentions(results[0], searching), mentions(results[0], answer)):
    read = ["Final information: Oslo."] if preset in ("search_o1", "simpledeepsearcher") else []
    episode, tape = scripted.play(recipe, EXAMPLE, [asked, *read, told], [FOUND], verdicts=[1.0] * 4)
    assert [event[1] for event in tape if event[0] == "search"] == ["capital of Norway"], asked
    assert [segment.found for segment in episode.turns if segment.owner != MODEL] == [FOUND]  # and no notice
    assert episode.num_searches == 1 and episode.ended == "answer" and recipe.parser.answer(told) == "Oslo"


@pytest.mark.parametrize(("name", "preset"), SEARCHING)
def test_a_block_that_the_model_writes_is_no_result(name, preset):
  recipe = recipes.get(name, preset)
  (opening, closing), query, answer = tags_of(recipe)
  for inside in (
    answer, f"{query[0]} x {query[1]}", f"{opening} {answer} {closing} {answer}", f"{opening}{closing}{answer}",
  ):  # fmt: skip
    assert recipe.parser.answer(f"{opening}{inside}{closing}") is None, inside
  assert recipe.parser.answer(f"{opening}{answer}{closing}{answer.replace('Oslo', 'Rome')}") == "Rome"
  # Closed or not, a block of the model's own is no search, and the format is broken where one is scored.
  for block in (f"{opening}Doc 1(Title: Norway) Its capital is Oslo.{closing}", f"{opening}Doc 1(Title: Norway) Oslo."):
    episode = Episode.from_text(recipe, EXAMPLE, [(MODEL, f"<think> hm </think>{block}<think> so </think>{answer}")])
    terms = recipe.score(EXAMPLE, episode)
    assert episode.num_searches == 0 and not episode.searches
    assert terms.get("format", 0.0) <= 0.0 and not terms.get("retrieval") and not terms.get("information_think")


def test_the_preset_repo_reads_nested_answers_as_its_code():
  # qa_em.py: the last match of <answer>(.*?)</answer>, which begins at the first opening tag.
  paper, repo = recipes.get("search_r1"), recipes.get("search_r1", "repo")
  for said, ours, theirs in (
    ("<answer>x <answer>Oslo</answer>", "Oslo", "x <answer>Oslo"),
    ("<answer>x</answer><answer>Oslo</answer>", "Oslo", "Oslo"),
    ("<answer>a</answer> b</answer>", "a", "a"), ("<answer>a</answer><answer>b <answer>c", "a", "a"),
  ):  # fmt: skip
    assert (paper.parser.answer(said), repo.parser.answer(said)) == (ours, theirs)


@pytest.mark.parametrize("agent", AGENTS)
def test_a_transcript_is_read_as_the_agent_that_plays(agent):
  recipe = recipes.get("released", agent)
  results, query, answer = tags_of(recipe)
  for said in mentions(results[0], answer):
    assert recipe.parser.answer(said) == "Oslo"
    before = f"{query[0]} q {query[1]} {results[0]} Its capital is Oslo. {results[1]}"
    for text, count in ((said, 1), (before + said, 3)):
      turns = foreign_transcripts.turns(text, agent)
      assert len(turns) == count and recipes.get("search_r1").parser.answer(turns[-1][1]) == "Oslo", said


def test_thoughts_around_a_mention_are_thoughts():
  guarded = recipes.get("search_r1", guarded=True)
  stages = recipes.get("when_to_search", "exact")
  for said in mentions("<information>", ANSWERS["tags"]):
    episode = Episode.from_text(guarded, EXAMPLE, [(MODEL, said)])
    assert guarded.score(EXAMPLE, episode) == dict(answer=1.0) and not guarded.unearned(EXAMPLE, episode)["unthought"]
    (pair,) = steps_lib.steps(episode.turns).think_answer
    assert pair[1] == "Oslo" and pair[0]
    # When to Search's format has tags of results only around results: −1, and the answer is right all the same.
    terms = stages.score(EXAMPLE, Episode.from_text(stages, EXAMPLE, [(MODEL, said)]))
    assert terms == dict(answer_explore=1.0, answer_economise=1.0, search=0.0, format=-1.0), said


@pytest.mark.parametrize("preset", ["paper", "repo"])
def test_actions_that_a_thought_mentions_are_none(preset):
  recipe = recipes.get("veritas", preset, judge_search=True)
  thoughts = "A <search> x </search> or <search> finds it.", "So <answer> Rome </answer> or an <answer> it is: Oslo."
  searched = f"<think> {thoughts[0]} </think><search> capital </search>"
  answered = f"<think> {thoughts[1]} </think>{ANSWERS['tags']}"
  turns = [(MODEL, searched), ("environment", passages.block(FOUND)), (MODEL, answered)]
  episode = Episode.from_text(recipe, EXAMPLE, turns, facts=dict(information_think=(1.0,), think_search=(1.0,)))
  steps = steps_lib.steps(episode.turns, recipe.parser.action)
  assert steps.think_search == ((thoughts[0], "capital"),) and steps.think_answer == ((thoughts[1], "Oslo"),)
  assert recipe.score(EXAMPLE, episode) == dict(answer=1, information_think=1, think_search=1, think_answer=1)
