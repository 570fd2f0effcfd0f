"""Which evidence was taken from the passages: honest and cheating evidence, by hand."""

import os
import pathlib
import tomllib

import pytest
from printed import printed

from ragrl_jax import recipes
from ragrl_jax.data import readers
from ragrl_jax.recipes.lear import grounding
from ragrl_jax.structs import Episode, Example, Passage

HERE = pathlib.Path(os.environ.get("RAGRL_DATA") or pathlib.Path(__file__).parents[3] / "shared" / "data") / "qa"
PAPER, GUARDED = recipes.get("lear"), recipes.get("lear", guarded=True)
REASON = "The question asks for one fact. The first passage seems to have it, the others less so."
TABLE = (pathlib.Path(__file__).parents[1] / "golden" / "lear_evidence.toml").read_text(encoding="utf-8")


def asked(one):
  passages = tuple(Passage(title, title, text) for title, text in one["passages"])
  return one["question"], one["gold"], passages


QUESTIONS = tomllib.loads(TABLE)["question"]
HONEST = [(asked(one), evidence) for one in QUESTIONS for evidence in one.get("honest", ())]
CHEATING = [(asked(one), *row) for one in QUESTIONS for row in one.get("cheating", ())]
FOUNDER = next(asked(one) for one in QUESTIONS if one["question"] == "Who founded the city of Oslo?")
OSLO = FOUNDER[2]


def played(asked, evidence, reason=REASON):
  question, gold, passages = asked
  example = Example("1", question, (gold,), passages)
  text = f"<reason>{reason}</reason><extract>{evidence}</extract><answer>{gold}</answer>"
  facts = dict(reason_tokens=40, evidence_tokens=9, passage_tokens=200, reason_answer=gold, extract_answer=gold)
  return example, Episode.from_text(PAPER, example, [("model", text)], facts=facts)


def earned(asked, evidence, **more):
  """(the guarded reward, the unguarded one, the tricks that are logged)."""
  example, episode = played(asked, evidence, **more)
  found = {name for name, used in PAPER.unearned(example, episode).items() if used}
  assert found == {name for name, used in GUARDED.unearned(example, episode).items() if used}
  return *(recipe.reward(recipe.score(example, episode), 1) for recipe in (GUARDED, PAPER)), found


@pytest.mark.parametrize(("asked", "evidence"), HONEST)
def test_honest_evidence_is_paid(asked, evidence):
  guarded, plain, found = earned(asked, evidence)
  assert guarded == plain > 0.9 and not found


@pytest.mark.parametrize(("asked", "trick", "evidence"), CHEATING)
def test_invented_evidence_is_not(asked, trick, evidence):
  guarded, plain, found = earned(asked, evidence)
  assert guarded == 0.0 < plain and found == {trick}


def as_printed(passages):
  return tuple(Passage(one.id, printed(one.title, wide=False), printed(one.text, wide=False)) for one in passages)


@pytest.mark.parametrize("wide", [False, True])
def test_evidence_as_it_is_printed_is_judged_as_it_is_typed(wide):
  for asked, *trick, evidence in (*HONEST, *CHEATING):
    question, gold, passages = asked
    for shown, text in ((passages, printed(evidence, wide=wide)), (as_printed(passages), evidence)):
      assert earned((question, gold, shown), text)[2] == set(trick), (text, shown)


def test_evidence_that_repeats_a_word_is_judged_at_once():
  judge = grounding.Judge((Passage("1", "Oda", "Oda was born in Velmar."),), "Who was born in Velmar?", ("Oda",))
  for word, lacks in (("text", "not"), ("nothing", "relevant"), ("kontext", "keine")):
    assert not judge.unit(f"{word} " * 20_000).abstains  # it took minutes
    assert judge.unit(f"{lacks}. {word} {word} x {lacks}").abstains and not judge.unit(f"{word}. {lacks}").abstains


def test_a_reason_that_copies_all_passages_earns_nothing():
  everything = " ".join(passage.text for passage in OSLO)
  assert earned(FOUNDER, "Harald III founded Oslo.", reason=everything)[::2] == (0.0, {"copied_reason"})
  quoting = f'{REASON} Passage 1 says "Harald III founded Oslo." Passage 3 is about Bergen: "Olaf III founded Bergen".'
  assert not earned(FOUNDER, "Harald III founded Oslo.", reason=quoting)[2]


def test_a_refusal_is_looked_for_in_linear_time():
  judge = grounding.Judge((), "Who?", ("x",))
  for part in ("no none ", "the source, ", "文的"):
    assert not any(unit.abstains for unit in judge.units(part * 10_000))
    assert any(unit.abstains for unit in judge.units(f"{part * 10_000} of the text says nothing 没有"))


def test_retrieved_passages_are_the_source():
  """A question without passages gets them by a search; `play` keeps them as a fact, since the question has none."""
  example, episode = played(FOUNDER, "Harald III founded Oslo.")
  bare = Example("1", FOUNDER[0], (FOUNDER[1],))
  facts = dict(episode.facts) | dict(retrieved=[(passage.title, passage.text) for passage in OSLO])
  found = Episode.from_text(PAPER, bare, [("model", episode.model_text)], facts=facts)
  assert PAPER.unearned(bare, found) == PAPER.unearned(example, episode)
  assert PAPER.unearned(bare, Episode.from_text(PAPER, bare, [("model", episode.model_text)]))["made_up"]


@pytest.mark.real
@pytest.mark.skipif(not HERE.is_dir(), reason=f"no real questions in {HERE}: set RAGRL_DATA")
def test_supporting_sentences_of_real_sets_are_paid():
  """Of 200 questions each: the marked sentences are honest evidence, a template of question and answer is not."""
  for name in ("hotpotqa_dev", "2wikimultihopqa_dev"):
    asked = [e for e in readers.read_examples(HERE / f"{name}.jsonl.gz", max_examples=200) if e.evidence]
    judges = [grounding.Judge(e.passages, e.question, e.golds) for e in asked]
    refused = [any(one.tricks(" ".join(s for _, s in e.evidence)).values()) for one, e in zip(judges, asked)]
    template = lambda example: f"The answer to {example.question} is {example.golds[0]}."
    paid = [not any(one.tricks(template(example)).values()) for one, example in zip(judges, asked)]
    assert sum(refused) <= 0.04 * len(asked) and sum(paid) <= 0.02 * len(asked), name
