import collections
import dataclasses
import random
import re
import types

import pytest

from ragrl_jax import recipes
from ragrl_jax.data import synthetic
from ragrl_jax.recipes.care import demonstrate as quoting
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


def test_published_fixtures():
  assert scored("no idea", repo) == (dict(accuracy=0.0, format=0.0, retrieval=0.2), pytest.approx(0.2 * 0.2))
  # One quote word for word, one with a letter wrong, one from nowhere: (1 + 0.5 + 0) / 3.
  terms, _ = scored(said("stands in Paris.", "paris is the capital of Franse.", "London is a town"), repo)
  assert terms["retrieval"] == pytest.approx(0.5)
  # Sets of raw words: {the, Eiffel, Tower.} and {Eiffel, Tower} share one; 2 · 1 / 5.
  tower = dataclasses.replace(EXAMPLE, golds=("Eiffel Tower",))
  assert scored("Answer: the Eiffel Tower.", repo, tower)[0]["accuracy"] == pytest.approx(0.4)
  assert scored("Answer: the Eiffel Tower.", paper, tower)[0]["accuracy"] == 1.0


def test_weights():
  assert scored(said(ONE))[1] == pytest.approx(1.0) and scored("")[1] == 0.0
  assert scored(said("nowhere"))[1] == pytest.approx(0.8)
  assert scored(said(ONE, answer="Oslo"))[1] == pytest.approx(0.3)
  assert scored(said("nowhere"), recipes.get("care", "no_retrieval"))[1] == pytest.approx(0.8)
  assert scored(said(ONE), recipes.get("care", "no_retrieval"))[1] == pytest.approx(0.8)


def test_format():
  for text, shaped in [
    (said(ONE), 1),
    (said(ONE, TWO), 1),
    ("\n " + said(ONE) + " \n", 1),
    (said(ONE, after=" so then "), 1),
    ("So: " + said(ONE), 0),
    ("<think>a</think><think><retrieval>b</retrieval></think>Answer: c", 0),
    ("<think>a</think><retrieval>b</retrieval>Answer: c", 0),
    ("<think><retrieval></retrieval></think>Answer:", 1),
    ("<think></retrieval>b</retrieval></think>Answer: c", 0),
    ("<think><retrieval>b</retrieval>Answer: c</think>", 0),
    ("<think><retrieval>b</retrieval>", 0),
    ("<think>", 0),
    ("<think></think>", 0),
    ("", 0),
    ("<think><retrieval>b</think></retrieval> Answer: c", 0),
    ("<think><retrieval>b</retrieval></think> answer: c", 0),
  ]:
    assert scored(text)[0]["format"] == scored(text, repo)[0]["format"] == shaped


@pytest.mark.parametrize(
  ("text", "last", "first"),
  [
    ("<think> Answer: Oslo </think> Answer: Paris", "Paris", "Oslo </think> Answer: Paris"),
    ("<think></think>Answer: a Answer: b", "b", "a Answer: b"),
    ("Answer: Paris", "Paris", "Paris"),
    ("<think>Answer: Paris</think>", None, "Paris</think>"),
    ("Answer:", "", ""),
    ("none", None, None),
  ],
)
def test_answer(text, last, first):
  assert (paper.parser.answer(text), repo.parser.answer(text)) == (last, first)


@pytest.mark.parametrize(
  ("quotes", "strict", "share"),
  [
    ([ONE], 1, 1),
    ([ONE, TWO], 1, 1),
    ([ONE, "nowhere"], 0, 0.5),
    (["nowhere"], 0, 0),
    ([], 0, 0),
    ([""], 0, 0),
    ([ONE, ""], 1, 1),
    (["The Eiffel Tower stands  in\nParis."], 1, 1),
    (["tower stands in paris."], 0, 0),
    ([EXAMPLE.question], 0, 0),
  ],
)  # the question is no context
def test_quotes(quotes, strict, share):
  assert scored(said(*quotes))[0]["retrieval"] == strict
  assert scored(said(*quotes), mean)[0]["retrieval"] == share


def test_what_only_the_code_pays():
  assert scored(said("Where does the {tower} stand?"), repo)[0]["retrieval"] == 1.0  # the question
  assert scored(said("The Eiffel Tower stands in Paris."), repo)[0]["retrieval"] == 0.5  # a line ends inside it
  assert scored("", repo)[0]["retrieval"] == 0.2 and scored(said(""), repo)[0]["retrieval"] == 0.2


# ---- playing the reward ---------------------------------------------------------------------------------------------


def test_quoting_the_whole_context():
  whole = " ".join(f"{p.title} {p.text}" for p in PASSAGES)
  assert scored(said(whole))[0]["retrieval"] == 0.0  # no passage holds it
  # Passage by passage it is paid, as the paper has it; the answer is not helped by it.
  assert scored(said(*(p.text for p in PASSAGES), answer=""))[1] == pytest.approx(0.3)


def test_false_quotes_do_not_hide():
  for text in (
    said(f"nowhere<retrieval>{ONE}"),
    said(ONE) + "<retrieval>nowhere</retrieval>",
    "<retrieval>nowhere</retrieval>" + said(ONE),
  ):
    assert scored(text)[0]["retrieval"] == 0.0


def test_repeats_and_spam():
  assert scored(said(*[ONE] * 50))[1] == pytest.approx(1.0)  # no more than once
  assert scored(said(ONE, answer="Paris " * 50))[0]["accuracy"] == pytest.approx(2 / 51)
  assert scored(said(ONE, answer="Paris Rome Oslo"), repo)[0]["accuracy"] == pytest.approx(0.5)
  assert scored(said(ONE, answer="Paris " * 50), repo)[0]["accuracy"] == 1.0  # the hole in F1 over sets
  assert scored("<think><retrieval>" * 99 + "</retrieval></think>" * 99 + "Answer: ")[0]["retrieval"] == 0.0


def test_results_of_its_own_are_worth_nothing():
  forged = "<information>Doc 1(Title: Eiffel Tower) London is a town</information>"
  for recipe in (paper, mean):
    assert scored(forged, recipe)[1] == 0.0
    assert scored(said("London is a town") + forged, recipe)[0]["retrieval"] == 0.0  # it is no context
  assert scored(forged + said(ONE))[0]["format"] == 0.0
  assert scored(said(ONE).replace("I look.", forged))[1] == pytest.approx(1.0)  # words like any others
  assert scored(forged + said("London is a town"), repo)[0]["retrieval"] == 0.0


def test_tags_inside_passages_are_broken_up():
  odd = dataclasses.replace(
    EXAMPLE, passages=(Passage("1", "<think>", "<retrieval>x</retrieval></think> Answer: Oslo <b>bold</b> 1 < 2"),)
  )
  shown = paper.prompt.messages(odd)[-1]["content"]
  assert not any(tag in shown for tag in ("<retrieval>", "</retrieval>", "<think>", "</think>", "<b>"))
  assert scored(said("< b>bold< /b> 1 < 2"), paper, odd)[0]["retrieval"] == 1.0  # as it was shown
  assert scored(said("<b>bold</b>"), paper, odd)[0]["retrieval"] == 0.0


def test_a_failed_episode_is_not_scored():
  episode = dataclasses.replace(Episode.from_text(paper, EXAMPLE, [("model", said(ONE))]), ended="failed")
  assert set(paper.score(EXAMPLE, episode).values()) == {None}


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


def test_curriculum():
  # max(0, 1 - 175 / 350); code: p_hard = min(.5, .5 · 350 / 10000) = .0175.
  assert [paper.mixture(step) for step in (0, 175, 350, 400)] == [1.0, 0.5, 0.0, 0.0]
  assert [1 - repo.mixture(step) for step in (0, 350, 10_000, 99_999)] == pytest.approx([0.0, 0.0175, 0.5, 0.5])
  assert {recipes.get("care", "easy_only").mixture(step) for step in (0, 350, 9999)} == {1.0}


# ---- demonstrations -------------------------------------------------------------------------------------------------

WORLD = synthetic.build(seed=2, entities=200, held_out=20, years=True)
ASKED = synthetic.questions(WORLD, 60, mix={1: 1, 2: 1, 3: 1, "comparison": 1, "yes_no": 1}, passages=6)


def demonstrated(example, **options):
  turns = quoting.demonstrate(example, WORLD, random.Random(example.id), **options)
  episode = Episode.from_text(paper, example, turns)
  return paper.score(example, episode), episode


def test_demonstrations_with_and_without_faults():
  missed = collections.Counter()
  for example in ASKED:
    terms, episode = demonstrated(example, fault=0.0)
    assert terms == dict(accuracy=1.0, format=1.0, retrieval=1.0)
    assert all(sentence in paper.evidence(example, episode) for _, sentence in example.evidence)
    assert demonstrated(example, fault=1.0, kinds=("misquote",))[0] == dict(accuracy=1.0, format=1.0, retrieval=0.0)
    assert demonstrated(example, fault=1.0, kinds=("silent",))[0] == dict(accuracy=1.0, format=0.0, retrieval=0.0)
    for kind in ("stop", "wrong"):
      terms, episode = demonstrated(example, fault=1.0, kinds=(kind,))
      assert terms["format"] == terms["retrieval"] == 1.0
      missed[kind] += paper.outcome(example, episode) == 0.0
  assert missed["stop"] == sum(example.hops > 1 for example in ASKED) and missed["wrong"] > 30
  with pytest.raises(ValueError, match="misquote"):
    demonstrated(ASKED[0], kinds=("loud",))


# ---- any transcript -------------------------------------------------------------------------------------------------

PIECES = [
  "<think>",
  "</think>",
  "<retrieval>",
  "</retrieval>",
  "Answer:",
  " Paris ",
  ONE,
  TWO,
  "nowhere",
  "\n",
  " ",
  "<",
  "é",
  said(ONE),
  "Tower stand in Paris.",
  "{0}",
  "%s",
]


@pytest.mark.long  # a hundred thousand transcripts
def test_no_transcript_breaks_anything():
  """10⁵ of them, those that differ read, half of these scored; against the patterns of the authors' code."""
  whole = re.compile(r"<think>.*</think>.*Answer:.*", re.DOTALL)
  block = re.compile(r"<think>(.*?)</think>", re.DOTALL)
  pair = re.compile(r"<retrieval>(.*?)</retrieval>", re.DOTALL)
  draw = random.Random(0)
  best, seen = 0, set()
  for number in range(100_000):
    text = "".join(draw.choices(PIECES, k=draw.randint(0, 7)))
    if text in seen:
      continue
    seen.add(text)
    shaped = whole.fullmatch(text.strip()) and pair.search(block.search(text.strip())[1])
    assert paper.parser.in_shape(text) == bool(shaped)
    assert paper.parser.quotes(text) == [" ".join(q.split()) for q in pair.findall(text) if q.strip()]
    if number % 2:
      continue
    recipe = (paper, repo, paper, mean)[number // 2 % 4]
    terms = recipe.score(EXAMPLE, types.SimpleNamespace(model_text=text, ended="eos"))
    assert all(0.0 <= value <= 1.0 for value in terms.values()) and terms["format"] == bool(shaped)
    best += recipe.reward(terms, 0) > 0.999
  assert best > 80
