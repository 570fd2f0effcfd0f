"""Demonstrations without a model: six recipes' scripts, played with a real index, earn the whole reward."""

import asyncio
import dataclasses
import random

import pytest
from console import ragrl
from refusals import refused

from ragrl_jax import config as config_lib, retrieval, settings, structs
from ragrl_jax.data import readers, writers
from ragrl_jax.evaluation import demonstrations
from ragrl_jax.jobs import sft
from ragrl_jax.recipes import scripts
from ragrl_jax.structs import Example, Passage

LINZ = Passage("1", "Linz", "Linz lies on the Danube. Its bridge was built in 1872 by Dr. Karl Weber of St. Anton.")
WEBER = Passage("2", "Karl Weber", "Karl Weber was an engineer. He was born in the town of Melk in 1831.")
OTHERS = tuple(
  Passage(str(number), f"Town {number}", f"Town {number} has a market on the river. It is old and has {number} gates.")
  for number in range(3, 9)
)
ONE_HOP = Example("a", "Who built the bridge of Linz?", ("Weber", "Karl Weber"), (*OTHERS[:3], LINZ), (3,))
STEPS = [
  dict(question="Linz >> builder of the bridge", answer="Karl Weber", passage=1),
  dict(question="#1 >> town of birth", answer="Melk", passage=3),
]
TWO_HOPS = Example(
  "b", "In which town was the man born who built the bridge of Linz?", ("Melk",), (OTHERS[0], LINZ, OTHERS[1], WEBER),
  (3, 1), meta=dict(decomposition=STEPS),
)  # fmt: skip
QUOTE = "Its bridge was built in 1872 by Dr. Karl Weber of St. Anton."
BORN = "He was born in the town of Melk in 1831."
VARIANTS = (
  "arena", "arena:naive", "arena:direct", "arena:repo", "care", "care:repo", "lear", "lear:vanilla", "lear:rationale",
  "lear:inference", "lear:generator", "lear:thoughts", "search_r1", "search_r1:format", "search_r1:repo",
  "search_r1:r1", "search_r1:browse", "veritas", "veritas:em_format", "when_to_search", "when_to_search:exact,ngrams",
)  # fmt: skip


@pytest.fixture(scope="module")
def index(tmp_path_factory):
  folder = tmp_path_factory.mktemp("scripts") / "index"
  return retrieval.build_index((LINZ, WEBER, *OTHERS), "bm25", folder, progress=False)


def maker(name, index, **switches):
  config = config_lib.load(name)
  config.retrieval.index, config.retrieval.top_k = str(index), 2
  config.switches.instructions = "short" if not name.endswith(":r1") else "no_search"
  config.switches.update(switches)
  return demonstrations.Maker(settings.of(config))


played = lambda made, *examples: asyncio.run(made.many(examples, 0))


@pytest.mark.parametrize("name", VARIANTS)
def test_a_demonstration_is_right_in_shape_and_without_tricks(name, index):
  made = maker(name, index, **(dict(guarded=True) if name != "lear:generator" else {}))
  kept, counts = played(made, ONE_HOP, TWO_HOPS)
  assert len(kept) == 2, counts
  for example, turns in kept:
    episode = structs.Episode.from_text(made.recipe, example, turns)
    shown = dataclasses.replace(example, meta=dict(turns=turns))
    ids, weights = sft.tokenised(made.recipe, shown, made.tokenizer, 0.0)  # SFT reads it, and trains the model's text
    assert bytes(i for i, weight in zip(ids, weights) if weight and i < 256).decode() == episode.model_text
    terms = made.recipe.score(example, episode)
    assert terms.get("format", 1.0) == 1.0
    if name.split(":")[0] == "arena" and "relevance" in terms:
      assert terms == dict(format=1.0, accuracy=1.0, relevance=1.0, bonus=1.0)
    assert name.split(":")[0] != "care" or terms["retrieval"] == 1.0
    if made.recipe.searches and not made.recipe.needs_passages:
      assert made.recipe.outcome(example, episode) == 1.0


def test_the_replies_quote_the_sentence_with_the_answer_and_number_its_passage(index):
  said = lambda name: dict((e.id, turns[0][1]) for e, turns in played(maker(name, index), ONE_HOP, TWO_HOPS)[0])
  # "Karl Weber" and "Weber" are both in the sentence: the first gold is the answer. "Dr." and "St." end no sentence.
  assert said("arena")["a"] == (
    f"<relevance> [4] </relevance>\n<analysis> [4] says: {QUOTE} So the answer is Weber. </analysis>\n"
    "<answer> Weber </answer>"
  )
  # Passages 2 and 4, in the order of the decomposition.
  assert said("arena")["b"].startswith(
    f"<relevance> [2, 4] </relevance>\n<analysis> [2] says: {QUOTE} [4] says: {BORN} So the answer is Melk."
  )
  assert said("care")["a"] == (
    f"<think> The context says <retrieval> {QUOTE} </retrieval> So it is Weber. </think> Answer: Weber"
  )
  assert f"<extract> {QUOTE} {BORN} </extract>\n<answer> Melk </answer>" in said("lear")["b"]


def test_a_search_agent_follows_the_decomposition_and_then_the_missing_title(index):
  queries = lambda example, name="search_r1": [
    text.partition("<search>")[2].partition("</search>")[0].strip()
    for owner, text in played(maker(name, index), example)[0][0][1]
    if owner == structs.MODEL and "<search>" in text
  ]
  assert queries(TWO_HOPS) == ["Linz builder of the bridge", "Karl Weber town of birth"]
  # The question's words are not in WEBER's passage, which is found by its title.
  hidden = dataclasses.replace(TWO_HOPS, question="Linz on the Danube bridge?", meta={})
  assert queries(hidden) == ["Linz on the Danube bridge?", "Karl Weber Linz Danube bridge"]
  known = lambda flag: dataclasses.replace(ONE_HOP, meta=dict(known=flag))
  assert queries(known(False), "when_to_search") == queries(known("False"), "when_to_search") == ["built bridge Linz"]
  assert queries(known(True), "when_to_search") == []


def test_thoughts_number_the_results_of_the_search(index):
  ((_, turns),) = played(maker("veritas", index), ONE_HOP)[0]
  assert [owner for owner, _ in turns] == [structs.MODEL, structs.ENVIRONMENT, structs.MODEL]
  assert turns[1][1].startswith("\n\n<information>Doc 1(Title: Linz) ")
  assert turns[2][1] == f"<think> Doc 1 says: {QUOTE} So the answer is Weber. </think><answer> Weber </answer>"


def test_rows_that_cannot_be_shown_are_counted_by_reason(index):
  unknown = dataclasses.replace(ONE_HOP, supporting=())
  elsewhere = dataclasses.replace(ONE_HOP, golds=("Bauer",))
  steyr = dict(passages=(Passage("x", "Steyr", "Its bridge is by Weber."),), question="Bridge of Steyr?")
  absent = dataclasses.replace(ONE_HOP, supporting=(0,), **steyr)
  kept, counts = played(maker("search_r1", index), ONE_HOP, unknown, elsewhere, absent)
  assert [example for example, _ in kept] == [ONE_HOP]
  assert counts == {
    demonstrations.KEPT: 1,
    "left out: no passage marked as supporting": 1,
    "left out: no sentence of a supporting passage has the answer": 1,
    "left out: the searches do not find the supporting passages": 1,
  }
  yes = dataclasses.replace(ONE_HOP, question="Is Weber the builder of the bridge of Linz?", golds=("yes",))
  assert len(played(maker("care", index), yes)[0]) == 1  # no passage says "yes"
  for name, eos in (("arena", 0), ("care", 1)):  # CARE's reply ends with EOS, which takes a token
    made = maker(name, index)
    size = len(played(made, ONE_HOP)[0][0][1][0][1]) + eos  # without a tokenizer, one byte is one id
    made.longest = size
    assert len(played(made, ONE_HOP)[0]) == 1
    made.longest = size - 1
    assert played(made, ONE_HOP) == ([], {"left out: a turn longer than config.rollout.max_new_tokens": 1})
  made.room = 50
  assert played(made, ONE_HOP) == ([], {"left out: longer than config.rollout.context": 1})
  made = maker("arena", index)
  made.recipe = dataclasses.replace(made.recipe, script=lambda *_: "<answer> Weber </answer>")
  # The code of CARE pays for the first gold alone, and the sentence has the second one.
  aliases = dataclasses.replace(ONE_HOP, golds=("K. Weber", "Weber"))
  for maker_of, asked in ((made, ONE_HOP), (maker("care:repo", index), aliases)):
    (status,) = played(maker_of, asked)[1]
    assert status == "left out: the recipe does not give it the full reward for format and answer"


def test_the_seed_draws_the_questions(index):
  asked = [dataclasses.replace(ONE_HOP, id=str(number)) for number in range(20)]
  made = maker("arena", index)
  drawn = [example.id for example, _ in asyncio.run(made.many(asked, 5))[0]]
  order = [example.id for example in asked]
  random.Random(made.seed).shuffle(order)
  assert drawn == order[:5]
  made.seed += 1
  assert drawn != [example.id for example, _ in asyncio.run(made.many(asked, 5))[0]]


def test_recipes_without_a_script_or_an_index_are_refused(index):
  says = "veritas with these switches has no demonstrations; there are some for arena"
  refused(says, maker, "veritas:reward_model", index)
  refused(r"config\.retrieval\.index is empty, and search_r1 searches: name an index", maker, "search_r1", "")


def test_steps_that_are_not_of_the_supporting_passages_are_ignored():
  for steps in ("x", [3], [dict(passage=[1])], [dict(question="?", answer="Linz", passage=0)], STEPS[:1]):
    facts = scripts.facts(dataclasses.replace(TWO_HOPS, meta=dict(decomposition=steps)))
    assert [fact.sentence for fact in facts][-1] == BORN and len(facts) == 2


def test_a_no_is_not_looked_for_in_the_passages_and_an_unanswerable_row_is_not_shown():
  ashe = Passage("1", "Ashe", "Ashe was an American tennis player. He was No. 3 in July.")
  no = Example("a", "Are Ashe and Noah tennis players of the same country?", ("No.",), (ashe,), (0,))
  (fact,) = scripts.facts(no)
  assert (fact.sentence, fact.golds) == ("Ashe was an American tennis player.", ())
  oslo = dataclasses.replace(no, passages=(Passage("1", "Oslo", "Oslo has no port. It is in Norway."),))
  (fact,) = scripts.facts(dataclasses.replace(oslo, golds=("Norway", "NO")))
  assert (fact.sentence, fact.golds) == ("It is in Norway.", ("Norway",))
  marked = dataclasses.replace(ONE_HOP, meta=dict(answerable=False))
  refused("unanswerable", scripts.facts, marked, error=scripts.NotShown)


def test_the_command(tmp_path):
  writers.write_examples(tmp_path / "asked.jsonl", [ONE_HOP, TWO_HOPS])
  words = ["demonstrate", "--config=arena", "--config.switches.instructions=short"]
  words += [f"--data={tmp_path}/asked.jsonl", f"--out={tmp_path}/sft.jsonl.gz"]
  ragrl(*words, "--examples=1", says="1  kept")
  (example,) = readers.read_examples(tmp_path / "sft.jsonl.gz")
  assert example.meta["turns"][0][0] == structs.MODEL
  writers.write_examples(tmp_path / "asked.jsonl", [dataclasses.replace(ONE_HOP, supporting=())])
  told = ragrl(*words)
  assert told.returncode == 2 and "none of 1 questions can be demonstrated (1: left out: no passage" in told.stderr
