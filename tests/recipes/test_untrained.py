"""The untrained methods, played by a script: of one conversation and of several, and those over given passages."""

import dataclasses
import math

import pytest

from ragrl_jax import config as config_lib, recipes, structs
from ragrl_jax.evaluation import harness
from ragrl_jax.prompting.tokenizer import ByteTokenizer
from ragrl_jax.recipes.untrained import several
from ragrl_jax.run import rewards
from ragrl_jax.run.prepared import prepare
from ragrl_jax.structs import ENVIRONMENT, MODEL, Episode, Example, Passage, Segment, ToolFailed
from ragrl_jax.testing import scripted

EXAMPLE = Example("1", " Who leads {Norsk}? ", ("Ann Lee", "A. Lee"))
FILM, TOWN = Passage("a", "Norsk", "Its seat is Oslo. It is old."), Passage("b", "Oslo", "Ann Lee leads it.")
GIVEN = dataclasses.replace(EXAMPLE, passages=(FILM, TOWN))
QUESTION, ANSWER = "Who leads {Norsk}?", "<answer> Ann Lee </answer>"


def tape(preset, script, results=(), **options):
  episode, events = scripted.play(recipes.get("untrained", preset), EXAMPLE, script, results, **options)
  searched = [text for kind, text, *_ in events if kind == "search"]
  return episode, searched, [event[1:] for event in events if event[0] == "generate"]


@pytest.mark.parametrize(("text", "label"), [
  (" b ", "B"), ("Label: C", "C"), ("Category B", "B"), ("several searches (C)", "C"), ("a search: A", "A"), ("", "B"),
])  # fmt: skip
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


def test_rag_searches_once_if_the_context_has_room():
  episode, searched, said = tape("paper", [f"so {ANSWER}"], [[FILM, TOWN]])
  assert searched == [QUESTION] and len(said) == 1 and episode.num_searches == 1
  assert "Ann Lee leads it." in episode.turns[0].text and episode.turns[0].query == QUESTION
  episode, _, _ = tape("paper", ["I do not know"], [[]])
  assert episode.ended == "eos" and recipes.get("untrained").outcome(EXAMPLE, episode) == 0.0
  room = len(recipes.get("untrained").prompt.messages(EXAMPLE)[0]["content"]) + 10
  episode, _, said = tape("paper", [], [[FILM]], room=room)
  assert episode.ended == "budget" and said == [] and episode.num_searches == 0


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
  episode, searched, _ = tape("self_ask", ["<question> Where is its seat? </question>", f"Oslo. {ANSWER}"], [[FILM]])
  assert searched == ["Where is its seat?"] and episode.ended == "answer" and episode.num_searches == 1
  assert tape("self_ask", [ANSWER])[1] == []


@pytest.mark.parametrize(("said", "searched"), [
  ("<need> Yes. </need>", [QUESTION]), ("<need> no </need>", []), ("<need></need>", []),
  ("<need> no, not yet; eyes </need>", []),  # "yes" is a word of its own
  ("<need> Well, yes: there is no other way </need>", [QUESTION]),  # the first of the two decides
])  # fmt: skip
def test_skr_searches_if_it_says_so(said, searched):
  episode, found, turns = tape("skr", [said, ANSWER], [[FILM]])
  assert found == searched and turns[-1] == (("</answer>",), ANSWER) and episode.ended == "answer"


@pytest.mark.parametrize("verdict", [1.0, 0.0, None])
def test_a_judge_says_what_is_right(verdict):
  recipe = recipes.get("untrained", correctness="judge")
  said = ["<answer> Lee, Ann </answer>"]
  episode, events = scripted.play(recipe, EXAMPLE, said, [[FILM]], verdicts=[verdict])
  assert events[-1] == ("judge", (("Ann Lee\nA. Lee", "Lee, Ann"),)) and recipe.outcome(EXAMPLE, episode) == verdict
  episode, events = scripted.play(recipe, EXAMPLE, [ANSWER], [[FILM]])  # a gold needs no judge
  assert "judge" not in [kind for kind, *_ in events] and recipe.outcome(EXAMPLE, episode) == 1.0
  assert recipes.get("untrained").outcome(EXAMPLE, episode) == 1.0


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


def play(preset, script, results=(), example=EXAMPLE, switches=None, **options):
  """(recipe, episode, prompts, queries) of a scripted episode; the prompts' texts in order."""
  recipe = recipes.get("untrained", preset, **(switches or {}))
  episode, tape = scripted.play(recipe, example, script, results, **options)
  asked = [text for kind, text, *_ in tape if kind == "start"]
  return recipe, episode, asked, [text for kind, text, *_ in tape if kind == "search"]


row = lambda recipe, example, episode: harness.prediction(recipe, *rewards.score(recipe, [example], [episode], 0))


def sure(*verdicts, switches=None, results=((FILM, TOWN),), example=EXAMPLE):
  script = ["<answer> Bob </answer> or <answer> Ann Lee </answer>", "Bob it is.", "Ann leads Oslo.", *verdicts]
  return play("sure", script, results, example, switches)


@pytest.mark.parametrize(("verdicts", "points", "answer"), [
  # Validity of Bob's and Ann's summary; then (1: Bob's, 2: Ann's), then (1: Ann's, 2: Bob's).
  (("False", "True.", "Passage 2", "Passage 1"), [0.0, 2.0], "Ann Lee"),
  (("True", "True", "Passage 1", "passage 2 does"), [2.0, 1.0], "Bob"),
  (("False", "True", "Passage 1", "Passage 1"), [0.5, 1.5], "Ann Lee"),  # the orders contradict each other
  (("True", "True", "both", "neither"), [1.5, 1.5], "Bob"),  # the first of equal ones
  (("untrue", "True", "Passage 1", "no"), [1.0, 1.0], "Bob"),  # a single vote decides; "untrue" is no verdict
])  # fmt: skip
def test_sure_compares_summaries(verdicts, points, answer):
  recipe, episode, asked, queries = sure(*verdicts)
  assert queries == [QUESTION] and episode.num_searches == 1 and len(asked) == 7
  assert episode.facts == dict(answer=answer, candidates=["Bob", "Ann Lee"], points=points)
  assert row(recipe, EXAMPLE, episode)["prediction"] == answer
  assert recipe.outcome(EXAMPLE, episode) == float(answer == "Ann Lee")
  # Each summary is of one candidate over all documents; in the joined record, the model's text keeps its role.
  assert "Answer: Bob\n" in asked[1] and "Its seat is Oslo." in asked[1] and "Answer: Ann Lee\n" in asked[2]
  assert "Passage: Bob it is." in asked[3] and "Passage: Ann leads Oslo." in asked[4]
  assert asked[5].startswith("Passage 1: Bob it is.\nPassage 2: Ann") and asked[6].startswith("Passage 1: Ann leads")
  assert [s.text for s in episode.segments if s.owner == MODEL][1:3] == ["Bob it is.", "Ann leads Oslo."]


def test_thoughts_of_a_reasoning_model_are_no_verdict():
  thought = "<think> True? Passage 2? <answer> Eve </answer> </think>"
  script = ["<answer> Bob </answer> or <answer> Ann Lee </answer>", "Bob it is.", "Ann.", "False", "True", "Passage 2",
            "Passage 1"]  # fmt: skip
  _, episode, asked, _ = play("sure", [thought + text for text in script], [[FILM]])
  assert episode.facts == dict(answer="Ann Lee", candidates=["Bob", "Ann Lee"], points=[0.0, 2.0])
  assert not any("Eve" in text for text in asked)
  _, episode, _, _ = play("sure", ["<think> <answer> Eve </answer> or <answer> Bob </answer>?"], [[FILM]])
  assert episode.facts == dict(answer=None, candidates=[])  # the thought was cut off


def test_sure_reads_given_passages_and_short_ones_and_needs_two_candidates():
  _, episode, asked, queries = sure("True", "True", "Passage 1", "Passage 2", results=(), example=GIVEN,
                                    switches=dict(documents="given"))  # fmt: skip
  assert queries == [] and "1. Norsk: Its seat is Oslo." in asked[0] and episode.num_searches == 0
  _, _, asked, _ = sure("True", "True", "Passage 1", "Passage 2", switches=dict(max_passage_tokens=30))
  assert "Its s" in asked[1] and "Its seat is" not in asked[1]  # "Doc 1(Title: Norsk) " has 20 of the 30 bytes
  for said, answer, ended in ((ANSWER * 2, "Ann Lee", "answer"), ("I cannot say.", None, "eos")):
    recipe, episode, asked, _ = play("sure", [said], [[FILM]])
    assert len(asked) == 1 and (episode.facts["answer"], episode.ended) == (answer, ended)
    assert recipe.outcome(EXAMPLE, episode) == float(answer is not None)


def drafts(*texts, low=()):
  """Texts with log-probabilities: 0, but log .5 where a word of `low` stands, and log .1 for one in capitals."""
  found = []
  for text in texts:
    logprobs = [0.0] * len(text.encode())
    for word in low:
      if (at := text.find(word)) >= 0:
        logprobs[at : at + len(word)] = [math.log(0.1 if word.isupper() else 0.5)] * len(word)
    found.append((text, logprobs))
  return found


def test_flare_searches_for_an_unlikely_sentence_without_its_unlikeliest_words():
  script = drafts(
    "Its seat is Oslo. And more",  # with the question's documents; cut after its first sentence
    " BOB leads the town. So",  # "BOB" has p = .1 < .4, "town" p = .5 < .8: a search without BOB
    " Ann leads the town. So",  # with the new documents
    f" So it is {ANSWER}",  # all likely: kept as it is
    low=("BOB", "town"),
  )
  _, episode, asked, queries = play("flare", script, [[FILM], [TOWN]])
  assert queries == [QUESTION, "leads the town."] and episode.ended == "answer"
  kept = "Its seat is Oslo. Ann leads the town. So it is <answer> Ann Lee </answer>"
  assert episode.model_text == kept and recipes.get("untrained", "flare").outcome(EXAMPLE, episode) == 1.0
  owners = [s.owner for s in episode.turns]
  assert owners == [ENVIRONMENT, MODEL, ENVIRONMENT, MODEL, MODEL] and episode.num_searches == 2
  # Documents are in the prompt of the sentence that they are for, and in no other; what was written follows.
  assert "Its seat" in asked[0] and "Documents" not in asked[1] and asked[1].endswith("\nIts seat is Oslo.")
  assert "Ann Lee leads it." in asked[2] and "old" not in asked[2] and "Documents" not in asked[3]
  assert all(len(s.logprobs) == len(s.ids) for s in episode.segments if s.owner == MODEL)
  # Bytes as tokens: all that was written but the sentences that stand.
  wasted = sum(len(text) for text, _ in script) - len(kept)
  assert recipes.get("untrained", "flare").measures(EXAMPLE, episode) == dict(draft_tokens=wasted) and wasted > 20


@pytest.mark.parametrize("said", [b"Caf\xe9 \xe9\xe9\xe9.", b"Caf\xe9 is open."])
def test_flare_cuts_a_draft_with_broken_characters_after_its_sentence(said):
  ids = tuple(said + b" Next one")
  tokenizer = ByteTokenizer()
  draft = Segment(MODEL, ids, tokenizer.decode(ids), logprobs=(0.0,) * len(ids))
  assert bytes(several._first(draft, tokenizer).ids) == said


def test_flare_keeps_drafts_when_no_search_is_left_and_ends():
  script = drafts("BOB leads. x", " BOB again. x", "", low=("BOB",))
  _, episode, _, queries = play("flare", script, [[FILM]], switches=dict(max_searches=1))
  assert queries == [QUESTION] and episode.ended == "eos" and episode.model_text == "BOB leads. BOB again."
  # An abbreviation ends a sentence too soon, which only makes one draft more; no draft ends within an answer.
  script = [f"Dr. A is {ANSWER}", " A is <answer> Dr. Lee </answer>"]
  _, episode, _, queries = play("flare", script, switches=dict(max_searches=0))
  assert queries == [] and episode.model_text == "Dr. A is <answer> Dr. Lee </answer>" and episode.ended == "answer"


def test_flares_answer_may_span_several_sentences():
  example = dataclasses.replace(EXAMPLE, golds=("The U.S. Senator",))
  script = drafts("It is <answer> The U.S. And", " SENATOR </answer>", " Senator </answer>", low=("SENATOR",))
  for searches, drawn in ((0, [script[0], script[2]]), (2, script)):  # 2: a search stands within the answer
    how = dict(example=example, switches=dict(max_searches=searches))
    recipe, episode, *_ = play("flare", drawn, [[FILM], [TOWN]], **how)
    assert episode.ended == "answer" and episode.num_searches == searches
    assert row(recipe, example, episode)["prediction"] == "The U.S. Senator" and recipe.outcome(example, episode) == 1.0
  _, episode, *_ = play("flare", [ANSWER], switches=dict(max_searches=0))
  assert "answer" not in episode.facts  # the turn has it


@pytest.mark.parametrize(("label", "script", "queries"), [
  ("A", [ANSWER], []), ("B", [ANSWER], [QUESTION]),
  ("C", ["<thought> Its seat is Oslo. </thought>", ANSWER], [QUESTION, "Its seat is Oslo."]),
])  # fmt: skip
def test_adaptive_rag_takes_a_route(label, script, queries):
  results = [[FILM], [TOWN]]
  recipe, episode, asked, found = play("adaptive", [f"<need> {label} </need>", *script], results)
  assert found == queries and episode.facts["complexity"] == label and len(asked) == 2
  assert episode.num_searches == len(queries) and recipe.outcome(EXAMPLE, episode) == 1.0
  verdicts = {"A": [1.0, 1.0], "B": [0.2, 0.7], "C": [0.2, 0.1]}[label]
  _, episode, asked, found = play("adaptive", script, results, switches=dict(classifier="judge"), verdicts=verdicts)
  assert found == queries and episode.facts["complexity"] == label and len(asked) == 1
  _, episode, _, queries = play("adaptive", ["I wonder.", ANSWER], [[FILM]])  # no label: one search
  assert episode.facts["complexity"] == "B" and queries == [QUESTION]


@pytest.mark.parametrize("verdicts", [[None, 0.1], [0.2, None]])
def test_adaptive_rag_takes_no_route_without_a_verdict(verdicts):  # which is no "no"
  with pytest.raises(ToolFailed, match="the judge gave no verdict on the complexity"):
    play("adaptive", [ANSWER], [[FILM]], switches=dict(classifier="judge"), verdicts=verdicts)


def test_recomp_reads_its_summary_alone():
  script = ["<summary> Norsk's seat is Oslo, which Ann Lee leads. </summary>", ANSWER]
  recipe, episode, asked, queries = play("recomp", script, [[FILM, TOWN]])
  assert queries == [QUESTION] and "It is old." not in asked[1] and "which Ann Lee leads" in asked[1]
  found = row(recipe, EXAMPLE, episode)
  assert found["answer_recall"] == 1.0 and found["evidence"] == "Norsk's seat is Oslo, which Ann Lee leads."
  assert found["evidence_tokens"] == len(found["evidence"]) < found["passage_tokens"] and found["num_searches"] == 1
  _, episode, asked, _ = play("recomp", ["<summary></summary>", ANSWER], example=GIVEN,
                              switches=dict(documents="given"))  # fmt: skip
  assert "It is old." in asked[0] and "ocuments" not in asked[1] and episode.facts["evidence_tokens"] == 0


def test_filco_keeps_what_stands_in_a_document():
  said = "<extract>Ann Lee  leads it.\nIts seat is Oslo. Bob leads it.\nann lee leads it.</extract>"
  recipe, episode, asked, _ = play("filco", [said, ANSWER], [[FILM, TOWN]])
  # The second "ann lee" differs in case alone from a sentence of the document, so it stands there as well.
  assert episode.facts["refined"] == "Ann Lee  leads it. Its seat is Oslo. ann lee leads it."
  assert "Bob" not in asked[1] and recipe.outcome(EXAMPLE, episode) == 1.0
  room = len(asked[0]) + 10
  assert play("filco", [], [[FILM, TOWN]], room=room)[1].ended == "budget"


@pytest.mark.parametrize(("preset", "said"), [
  ("given", ANSWER), ("cot,given", f"<think> x </think>{ANSWER}"),
  ("self_ask,given", f"<question> Where is its seat? </question> Oslo. {ANSWER}"),
])  # fmt: skip
def test_given_passages_are_read_and_nothing_is_searched_for(preset, said):
  recipe, episode, asked, queries = play(preset, [said], example=GIVEN)
  assert queries == [] and episode.model_text == said and recipe.outcome(GIVEN, episode) == 1.0
  assert "1. Norsk: Its seat is Oslo. It is old.\n2. Oslo: Ann Lee leads it." in asked[0]
  assert recipe.needs_passages and not recipe.searches


@pytest.mark.parametrize("preset", ["sure", "flare", "adaptive", "recomp", "filco"])
def test_joined_conversations_are_not_trained_on(preset):
  config = config_lib.default_config()
  config.recipe, config.preset = "untrained", preset
  with pytest.raises(ValueError, match="joins several conversations in an episode"):
    prepare(config)
