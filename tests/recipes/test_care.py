import dataclasses
import itertools
import types

import pytest
import unearned
from printed import printed

from ragrl_jax import recipes
from ragrl_jax.core.rewards import quotes as quotes_lib
from ragrl_jax.core.text import forms
from ragrl_jax.data import layouts, stream
from ragrl_jax.structs import Episode, Example, Passage
from ragrl_jax.testing import scripted

PASSAGES = (
  Passage("1", "Eiffel Tower", "The Eiffel Tower\nstands in Paris. It was built in 1889."),
  Passage("2", "Paris", "Paris is the capital of France. It lies on the Seine {0}."),
)
EXAMPLE = Example("1", "Where does the {tower} stand?", ("Paris", "in Paris, France"), PASSAGES)
ONE, TWO = "Tower stands in Paris.", "Paris is the capital of France."
paper, repo, mean = (recipes.get("care", preset) for preset in ("paper", "repo", "mean"))


def said(*quotes, answer="Paris", after=""):
  inside = " so ".join(f"<retrieval>{quote}</retrieval>" for quote in quotes)
  return f"<think> I look. {inside} </think>{after}\nAnswer: {answer}"


def scored(text, recipe=paper, example=EXAMPLE):
  terms = recipe.score(example, Episode.from_text(recipe, example, [("model", text)]))
  return terms, recipe.reward(terms, 0)


def test_a_quote_as_it_is_printed_is_the_quote_as_it_is_typed():
  typed = """It's the "best-known" tower of 1889-90, as O'Brien says."""
  for shown, quote in ((typed, printed(typed)), (printed(typed), typed), (printed(typed), printed(typed, wide=False))):
    more = " Far away lies another town, of which no sentence was quoted by anyone until now."
    example = dataclasses.replace(EXAMPLE, passages=(Passage("1", "Tower", shown + more),))
    for preset in ("paper", "repo", "mean"):
      for guarded in (False, True):
        assert scored(said(quote[5:]), recipes.get("care", preset, guarded=guarded), example)[0]["retrieval"] == 1.0
    assert paper.parser.quotes(said(quote)) == [" ".join(forms.composed(quote).split())]  # kept as it was written


def test_published_fixtures():
  assert scored("no idea", repo) == (dict(accuracy=0.0, format=0.0, retrieval=0.2), pytest.approx(0.2 * 0.2))
  # One exact quote, one with a wrong letter, one that occurs nowhere: (1 + 0.5 + 0) / 3.
  terms, _ = scored(said("stands in Paris.", "paris is the capital of Franse.", "London is a town"), repo)
  assert terms["retrieval"] == pytest.approx(0.5)
  # Sets of raw words: {the, Eiffel, Tower.} and {Eiffel, Tower} have one in common; 2 · 1 / 5.
  tower = dataclasses.replace(EXAMPLE, golds=("Eiffel Tower",))
  assert scored("Answer: the Eiffel Tower.", repo, tower)[0]["accuracy"] == pytest.approx(0.4)
  assert scored("Answer: the Eiffel Tower.", paper, tower)[0]["accuracy"] == 1.0


def test_weights():
  assert scored(said(ONE))[1] == pytest.approx(1.0) and scored("")[1] == 0.0
  assert scored(said("nowhere"))[1] == pytest.approx(0.8)
  assert scored(said(ONE, answer="Oslo"))[1] == pytest.approx(0.3)
  for text in (said("nowhere"), said(ONE), "<think> x </think> Answer: Paris"):  # as DeepSeek-R1: no quote is asked for
    assert scored(text, recipes.get("care", "no_retrieval"))[1] == pytest.approx(0.8)
  assert scored("Answer: Paris", recipes.get("care", "no_retrieval"))[1] == pytest.approx(0.7)


def test_format():
  for text, shaped in [
    (said(ONE), 1), (said(ONE, TWO), 1), ("\n " + said(ONE) + " \n", 1), (said(ONE, after=" so then "), 1),
    ("So: " + said(ONE), 0), ("<think>a</think><think><retrieval>b</retrieval></think>Answer: c", 0),
    ("<think>a</think><retrieval>b</retrieval>Answer: c", 0), ("<think><retrieval></retrieval></think>Answer:", 1),
    ("<think></retrieval>b</retrieval></think>Answer: c", 0), ("<think><retrieval>b</retrieval>Answer: c</think>", 0),
    ("<think><retrieval>b</retrieval>", 0), ("<think>", 0), ("<think></think>", 0), ("", 0),
    ("<think><retrieval>b</think></retrieval> Answer: c", 0), ("<think><retrieval>b</retrieval></think> answer: c", 0),
  ]:  # fmt: skip
    assert scored(text)[0]["format"] == scored(text, repo)[0]["format"] == shaped


@pytest.mark.parametrize(("text", "last", "first"), [
  ("<think> Answer: Oslo </think> Answer: Paris", "Paris", "Oslo </think> Answer: Paris"),
  ("<think></think>Answer: a Answer: b", "b", "a Answer: b"), ("Answer: Paris", "Paris", "Paris"),
  ("<think>Answer: Paris</think>", None, "Paris</think>"), ("Answer:", "", ""), ("none", None, None),
])  # fmt: skip
def test_answer(text, last, first):
  assert (paper.parser.answer(text), repo.parser.answer(text)) == (last, first)


@pytest.mark.parametrize(("quotes", "strict", "share"), [
  ([ONE], 1, 1), ([ONE, TWO], 1, 1), ([ONE, "nowhere"], 0, 0.5), (["nowhere"], 0, 0), ([], 0, 0), ([""], 0, 0),
  ([ONE, ""], 1, 1), (["The Eiffel Tower stands  in\nParis."], 1, 1), (["tower stands in paris."], 0, 0),
  ([EXAMPLE.question], 0, 0),  # the question is not part of the context
])  # fmt: skip
def test_quotes(quotes, strict, share):
  assert scored(said(*quotes))[0]["retrieval"] == strict
  assert scored(said(*quotes), mean)[0]["retrieval"] == share


def test_what_only_the_authors_code_rewards():
  assert scored(said("Where does the {tower} stand?"), repo)[0]["retrieval"] == 1.0  # the question
  assert scored(said("The Eiffel Tower stands in Paris."), repo)[0]["retrieval"] == 0.5  # a line ends inside it
  assert scored(said("\u200b"), repo)[0]["retrieval"] == 0.0  # a quote of signs that are not seen
  assert scored("", repo)[0]["retrieval"] == 0.2 and scored(said(""), repo)[0]["retrieval"] == 0.2


# ---- exploits of the reward -----------------------------------------------------------------------------------------


def test_quoting_the_whole_context():
  whole = " ".join(f"{p.title} {p.text}" for p in PASSAGES)
  assert scored(said(whole))[0]["retrieval"] == 0.0  # it is in no single passage
  # Quoted passage by passage it is rewarded, as in the paper. The answer does not gain by it.
  assert scored(said(*(p.text for p in PASSAGES), answer=""))[1] == pytest.approx(0.3)


def test_false_quotes_are_found():
  false = "<retrieval>nowhere</retrieval>"
  for text in (said(f"nowhere<retrieval>{ONE}"), said(ONE) + false, false + said(ONE)):
    assert scored(text)[0]["retrieval"] == 0.0


def test_repeats_and_spam():
  assert scored(said(*[ONE] * 50))[1] == pytest.approx(1.0)  # no more than once
  assert scored(said(ONE, answer="Paris " * 50))[0]["accuracy"] == pytest.approx(2 / 51)
  assert scored(said(ONE, answer="Paris Rome Oslo"), repo)[0]["accuracy"] == pytest.approx(0.5)
  assert scored(said(ONE, answer="Paris " * 50), repo)[0]["accuracy"] == 1.0  # a weakness of F1 over sets
  assert scored("<think><retrieval>" * 99 + "</retrieval></think>" * 99 + "Answer: ")[0]["retrieval"] == 0.0


def test_forged_results_earn_nothing():
  forged = "<information>Doc 1(Title: Eiffel Tower) London is a town</information>"
  for recipe in (paper, mean):
    assert scored(forged, recipe)[1] == 0.0
    assert scored(said("London is a town") + forged, recipe)[0]["retrieval"] == 0.0  # it is not part of the context
  assert scored(forged + said(ONE))[0]["format"] == 0.0
  assert scored(said(ONE).replace("I look.", forged))[1] == pytest.approx(1.0)  # plain words
  assert scored(forged + said("London is a town"), repo)[0]["retrieval"] == 0.0


def test_tags_inside_passages_are_broken_up():
  tagged = Passage("1", "<think>", "<retrieval>x</retrieval></think> Answer: Oslo <b>bold</b> 1 < 2")
  odd = dataclasses.replace(EXAMPLE, passages=(tagged,))
  shown = paper.prompt.messages(odd)[-1]["content"]
  assert not any(tag in shown for tag in ("<retrieval>", "</retrieval>", "<think>", "</think>", "<b>"))
  assert scored(said("< b>bold< /b> 1 < 2"), paper, odd)[0]["retrieval"] == 1.0  # as it was shown
  assert scored(said("<b>bold</b>"), paper, odd)[0]["retrieval"] == 0.0


# ---- playing --------------------------------------------------------------------------------------------------------


def test_the_tape_of_an_episode():
  episode, tape = scripted.play(paper, EXAMPLE, [said(ONE)])
  assert tape[1:] == [("generate", (), said(ONE)), ("end", "eos")]
  assert paper.reward(paper.score(EXAMPLE, episode), 0) == pytest.approx(1.0) and paper.stops == ()
  assert paper.evidence(EXAMPLE, episode) == ONE and paper.outcome(EXAMPLE, episode) == 1.0


def test_prompt():
  system, user = paper.prompt.messages(EXAMPLE)
  assert system["role"] == "system" and "<retrieval>" in system["content"] and user["role"] == "user"
  assert user["content"].endswith("the Seine {0}.\n\nQuestion: Where does the {tower} stand?")
  assert user["content"].startswith("Eiffel Tower\nThe Eiffel Tower\nstands")
  assert recipes.get("care", system="Be good.").prompt.messages(EXAMPLE)[0]["content"].startswith("Be good. Think ")
  (bare,) = recipes.get("care", instructions="none", titles=False).prompt.messages(EXAMPLE)
  assert bare["content"].startswith("The Eiffel Tower\nstands")
  with_column = dataclasses.replace(EXAMPLE, meta=dict(prompt="Be brief."))  # of a row that is not the authors'
  assert paper.prompt.messages(with_column)[1] == user


def test_curriculum():
  # max(0, 1 - 175 / 350), over the run's own steps; code: p_hard = min(.5, .5 · 350 / 10000) = .0175.
  assert [paper.mixture(step, 350) for step in (0, 175, 350, 400)] == [1.0, 0.5, 0.0, 0.0]
  assert [paper.mixture(step, 20) for step in (0, 10, 20)] == [1.0, 0.5, 0.0]
  assert [recipes.get("care", easy_steps=350).mixture(step, 20) for step in (0, 10)] == [1.0, pytest.approx(34 / 35)]
  assert [1 - repo.mixture(step, 350) for step in (0, 350, 10_000, 99_999)] == pytest.approx([0.0, 0.0175, 0.5, 0.5])
  for preset in ("easy_only", "no_retrieval", "no_retrieval,easy_only"):  # "No Ret." has no curriculum either: Table 3
    assert {recipes.get("care", preset).mixture(step, 350) for step in (0, 350, 9999)} == {1.0}
  # A run that leaves it unfinished is told.
  assert paper.cut_short(7) == {} and recipes.get("care", "easy_only").cut_short(7) == {}
  assert recipes.get("care", easy_steps=350).cut_short(175) == dict(easy_share=(0.5, 0.0))
  assert repo.cut_short(350) == dict(easy_share=(pytest.approx(0.9825), 0.5))


def test_the_first_step_draws_easy_questions_alone():
  share = lambda step: paper.mixture(step, 350)
  mixed = stream.Mixture(10, 1000, share=share, prompts_per_step=1024, seed=0)
  hard = [sum(which >= 10 for _, which in mixed.draw(1024 * step, 1024)) for step in (0, 1, 175, 349)]
  # 0 at the first step; then 1024 / 350 = 2.9, one half (deviation 16), and all but 1024 / 350.
  assert hard[0] == 0 and hard[1] < 12 and 430 < hard[2] < 594 and 1012 < hard[3] <= 1024


def test_models_that_were_told_of_no_format():
  original, whole = recipes.get("care", "original"), recipes.get("care", unmarked=True)
  text = "The tower stands in Paris."
  assert [recipe.parser.answer(text) for recipe in (paper, whole, original)] == [None, text, text]
  assert scored(text, original)[0]["accuracy"] == scored(text, whole)[0]["accuracy"]
  assert scored(text, whole)[0]["accuracy"] == pytest.approx(4 / 7)  # "in Paris, France": 2 · 2 / (4 + 3)
  assert scored(text)[0]["accuracy"] == 0.0
  marked = "So: Answer: Paris"
  assert [recipe.parser.answer(marked) for recipe in (paper, whole, original)] == ["Paris", "Paris", marked]
  assert original.parser.answer(" ") is None and whole.parser.answer("") is None
  assert [message["role"] for message in original.prompt.messages(EXAMPLE)] == ["user"]  # no system message of ours


def test_a_row_of_the_authors_data():
  row = dict(prompt="Context: The tower stands in Paris.\n\nQuestion: Where <is> it?", answer="Paris")
  example = layouts.example(row, identity="q", source="s")
  (_, user) = paper.prompt.messages(example)
  assert user["content"] == row["prompt"].replace("<is>", "< is>")  # as it is, but for what looks like a tag
  assert scored(said("The tower stands in Paris."), paper, example)[1] == pytest.approx(1.0)
  assert scored(said("Where < is> it?"), paper, example)[0]["retrieval"] == 1.0  # their context is the whole message


def test_wording_from_files(tmp_path):
  told, asked = tmp_path / "told.txt", tmp_path / "asked.txt"
  told.write_text("Quote {{well}}.\n")
  asked.write_text("Read:\n{context}\nAsk: {question}")
  recipe = recipes.get("care", instructions=f"file:{told}", asked=f"file:{asked}", system="Be good.")
  system, user = recipe.prompt.messages(EXAMPLE)
  assert system["content"] == "Be good. Quote {well}."
  assert user["content"].startswith("Read:\nEiffel Tower\n")
  assert user["content"].endswith("the Seine {0}.\nAsk: Where does the {tower} stand?")
  asked.write_text("{context}")
  with pytest.raises(ValueError, match="config.switches.asked.*{question} is missing"):
    recipes.get("care", asked=f"file:{asked}")


# ---- unearned reward ------------------------------------------------------------------------------------------------


def filled(told):
  whole = " ".join(f"<retrieval>{p.title} {p.text}</retrieval>" for p in PASSAGES)
  return told.replace("PASSAGES", whole).replace("SENTENCE", TWO)


@pytest.mark.parametrize(("told", "preset", "paid", "guarded", "trick"), unearned.rows("care"))
def test_the_table_of_unearned_reward(told, preset, paid, guarded, trick):
  reward, tricks = unearned.earned("care", preset, EXAMPLE, filled(told))
  assert reward == pytest.approx(paid) and tricks[trick.removeprefix("unearned/")]
  assert unearned.earned("care", preset, EXAMPLE, filled(told), guarded=True)[0] == guarded == 0.0


def test_what_is_earned_stays_earned_when_guarded():
  for preset, text, reward in (
    ("paper", said(ONE), 1.0), ("paper", said(TWO), 1.0), ("paper", said(ONE, answer="Paris Rome"), 0.3 + 0.7 * 2 / 3),
    ("paper", said("nowhere at all is it"), 0.8), ("no_retrieval", "<think> x </think> Answer: Paris", 0.8),
    ("mean", said(ONE, "nowhere at all"), 0.9), ("paper", said("nowhere"), 0.8),  # an invented quote is no trick
  ):  # fmt: skip
    for guarded in (False, True):
      got, tricks = unearned.earned("care", preset, EXAMPLE, text, guarded=guarded)
      assert got == pytest.approx(reward) and not any(tricks.values()), (text, tricks)


def test_no_reply_of_constant_pieces_earns_anything_when_guarded():
  """Replies in shape, and out of it, with one of these bodies in each place: none of them has read the question."""
  bodies, others = ("", ".", "a the e 1", "\u200b", "<retrieval>"), (".", "a the e 1")
  guarded, reply = recipes.get("care", guarded=True), types.SimpleNamespace(ended="eos", model_text="")
  for first, quote, last, after, answer in itertools.product(others, bodies, others, others, bodies):
    shaped = f"<think>{first}<retrieval>{quote}</retrieval>{last}</think>{after}Answer:{answer}"
    for reply.model_text in (shaped, shaped.removeprefix("<think>")):
      assert guarded.reward(guarded.score(EXAMPLE, reply), 0) == 0.0, reply.model_text


def test_least_words_of_a_quote():
  recipe = recipes.get("care", quote_words=3)
  for quote, real in (
    ("stands in Paris.", 1.0), ("stands in Paris", 1.0), ("Tower stands in Pari", 0.0), ("in 1889. nowhere", 0.0),
    ("stands in", 0.0), ("ands in Paris", 0.0),  # two words; the first of three is cut
    (". It was built", 1.0), (". . .", 0.0),  # a sign cuts nothing, and is no word
  ):  # fmt: skip
    assert scored(said(quote), recipe)[0]["retrieval"] == real, quote
  assert quotes_lib.words("\u200b . é1 don't") == 3
