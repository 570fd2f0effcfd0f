"""What a thought means for each recipe: one that the chat template opened (Qwen3.5's does), and one of the model."""

import pytest

from ragrl_jax import recipes, structs
from ragrl_jax.evaluation import harness
from ragrl_jax.prompting.tokenizer import ByteTokenizer
from ragrl_jax.recipes import parts
from ragrl_jax.recipes.released.agents import AGENTS
from ragrl_jax.recipes.released.recipe import NOTHING
from ragrl_jax.run import rewards, signs
from ragrl_jax.structs import MODEL, Example, Passage
from ragrl_jax.testing import scripted

PASSAGE = Passage("a", "Oslo", "Ann Lee leads Oslo.")
EXAMPLE = Example("1", "Who leads Oslo?", ("Ann Lee",), (PASSAGE,), supporting=(0,))
SEARCH, RIGHT, WRONG = "<search> Oslo </search>", "<answer> Ann Lee </answer>", "<answer> Bob </answer>"
SEARCHED = [SEARCH, f"<think> It says so. </think>{RIGHT}"]
SECTIONS = "<relevance>[1]</relevance>\n<analysis>[1] says so</analysis>\n<answer>Ann Lee</answer>"
REASONED = "<reason>It says so.</reason>\n<extract>Ann Lee leads Oslo.</extract>\n<answer>Ann Lee</answer>"
# name, preset → what the model says after its thought. Probes of LEAR follow.
REPLIES = {
  ("search_r1", "format"): SEARCHED, ("search_r1", "repo"): SEARCHED, ("veritas", "em_format"): SEARCHED,
  ("when_to_search", "exact"): [f"<reflect> I know. </reflect>{RIGHT}"],
  ("care", "no_retrieval"): ["Answer: Ann Lee"], ("care", "original"): ["Ann Lee"],
  ("arena", "paper"): [SECTIONS], ("arena", "naive"): [RIGHT], ("arena", "direct"): [RIGHT],
  ("lear", "thoughts"): ["Ann Lee leads Oslo.", " Ann Lee </answer>"],
  ("lear", "answers_f"): [REASONED], ("lear", "paper"): [REASONED, " Ann Lee </answer>", " Ann Lee </answer>"],
  ("tool_agent", "paper"): [RIGHT],
  ("untrained", "paper"): [RIGHT], ("untrained", "closed_book"): [RIGHT], ("untrained", "self_ask"): [RIGHT],
}  # fmt: skip
REPLIES = {key: said for key, said in REPLIES.items() if key[0] in recipes.RECIPES}  # without agents, no tool_agent
# Of these formats `<think>` is a part, so that only a thought which the template opened is the model's own.
WRITES = {"search_r1", "veritas", "when_to_search", "care"}
MUSES = "Perhaps <relevance>[2]</relevance> <answer> Bob </answer>, or <search> Bob </search>? Answer: no. It is so."


@pytest.fixture
def opened(monkeypatch):
  """Prompts end as Qwen3.5's chat template does."""
  start, tail = scripted.ScriptedPolicy.start, dict(content="<think>\n")
  ends = lambda self, prompt: start(self, prompt if isinstance(prompt[0], int) else [*prompt, tail])
  monkeypatch.setattr(scripted.ScriptedPolicy, "start", ends)


def played(name, preset, said):
  recipe = recipes.get(name, preset)
  episode, tape = scripted.play(recipe, EXAMPLE, list(said), [(PASSAGE,)] * 3, verdicts=[1.0] * 9)
  return recipe, episode, [event for event in tape if event[0] == "search"]


@pytest.mark.parametrize("key", REPLIES, ids="-".join)
def test_only_what_follows_the_thought_counts(key, opened):
  first, *rest = REPLIES[key]
  recipe, episode, searched = played(*key, [f"{MUSES}\n</think>\n\n{first}", *rest])
  assert recipe.outcome(EXAMPLE, episode) == 1.0 and ("search", "Bob") not in searched
  assert parts.last_answer(recipe.parser, episode) == "Ann Lee"
  terms = recipe.score(EXAMPLE, episode)
  said = [segment.text for segment in episode.segments if segment.owner == MODEL]
  assert terms.get("answer", 1.0) == 1.0 and said[0].startswith("Perhaps")  # the record has no tag
  if key[0] in ("search_r1", "veritas"):
    assert not recipe.unearned(EXAMPLE, episode)["unthought"]
  _, episode, searched = played(*key, [MUSES, *[""] * 9])  # the budget ends the thought
  assert recipe.outcome(EXAMPLE, episode) == 0.0 and ("search", "Bob") not in searched
  assert parts.last_answer(recipe.parser, episode) is None
  # Tables and detectors read no answer in it, not even a right one.
  recipe, episode, _ = played(*key, [MUSES.replace("Bob", "Ann Lee").replace("no", "Ann Lee"), *[""] * 9])
  (scored,) = rewards.score(recipe, [EXAMPLE], [episode], 1)
  assert harness.prediction(recipe, scored)["em"] == scored.outcome == 0.0
  assert signs.written(recipe.parser, ByteTokenizer(), episode)["answered"] == 0.0


@pytest.mark.parametrize("key", [key for key in REPLIES if key[0] in ("arena", "lear", "care")], ids="-".join)
def test_a_thought_before_the_sections_keeps_the_format(key, opened):
  first, *rest = REPLIES[key]
  recipe, episode, _ = played(*key, [f"I think.\n</think>\n\n{first}", *rest])
  assert key[1] == "original" or recipe.score(EXAMPLE, episode)["format"] == 1.0


@pytest.mark.parametrize("key", [key for key in REPLIES if key[0] not in WRITES and key[1] != "naive"], ids="-".join)
def test_a_thought_that_the_model_opens_is_its_own_in_formats_without_one(key):
  first, *rest = REPLIES[key]
  recipe, episode, _ = played(*key, [f"<think>\n{MUSES}\n</think>\n\n{first}", *rest])
  assert recipe.outcome(EXAMPLE, episode) == 1.0
  assert recipe.score(EXAMPLE, episode).get("format", 1.0) == 1.0


@pytest.mark.parametrize(("preset", "said", "length"), [
  ("paper", REASONED, 0), ("inference", REASONED, 0), ("thoughts", REASONED, 0),  # the budget ends the thought
  ("paper", f"{MUSES}</think>\n\n{REASONED}", 19), ("thoughts", f"{MUSES}</think>\n\nAnn Lee leads Oslo.", 19),
])  # fmt: skip
def test_lears_evidence_is_outside_of_the_thought(preset, said, length, opened):
  recipe, episode, _ = played("lear", preset, [said, *[" Ann Lee </answer>"] * 2])
  assert recipe.outcome(EXAMPLE, episode) == (length > 0) and episode.facts["evidence_tokens"] == length
  assert recipe.evidence(EXAMPLE, episode) == "Ann Lee leads Oslo." * (length > 0)
  assert recipe.score(EXAMPLE, episode)["answer"] == (length > 0)
  assert preset != "thoughts" or recipe.measures(EXAMPLE, episode)["f1_from_reason"] is None  # it has no reason


def test_lears_answer_from_the_evidence_is_no_thought(opened):
  said = [f"{MUSES}</think>\n\n{REASONED}", *[" Ann Lee </answer>"] * 2]
  _, tape = scripted.play(recipes.get("lear"), EXAMPLE, said)
  _, (kind, from_evidence) = (event for event in tape if event[0] == "start")
  assert from_evidence.endswith("\n\n</think>\n\n<extract>Ann Lee leads Oslo.</extract>\n<answer>")


def test_a_digest_is_no_thought(opened):
  query, answer = "<|begin_search_query|>Oslo<|end_search_query|>", "\\boxed{Ann Lee}"
  _, episode, _ = played("released", "search_o1", [query, MUSES, answer])
  assert [s.text for s in episode.segments if s.query] == [AGENTS["search_o1"].block(NOTHING)]


def test_in_a_format_with_thoughts_an_open_one_still_acts():
  """As in Search-R1's code: base models forget the closing tag."""
  _, _, searched = played("search_r1", "paper", [f"<think> I need it. {SEARCH}", RIGHT])
  assert searched == [("search", "Oslo")]


def test_a_thought_stays_open_behind_results(opened):
  """Plain RAG shows documents before the model's first turn, inside the thought that the template opened."""
  _, episode, _ = played("untrained", "paper", [f"{MUSES} </think> {RIGHT}"])
  assert [segment.owner == MODEL for segment in episode.segments] == [False, False, True]
  assert not structs.opened(episode.segments) and structs.opened(episode.segments[:2])
