"""When to Search: golds that normalise to nothing, titles with question words, and unearned reward."""

import dataclasses
import pathlib

import pytest

from ragrl_jax import config as config_lib
from ragrl_jax import recipes
from ragrl_jax.core.rewards import queries
from ragrl_jax.prompting import passages
from ragrl_jax.recipes.when_to_search.recipe import in_shape
from ragrl_jax.run.prepared import prepare
from ragrl_jax.structs import Episode, Example, Passage
from ragrl_jax.testing import scripted

EXAMPLE = Example("1", "Who directed the film Who Framed Roger Rabbit?", ("Robert Zemeckis",))
THINK, REFLECT = "<think> a </think>", "<reflect> b </reflect>"
README = pathlib.Path(recipes.__file__).parent / "when_to_search" / "README.md"


def turns(*asked, answer="Robert Zemeckis", found=(), think=THINK, reflect=REFLECT):
  block, said, made = passages.block(found), think, []
  for query in asked:
    made += [("model", f"{said}<search> {query} </search>"), ("environment", block)]
    said = reflect
  return [*made, ("model", f"{said if asked else said + reflect}<answer> {answer} </answer>")]


def episode(recipe, said, **facts):
  return Episode.from_text(recipe, EXAMPLE, said, facts=facts)


@pytest.mark.parametrize(("verdict", "right"), [(1.0, 1.0), (0.0, 0.0)])
def test_a_gold_that_normalises_to_nothing(verdict, right):
  """The band "The The", the album "?": EM is 1 for the same answer, and the judge is asked about another one."""
  recipe = recipes.get("when_to_search")
  example = dataclasses.replace(EXAMPLE, golds=("The The",))
  script = lambda answer: [f"{THINK}{REFLECT}<answer> {answer} </answer>"]
  played, tape = scripted.play(recipe, example, script("the the"))
  assert recipe.outcome(example, played) == 1.0 and tape[-1][0] == "end"
  played, tape = scripted.play(recipe, example, script("A!"), verdicts=[verdict])
  assert tape[-1] == ("judge", (("The The", "A!"),)) and recipe.outcome(example, played) == right


def test_query_words_of_a_title_are_no_question():
  known = ["Who Framed Roger Rabbit", "The Who"]
  for query in ("Who Framed Roger Rabbit director", "who framed roger rabbit director", "The Who drummer"):
    assert not queries.is_keywords(query) and queries.is_keywords(query, known)
  for query in ("who directed Who Framed Roger Rabbit", "who is the drummer of The Who", "Who drummer"):
    assert not queries.is_keywords(query, known)
  assert not queries.is_keywords("who leads it", ["Who"])  # a title of one word would excuse every question
  assert queries.names_in(EXAMPLE.question) == ["Who Framed Roger Rabbit"]
  assert queries.names_in("Who Is The Director?") == []  # a run at the start is the question itself


@pytest.mark.parametrize(
  ("query", "found", "term"),
  [
    ("Who Framed Roger Rabbit director", (), 0.0),  # the question names the film
    ("What Women Want cast", (Passage("1", "What Women Want", "A film."),), 0.0),  # what was found has the title
    ("What Women Want cast", (Passage("1", "What Women Want (2000 film)", "A film."),), 0.0),  # Wikipedia's title of it
    ("what women want", (Passage("1", "Women (2000 film)", "A film."),), -1.0),  # one word excuses nothing
    ("What Women Want cast", (), -1.0),
    ("who directed Who Framed Roger Rabbit", (), -1.0),
  ],
)
def test_a_single_query_with_a_title(query, found, term):
  recipe = recipes.get("when_to_search", "exact")
  assert recipe.score(EXAMPLE, episode(recipe, turns(query, found=found)))["search"] == term


def test_the_paper_compares_embeddings_and_needs_an_encoder():
  paper = recipes.get("when_to_search")
  assert paper.encodes and paper.switches.similarity == "encoder"
  assert not recipes.get("when_to_search", "ngrams").encodes
  config = config_lib.load(pathlib.Path(__file__).parents[2] / "configs" / "when_to_search.py")
  config.retrieval.index = "http://localhost:1"
  with pytest.raises(ValueError, match="config.retrieval.query_encoder is empty"):
    prepare(config)


# ---- unearned reward: the table of README.md -------------------------------------------------------------------------

# Five different vectors of cosine 0, two opposite ones.
FIVE = [[float(i == j) for j in range(5)] for i in range(5)]
# trick → (turns, facts, the term that it is after)
TRICKS = {
  "paid_failure": (turns(*"xbcde", answer="Oslo"), dict(query_vectors=FIVE, correct=0.0), "answer_explore"),
  "hidden_question": (turns("who directed it?", "b"), dict(query_vectors=FIVE[:2]), "search"),
  "opposite_queries": (turns("x", "b"), dict(query_vectors=[[1.0, 0.0], [-1.0, 0.0]]), "search"),
  "wordless": (turns(think="<think> . </think>", reflect="<reflect></reflect>"), {}, "format"),
  "hedged": (turns(answer="Oslo or Robert or Zemeckis"), dict(correct=1.0), "answer_economise"),
}


@pytest.mark.parametrize("trick", TRICKS)
def test_unearned_reward(trick):
  said, facts, term = TRICKS[trick]
  paper, guarded = recipes.get("when_to_search"), recipes.get("when_to_search", guarded=True)
  seen = {name for name, done in paper.unearned(EXAMPLE, episode(paper, said, **facts)).items() if done}
  assert seen == {trick}
  plain, less = (recipe.score(EXAMPLE, episode(recipe, said, **facts))[term] for recipe in (paper, guarded))
  assert less <= 0.0 and less < plain
  (line,) = [line for line in README.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{trick}` ")]
  cells = [cell.strip().replace("−", "-") for cell in line.split("|")]
  assert cells[3:6] == [f"`{term}`", f"{plain + 0.0:g}", f"{less + 0.0:g}"], (plain, less)


def test_what_is_earned_honestly_stays():
  paper, guarded = recipes.get("when_to_search"), recipes.get("when_to_search", guarded=True)
  for said, facts in (
    (turns(), {}),
    (turns("Roger Rabbit director"), {}),
    (turns("x", "b", "c"), dict(query_vectors=FIVE[:3])),
    (turns("x", "b", "c", answer="Oslo"), dict(query_vectors=FIVE[:3], correct=0.0)),
    (turns(answer="the director Robert Zemeckis"), dict(correct=1.0)),
  ):
    made = episode(paper, said, **facts)
    assert in_shape(made) and not any(paper.unearned(EXAMPLE, made).values())
    assert paper.score(EXAMPLE, made) == guarded.score(EXAMPLE, made)
