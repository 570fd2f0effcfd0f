import dataclasses

import pytest

from ragrl_jax import recipes, structs
from ragrl_jax.recipes.untrained import several
from ragrl_jax.structs import ENVIRONMENT, MODEL, Episode, Example, Passage, Segment
from ragrl_jax.testing import scripted

EXAMPLE = Example("1", " Who leads {Norsk}? ", ("Ann Lee", "A. Lee"))
FILM, TOWN = Passage("a", "Norsk", "Its seat is Oslo."), Passage("b", "Oslo", "Ann Lee leads it.")
QUESTION, ANSWER = "Who leads {Norsk}?", "<answer> Ann Lee </answer>"


def tape(preset, script, results=(), **options):
  episode, events = scripted.play(recipes.get("untrained", preset), EXAMPLE, script, results, **options)
  searched = [text for kind, text, *_ in events if kind == "search"]
  return episode, searched, [event[1:] for event in events if event[0] == "generate"]


@pytest.mark.parametrize(
  ("text", "label"),
  [
    (" b ", "B"), ("Label: C", "C"), ("Category B", "B"), ("several searches (C)", "C"), ("a search: A", "A"),
    ("", "B"),
  ],
)  # fmt: skip
def test_the_label_of_a_reply(text, label):
  assert several.read_label(text) == label


@pytest.mark.parametrize("preset", ["closed_book", "cot"])
def test_nothing_is_searched_for(preset):
  episode, searched, said = tape(preset, [f"<think> x </think>{ANSWER} junk"])
  assert searched == [] and said == [(("</answer>",), f"<think> x </think>{ANSWER}")]
  assert episode.ended == "answer" and recipes.get("untrained", preset).outcome(EXAMPLE, episode) == 1.0


@pytest.mark.parametrize("opened", ["<think>", ""])
def test_an_answer_in_a_thought_is_none(opened):
  """A reasoning model tries answers while it thinks; a chat template may have opened its thought (Qwen3.5's does)."""
  recipe = recipes.get("untrained", "closed_book")
  episode, _, said = tape("closed_book", [f"<think> perhaps <answer> Bob </answer> no. </think>{ANSWER}"])
  assert len(said) == 1 and recipe.outcome(EXAMPLE, episode) == 1.0  # the turn goes on after the first tag
  episode, _, _ = tape("closed_book", [f"<think> perhaps {ANSWER} no. </think> I do not know"])
  assert recipe.outcome(EXAMPLE, episode) == 0.0
  answer = recipe.parser.answer
  assert answer(f"{opened} so <answer> Bob </answer> </think> {ANSWER}") == "Ann Lee"
  assert answer(f"{opened} so {ANSWER} </think> I do not know") is None
  assert answer(f"{ANSWER} <think> or <answer> Bob </answer>") == "Ann Lee" and answer(ANSWER) == "Ann Lee"
  prompt = Segment(ENVIRONMENT, (), f"assistant\n{opened}\n")
  assert structs.opened([prompt, Segment(MODEL, (), "well")]) == bool(opened)
  assert not structs.opened([prompt, Segment(MODEL, (), "well </think> so")])


def test_rag_searches_once():
  episode, searched, said = tape("paper", [f"so {ANSWER}"], [[FILM, TOWN]])
  assert searched == [QUESTION] and len(said) == 1 and episode.num_searches == 1
  assert "Ann Lee leads it." in episode.turns[0].text and episode.turns[0].query == QUESTION
  episode, _, _ = tape("paper", ["I do not know"], [[]])
  assert episode.ended == "eos" and recipes.get("untrained").outcome(EXAMPLE, episode) == 0.0


def test_ircot_searches_for_each_thought():
  script = ["<thought> Its seat is Oslo. </thought> junk", "<thought> Ann leads Oslo. </thought>", ANSWER]
  episode, searched, said = tape("ircot", script, [[FILM], [TOWN], [TOWN]])
  assert searched == [QUESTION, "Its seat is Oslo.", "Ann leads Oslo."] and episode.ended == "answer"
  assert all(stops == ("</thought>", "</answer>") for stops, _ in said)
  # At most four searches, so the fifth turn can only answer.
  episode, searched, said = tape("ircot", [f"<thought> {i} </thought>" for i in range(3)] + [ANSWER], [[FILM]] * 4)
  assert searched == [QUESTION, "0", "1", "2"] and said[-1] == (("</answer>",), ANSWER)
  episode, searched, said = tape("ircot", ["<thought> </thought>", ANSWER], [[FILM]])
  assert searched == [QUESTION] and said[-1] == (("</answer>",), ANSWER)  # there is nothing to search for


def test_iter_retgen_searches_for_its_own_answer():
  first = "<think> The seat is Oslo. </think><answer> Bob </answer>"
  episode, searched, _ = tape("iter_retgen", [first, ANSWER], [[FILM], [TOWN]])
  assert searched == [QUESTION, f"{QUESTION} The seat is Oslo. Bob"]
  assert recipes.get("untrained", "iter_retgen").outcome(EXAMPLE, episode) == 1.0  # the last answer counts
  assert [s.query for s in episode.searches] == searched


def test_self_ask():
  script = ["<question> Where is its seat? </question>", f"Oslo. {ANSWER}"]
  episode, searched, _ = tape("self_ask", script, [[FILM]])
  assert searched == ["Where is its seat?"] and episode.ended == "answer" and episode.num_searches == 1
  assert tape("self_ask", [ANSWER])[1] == []


@pytest.mark.parametrize(
  ("said", "searched"),
  [
    ("<need> Yes. </need>", [QUESTION]),
    ("<need> no </need>", []),
    ("<need></need>", []),
    ("<need> no, not yet; eyes </need>", []),  # "yes" is a word of its own
    ("<need> Well, yes: there is no other way </need>", [QUESTION]),  # the first of the two decides
  ],
)
def test_skr_searches_if_it_says_so(said, searched):
  episode, found, turns = tape("skr", [said, ANSWER], [[FILM]])
  assert found == searched and turns[-1] == (("</answer>",), ANSWER) and episode.ended == "answer"


@pytest.mark.parametrize(("verdict", "right"), [(1.0, 1.0), (0.0, 0.0), (None, None)])
def test_a_judge_says_what_is_right(verdict, right):
  recipe = recipes.get("untrained", correctness="judge")
  said = ["<answer> Lee, Ann </answer>"]
  episode, events = scripted.play(recipe, EXAMPLE, said, [[FILM]], verdicts=[verdict])
  assert events[-1] == ("judge", (("Ann Lee\nA. Lee", "Lee, Ann"),)) and recipe.outcome(EXAMPLE, episode) == right
  episode, events = scripted.play(recipe, EXAMPLE, [ANSWER], [[FILM]])  # a gold needs no judge
  assert "judge" not in [kind for kind, *_ in events] and recipe.outcome(EXAMPLE, episode) == 1.0
  assert recipes.get("untrained").outcome(EXAMPLE, episode) == 1.0


def test_full_contexts_end():
  room = len(recipes.get("untrained").prompt.messages(EXAMPLE)[0]["content"]) + 10
  episode, _, said = tape("paper", [], [[FILM]], room=room)
  assert episode.ended == "budget" and said == [] and episode.num_searches == 0


def test_sentences_are_copied_whatever_their_case_spaces_and_signs():
  shown = (Passage("a", "O’Neill", "It’s by the “Lee” – a\nfirm. Nobody knows."),)
  text = "o'neill It's by the \"Lee\" - a firm. It's by LEE. NOBODY knows. "
  assert several.find_copied(text, shown) == ["o'neill It's by the \"Lee\" - a firm.", "NOBODY knows."]


@pytest.mark.parametrize("preset", recipes.RECIPES["untrained"].PRESETS)
def test_transcripts_are_read_as_they_were_played(preset):
  recipe = recipes.get("untrained", preset, max_searches=1)
  script = {
    "ircot": [ANSWER], "iter_retgen": [ANSWER], "self_ask": ["<question> q </question>", ANSWER],
    "skr": ["<need> yes </need>", ANSWER], "adaptive": ["<need> B </need>", ANSWER],
    "recomp": ["<summary> Ann leads. </summary>", ANSWER], "filco": ["<extract> Ann leads. </extract>", ANSWER],
  }.get(preset, [ANSWER])  # fmt: skip
  played, _ = scripted.play(recipe, EXAMPLE, script, [[FILM]])
  read = Episode.from_text(recipe, EXAMPLE, [(s.owner, s.text) for s in played.turns], facts=played.facts)
  assert recipe.score(EXAMPLE, read) == recipe.score(EXAMPLE, played) == dict(answer=1.0)
  assert read.num_searches == played.num_searches


def test_attacks():
  recipe = recipes.get("untrained", "self_ask")
  score = lambda text: recipe.outcome(EXAMPLE, Episode.from_text(recipe, EXAMPLE, [("model", text)]))
  assert score(f"<information> {ANSWER} </information>") == score("<answer>" * 9) == 0.0
  assert score("<answer> the </answer>") == score(f"<answer> {QUESTION} </answer>") == 0.0
  assert score(ANSWER + "<answer> Bob </answer>") == score("<answer> Ann Lee or Bob </answer>") == 0.0
  odd = dataclasses.replace(EXAMPLE, golds=("a word or a short phrase",))
  assert recipe.outcome(odd, Episode.from_text(recipe, odd, [])) == 0.0
  with pytest.raises(ValueError, match="method='best'.*'rag'"):
    recipes.get("untrained", method="best")
