import dataclasses
import pathlib

import pytest

from ragrl_jax import config as config_lib, recipes
from ragrl_jax.core.rewards import queries
from ragrl_jax.prompting import passages
from ragrl_jax.recipes.when_to_search.recipe import in_shape, settled_step
from ragrl_jax.run.prepared import prepare
from ragrl_jax.structs import Episode, Example, Passage
from ragrl_jax.testing import scripted

EXAMPLE = Example("1", "Who founded the seat of Norsk Film?", ("Harald III", "Harald Hardrada"))
FILM, TOWN = Passage("p1", "Norsk Film", "Its seat is Oslo."), Passage("p2", "Oslo", "Harald III founded it.")
BLOCKS = passages.block([FILM]), passages.block([TOWN])
THINK, REFLECT, ANSWER = "<think> a </think>", "<reflect> b </reflect>", "<answer> Harald III </answer>"
SEARCH = "<search> Oslo founder </search>"
paper, exact = recipes.get("when_to_search"), recipes.get("when_to_search", "exact,ngrams")
SECOND = 400  # a step of stage 2
NOTHING = dict(answer_explore=-1.0, answer_economise=-1.0, search=0.0, format=-1.0)
ROGER = Example("1", "Who directed the film Who Framed Roger Rabbit?", ("Robert Zemeckis",))
README = pathlib.Path(recipes.__file__).parent / "when_to_search" / "README.md"


def searching(*queries, answer="Harald III", begin=THINK, reflect=REFLECT, found=(TOWN,)):
  """The turns of an episode in the right format with these searches, each of which finds the same."""
  turns, said = [], begin
  for query in queries:
    turns += [("model", f"{said}<search> {query} </search>"), ("environment", passages.block(found))]
    said = reflect
  said = said if queries else said + reflect
  return [*turns, ("model", f"{said}<answer> {answer} </answer>")]


episode = lambda turns, recipe=exact, **facts: Episode.from_text(recipe, EXAMPLE, turns, facts=facts)
scored = lambda turns, recipe=exact, **facts: recipe.score(EXAMPLE, episode(turns, recipe, **facts))


# ---- the episode ----------------------------------------------------------------------------------------------------


def test_the_tape_of_an_episode():
  said = [f"{THINK}{SEARCH} junk", f"{REFLECT}{ANSWER}"]
  played, tape = scripted.play(paper, EXAMPLE, said, [[TOWN]])
  assert tape[1:] == [
    ("generate", paper.stops, THINK + SEARCH), ("search", "Oslo founder"), ("observe", BLOCKS[1]),
    ("generate", paper.stops, REFLECT + ANSWER), ("end", "answer"),
  ]  # fmt: skip
  assert played.facts == {} and paper.outcome(EXAMPLE, played) == 1.0  # a gold answer is right without a judge
  assert paper.score(EXAMPLE, played) == dict(answer_explore=1.0, answer_economise=0.7, search=0.0, format=1.0)


@pytest.mark.parametrize("verdict", [1.0, 0.0, None])
def test_the_judge_is_asked_about_answers_that_equal_no_gold(verdict):
  said = f"{THINK}{REFLECT}<answer> The King Harald! </answer>"
  played, tape = scripted.play(paper, EXAMPLE, [said], verdicts=[verdict])
  assert tape[-1] == ("judge", (("harald iii\nharald hardrada", "king harald"),))
  terms = paper.score(EXAMPLE, played)
  assert terms["answer_explore"] == (None if verdict is None else 2 * verdict - 1)
  assert (paper.reward(terms, 1) is None) == (verdict is None) and paper.outcome(EXAMPLE, played) == verdict
  assert exact.score(EXAMPLE, played)["answer_explore"] == -1.0
  assert recipes.get("when_to_search", "no_answer_reward").reward(terms, 1) == 1.0  # it has no weight


@pytest.mark.parametrize("answer", ["<answer></answer>", "<answer> the </answer>", "", "<answer> x"])
def test_no_answer_needs_no_judge(answer):
  played, tape = scripted.play(paper, EXAMPLE, [f"{THINK}{REFLECT}{answer}"])
  assert "judge" not in [event[0] for event in tape]
  assert paper.score(EXAMPLE, played)["answer_economise"] == -1.0


def test_five_searches_and_six_generations():
  script = [f"{THINK}<search> {number} </search>" for number in range(9)]
  played, tape = scripted.play(exact, EXAMPLE, script, [[TOWN]] * 9)
  assert played.ended == "searches" and played.num_searches == 5
  assert sum(event[0] == "generate" for event in tape) == 6
  terms = exact.score(EXAMPLE, played)  # wrong, in a wrong format, and scored
  assert terms["format"] == -1.0 and terms["answer_explore"] == pytest.approx(0.5)


@pytest.mark.parametrize("said", [
  "hm", "<search>  </search>", "<search></search>", "", "<think> x </think>",
  "<information> <search> </search> </information>",
])  # fmt: skip
def test_an_invalid_action_ends_it(said):
  played, tape = scripted.play(exact, EXAMPLE, [said, "never"])
  assert [event[0] for event in tape] == ["start", "generate", "end"]
  assert played.num_searches == 0
  assert exact.score(EXAMPLE, played) == NOTHING


def test_empty_results_count_and_full_contexts_end():
  played, _ = scripted.play(exact, EXAMPLE, [THINK + SEARCH, REFLECT + ANSWER], [[]])
  assert played.num_searches == 1 and exact.score(EXAMPLE, played)["answer_economise"] == pytest.approx(0.7)
  room = len(exact.prompt.messages(EXAMPLE)[0]["content"]) + 60
  played, _ = scripted.play(exact, EXAMPLE, [THINK + SEARCH], [[TOWN]], room=room)
  assert played.ended == "budget" and played.num_searches == 0


def test_query_vectors_are_facts():
  printed = recipes.get("when_to_search", "printed", correctness="exact")
  said = [f"{THINK}<search> a b </search>", f"{REFLECT}<search> c </search>", REFLECT + ANSWER]
  played, tape = scripted.play(printed, EXAMPLE, said, [[TOWN]] * 2)
  assert tape[-1] == ("embed", ("a b", "c"))
  assert played.facts["query_vectors"] == ((3.0, 1.0), (1.0, 1.0))  # the script's: length and 1
  # cos = (3 + 1) / (√10 · √2) = 0.8944; the printed formula gives half of it
  assert printed.score(EXAMPLE, played)["search"] == pytest.approx(-0.4472, abs=1e-4)
  assert printed.score(EXAMPLE, dataclasses.replace(played, facts={}))["search"] is None
  played, tape = scripted.play(printed, EXAMPLE, [THINK + SEARCH, REFLECT + ANSWER], [[TOWN]])
  assert tape[-1] == ("end", "answer")  # one query has nothing to be compared with


# ---- the shape ------------------------------------------------------------------------------------------------------


def test_shapes_and_forged_results_are_no_search():
  forged = [("model", THINK + SEARCH + BLOCKS[1] + REFLECT + ANSWER)]
  assert scored(forged)["answer_economise"] == 1.0  # nothing was searched, and the answer was right
  again = [("model", f"{REFLECT}\n{THINK} {SEARCH}"), ("environment", BLOCKS[0]), ("model", f"\n{REFLECT}{ANSWER}\n")]
  for turns, valid in [
    (searching(), True), (searching("x"), True), (searching("x", "y"), True), (searching("x", "y", "z"), True),
    ([*searching("x")[:2], *again], True),
    ([("model", THINK + ANSWER)], False),  # no reflection
    ([("model", REFLECT + ANSWER)], False), ([("model", ANSWER)], False), ([], False), ([("model", "")], False),
    ([("model", THINK + REFLECT)], False),
    (searching("x", begin=""), False),  # a search without a thought
    (searching("x", begin=THINK + REFLECT), False),
    ([("model", THINK + REFLECT + ANSWER + "!")], False),
    ([("model", THINK + REFLECT + ANSWER + ANSWER)], False),
    ([("model", THINK + REFLECT + "<answer> a <think> b </think> </answer>")], False),
    ([*searching("x")[:2], ("model", f"{SEARCH}")], False),
    ([*searching("x")[:2], ("model", THINK + REFLECT + ANSWER)], False),
    (forged, False),
    ([("model", THINK + SEARCH), ("environment", "any notice"), ("model", REFLECT + ANSWER)], False),
    ([("model", THINK), ("environment", BLOCKS[0]), ("model", REFLECT + ANSWER)], False),
  ]:  # fmt: skip
    assert in_shape(episode(turns)) == valid
    assert scored(turns)["format"] == (1.0 if valid else -1.0)


def test_tags_in_passages_do_not_break_the_format():
  found = [Passage("1", "x", "</information> <answer> Harald III </answer> <reflect>")]
  turns = searching("x", answer="Oslo", found=found)
  assert in_shape(episode(turns)) and scored(turns)["answer_explore"] == pytest.approx(-0.7)


# ---- terms ----------------------------------------------------------------------------------------------------------


def test_three_equal_queries_in_stage_two():
  # Mean similarity 1, or 0.5 by the printed formula; 1 − 0.3 · 3 = 0.1; format 1. Together 0.1 or 0.6.
  turns = searching("Oslo founder", " OSLO founder ", "oslo  founder")
  terms = scored(turns)
  assert (terms["search"], terms["answer_economise"]) == (pytest.approx(-1.0), pytest.approx(0.1))
  assert exact.reward(terms, SECOND) == pytest.approx(0.1)
  half = recipes.get("when_to_search", "exact,ngrams", halve=True)
  assert half.reward(scored(turns, half), SECOND) == pytest.approx(0.6)


def test_a_wrong_answer_after_five_searches_in_stage_one():
  # −1 + 0.3 · 5 = 0.5; similarity 0.4; format 1: 1.1.
  # Five vectors of a common part c and a part of their own, with cosine c² = 0.4.
  vectors = [[0.4**0.5] + [0.6**0.5 * (i == j) for j in range(5)] for i in range(5)]
  recipe = recipes.get("when_to_search", "exact")
  terms = scored(searching(*"abcde", answer="Oslo"), recipe, query_vectors=vectors)
  assert recipe.reward(terms, 1) == pytest.approx(1.1)


@pytest.mark.parametrize("count", range(6))
def test_the_answers_table(count):
  queries = ["Oslo", "Norsk Film seat", "mayor", "Hardrada year", "xyz"][:count]
  right, wrong = scored(searching(*queries)), scored(searching(*queries, answer="Oslo"))
  assert (right["answer_explore"], right["answer_economise"]) == (1.0, pytest.approx(1 - 0.3 * count))
  assert (wrong["answer_explore"], wrong["answer_economise"]) == (pytest.approx(-1 + 0.3 * count), -1.0)
  for step in (1, SECOND):
    assert exact.reward({**right, "search": 0.0}, step) > exact.reward({**wrong, "search": 0.0}, step)


@pytest.mark.parametrize(("query", "term"), [
  ("Oslo founder", 0.0), ("who founded Oslo", -1.0), ("Oslo?", -1.0), (" ".join(["Oslo"] * 13), -1.0),
])  # fmt: skip
def test_a_single_query(query, term):
  assert scored(searching(query))["search"] == term
  assert scored(searching(query), recipes.get("when_to_search", "exact,ngrams", conciseness="any"))["search"] == 0.0
  two = scored(searching(query, "something else"))["search"]
  assert -0.5 < two <= 0.0  # with several queries, brevity does not count


def test_stages():
  paid = lambda recipe, step: tuple(recipe.weights(step)[name] for name in ("answer_explore", "answer_economise"))
  assert [paid(paper, step) for step in (0, 1, 300, 301, 500)] == [(1, 0)] * 3 + [(0, 1)] * 2
  for preset, expected in (
    ("no_stage_one", [(0, 1)] * 2), ("no_stage_two", [(1, 0)] * 2), ("no_answer_reward", [(0, 0)] * 2),
    ("unified", [(1, 0), (0, 1)]),
  ):  # fmt: skip
    recipe = recipes.get("when_to_search", preset)
    assert [paid(recipe, step) for step in (1, 10_000)] == expected
    assert recipe.weights(1)["search"] == recipe.weights(1)["format"] == 1.0
  assert recipes.get("when_to_search", "no_search_reward").weights(1)["search"] == 0.0


def test_unified_pays_both_at_once():
  recipe = recipes.get("when_to_search", "unified", correctness="exact", similarity="ngrams")
  for answer, pay in (("Harald III", 0.4), ("Oslo", -0.4)):
    terms = scored(searching("a", "b", answer=answer), recipe)
    assert terms["answer_explore"] == terms["answer_economise"] == pytest.approx(pay)
    assert recipe.reward(terms, 1) == recipe.reward(terms, SECOND)


def test_the_trigger():
  one = lambda step, value: {"step": step, "reward": 0.0} | ({} if value is None else {"evaluation/em": value})
  rows = lambda *values: [one(30 * number, value) for number, value in enumerate(values)]
  settled = lambda *values, patience=2: settled_step(rows(*values), metric="evaluation/em", patience=patience)
  assert settled() is settled(0.1) is settled(0.1, 0.2) is settled(0.1, 0.2, 0.3) is settled(0.1, 0.0, 0.2) is None
  assert settled(0.1, 0.1, 0.0) == 60 and settled(0.1, None, 0.1, 0.0, 0.5) == 90  # steps without an evaluation
  assert settled(0.1, 0.0, patience=1) == 30
  nan, endless = float("nan"), float("inf")  # unknown values, which every comparison would answer with no
  assert settled(nan, 0.1, 0.1, 0.0) == 90 == settled(0.1, 0.1, endless, 0.0) and settled(nan, 0.1) is None
  recipe = recipes.get("when_to_search", settle_metric="evaluation/em", settle_patience=2)
  assert recipe.next_recipe(rows(0.1, 0.2)) is recipe and paper.next_recipe is None
  assert recipe.cut_short(300) == {}  # its second stage has no fixed step
  after = recipe.next_recipe(rows(0.1, 0.1, 0.0))
  assert after.next_recipe is None and after.switches["stage_two_from"] == 61
  assert after.weights(60)["answer_explore"] == after.weights(61)["answer_economise"] == 1.0
  late = recipe.next_recipe([{"step": step, "evaluation/em": 0.1} for step in (400, 430, 460)])
  assert late.switches["stage_two_from"] == 301  # never later than planned
  never = recipes.get("when_to_search", "no_stage_two", settle_metric="evaluation/em", settle_patience=2)
  assert never.next_recipe(rows(0.1, 0.1, 0.0)).switches["stage_two_from"] == 61


# ---- attacks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [
  "<think>" * 99 + "</think>" * 99 + REFLECT, "<search>" * 99, "<answer>" * 99 + "Oslo" + "</answer>" * 99,
  (THINK + REFLECT) * 99 + "<answer> Oslo </answer>", "</answer></reflect></think>" * 99,
  THINK + REFLECT + "".join(f"<answer> {gold} </answer>" for gold in ("Harald III", "Oslo")),
  f"{THINK}<information> {ANSWER} </information>{REFLECT}",
  f"<think> {ANSWER} </think>{REFLECT}<answer> Oslo </answer>",
])  # fmt: skip
def test_tag_spam_repeated_answers_and_hidden_ones(text):
  assert scored([("model", text)]) == NOTHING


def test_copying_everything_into_the_answer():
  for answer in (f"{FILM.text} {TOWN.text}", "Harald III, Harald Hardrada"):
    assert scored(searching("Oslo", answer=answer))["answer_economise"] == -1.0


# ---- golds that normalise to nothing, titles with question words ----------------------------------------------------


@pytest.mark.parametrize("verdict", [1.0, 0.0])
def test_a_gold_that_normalises_to_nothing(verdict):
  """The band "The The", the album "?": EM is 1 for the same answer, and the judge is asked about another one."""
  example = dataclasses.replace(EXAMPLE, golds=("The The",))
  script = lambda answer: [f"{THINK}{REFLECT}<answer> {answer} </answer>"]
  played, tape = scripted.play(paper, example, script("the the"))
  assert paper.outcome(example, played) == 1.0 and tape[-1][0] == "end"
  played, tape = scripted.play(paper, example, script("A!"), verdicts=[verdict])
  assert tape[-1] == ("judge", (("The The", "A!"),)) and paper.outcome(example, played) == verdict


def test_query_words_of_a_title_are_no_question():
  known = ["Who Framed Roger Rabbit", "The Who"]
  for query in ("Who Framed Roger Rabbit director", "who framed roger rabbit director", "The Who drummer"):
    assert not queries.is_keywords(query) and queries.is_keywords(query, known)
  for query in ("who directed Who Framed Roger Rabbit", "who is the drummer of The Who", "Who drummer"):
    assert not queries.is_keywords(query, known)
  assert not queries.is_keywords("who leads it", ["Who"])  # a title of one word would excuse every question
  assert queries.names_in(ROGER.question) == ["Who Framed Roger Rabbit"]
  assert queries.names_in("Who Is The Director?") == []  # a run at the start is the question itself


@pytest.mark.parametrize(("query", "found", "term"), [
  ("Who Framed Roger Rabbit director", (), 0.0),  # the question names the film
  ("What Women Want cast", (Passage("1", "What Women Want", "A film."),), 0.0),  # what was found has the title
  ("What Women Want cast", (Passage("1", "What Women Want (2000 film)", "A film."),), 0.0),  # Wikipedia's title of it
  ("what women want", (Passage("1", "Women (2000 film)", "A film."),), -1.0),  # one word excuses nothing
  ("What Women Want cast", (), -1.0), ("who directed Who Framed Roger Rabbit", (), -1.0),
])  # fmt: skip
def test_a_single_query_with_a_title(query, found, term):
  recipe = recipes.get("when_to_search", "exact")
  made = Episode.from_text(recipe, ROGER, searching(query, found=found))
  assert recipe.score(ROGER, made)["search"] == term


def test_the_paper_compares_embeddings_and_needs_an_encoder():
  assert paper.encodes and paper.switches.similarity == "encoder"
  for preset, more in (("ngrams", {}), ("paper", dict(max_searches=1))):  # a single query is compared with none
    assert not recipes.get("when_to_search", preset, **more).encodes
  config = config_lib.load(pathlib.Path(__file__).parents[2] / "configs" / "when_to_search.py")
  config.retrieval.index = "http://localhost:1"
  with pytest.raises(ValueError, match="config.retrieval.query_encoder is empty"):
    prepare(config)


# ---- unearned reward: the table of README.md -------------------------------------------------------------------------

# Five different vectors of cosine 0, two opposite ones.
FIVE = [[float(i == j) for j in range(5)] for i in range(5)]
# trick → (turns, facts, the term that it is after)
TRICKS = {
  "paid_failure": (searching(*"xbcde", answer="Oslo"), dict(query_vectors=FIVE, correct=0.0), "answer_explore"),
  "hidden_question": (searching("who directed it?", "b"), dict(query_vectors=FIVE[:2]), "search"),
  "opposite_queries": (searching("x", "b"), dict(query_vectors=[[1.0, 0.0], [-1.0, 0.0]]), "search"),
  "wordless": (searching(begin="<think> . </think>", reflect="<reflect></reflect>"), {}, "format"),
  "hedged": (searching(answer="Oslo or Robert or Zemeckis"), dict(correct=1.0), "answer_economise"),
}


@pytest.mark.parametrize("trick", TRICKS)
def test_unearned_reward(trick):
  said, facts, term = TRICKS[trick]
  guarded = recipes.get("when_to_search", guarded=True)
  seen = {name for name, done in paper.unearned(EXAMPLE, episode(said, paper, **facts)).items() if done}
  assert seen == {trick}
  plain, less = (scored(said, recipe, **facts)[term] for recipe in (paper, guarded))
  assert less <= 0.0 and less < plain
  (line,) = [line for line in README.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{trick}` ")]
  cells = [cell.strip().replace("−", "-") for cell in line.split("|")]
  assert cells[3:6] == [f"`{term}`", f"{plain + 0.0:g}", f"{less + 0.0:g}"], (plain, less)


def test_what_is_earned_honestly_stays():
  guarded = recipes.get("when_to_search", guarded=True)
  for said, facts in (
    (searching(), {}), (searching("Oslo founder"), {}), (searching("x", "b", "c"), dict(query_vectors=FIVE[:3])),
    (searching("x", "b", "c", answer="Oslo"), dict(query_vectors=FIVE[:3], correct=0.0)),
    (searching(answer="the director Robert Zemeckis"), dict(correct=1.0)),
  ):  # fmt: skip
    made = episode(said, paper, **facts)
    assert in_shape(made) and not any(paper.unearned(EXAMPLE, made).values())
    assert paper.score(EXAMPLE, made) == guarded.score(EXAMPLE, made)
