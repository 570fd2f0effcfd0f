import math

import paper_runs
import pytest
from refusals import refused

from ragrl_jax.core.metrics import qa
from ragrl_jax.evaluation import answer_recall, comparison, corpus_audit, records
from ragrl_jax.report import evaluation_page
from ragrl_jax.run import questions
from ragrl_jax.structs import Example, Passage

HIT, MISS = Passage("1", "", "It is in Paris."), Passage("2", "", "A comparison of Parisians.")


def test_recall_and_ndcg_by_hand():
  example = Example("1", "Where?", ("Paris",))
  titled = Passage("3", "Paris", "A city.")
  found = answer_recall.measured([example] * 4, [[HIT, MISS], [MISS, HIT, titled], [MISS, MISS, HIT], []], 2)
  # Recall@2: yes, yes (second), no (third), no. nDCG@2: 1; (1 / log2 3) over the best of the first two, 1; 0; 0.
  assert found["n"] == 4 and found["recall@2"] == 0.5
  # By DPR's rule a title does not count.
  assert answer_recall.measured([example], [[MISS, titled]], 2)["recall@2"] == 0.0
  assert found["ndcg@2"] == pytest.approx((1 + 1 / math.log2(3)) / 4)
  deeper = answer_recall.measured([example], [[MISS, HIT, Passage("4", "", "Paris.")]], 3)
  assert deeper["ndcg@3"] == pytest.approx((1 / math.log2(3) + 1 / math.log2(4)) / (1 + 1 / math.log2(3)))
  # Yes and no say nothing of a passage. A band's name is one of several golds.
  asked = [Example("2", "Is it?", ("no",)), Example("3", "Who?", ("Yes", "Yes (band)"))]
  said = [Passage("5", "", "No and yes."), Passage("6", "", "Yes (band)")]
  assert answer_recall.measured(asked[:1], [said], 2) == dict(n=0)
  both = answer_recall.measured(asked, [said, said], 2)
  assert (both["n"], both["recall@2"], both["mrr@2"]) == (1, 1.0, 0.5)
  refused("no questions", answer_recall.measured, [], [], 5)


def test_a_gold_document_is_found_by_the_passages_that_were_cut_from_it():
  found = tuple(Passage(name, "", "") for name in ("x#0", "d#3", "d#1", "e#2"))
  example = Example("1", "Where?", ("Paris",), found, meta=dict(gold_ids=["d", "e"]))
  scores = answer_recall.gold_scores(example, found, 3)
  ideal = 1 + 1 / math.log2(3)
  assert scores == dict(recall=0.5, ndcg=pytest.approx(1 / math.log2(3) / ideal), mrr=0.5)
  assert corpus_audit.holdings([example], found).ids == {"d", "e"}
  assert questions.marked(example).supporting == (1, 2, 3)


def test_a_folder_of_recall_fills_lears_table_three(tmp_path):
  """By the ids' split, and for HotpotQA by bridge questions alone: two questions, one with a hit at rank two."""
  given = {0: (MISS, HIT), 7: (MISS,)}
  asked = [Example(f"dev_{i}", "Where?", ("Paris",), found, source="hotpotqa") for i, found in given.items()]
  measured = answer_recall.measured(asked, [example.passages for example in asked], 5)
  fill = lambda name: paper_runs.cells("lear", "Table 3", records.read(tmp_path / name))
  for name, only in (("bridge", "type=bridge"), ("all", None)):
    settings = dict(data="hf:x/hotpotqa/dev", only=only, top_k=5, own_passages=False, retrieval=dict(index="i"))
    answer_recall.write(tmp_path / name, asked, measured, settings)
  filled = {cell.published: cell.value for cell in fill("bridge")["DPR"] if cell.value is not None}
  assert filled == {"28.45": 50.0, "22.39": pytest.approx(100 / math.log2(3) / 2)}
  refused("row 'DPR', but fills none of its columns.*only=None, not 'type=bridge'", fill, "all")
  found = comparison.compare({name: records.read(tmp_path / name).rows for name in ("bridge", "all")})
  assert {name: of["macro"] for name, of in found.items()}["terms/recall"] == [0.5, 0.5] and "em" not in found
  refused("no exact match, so it is not of answers", evaluation_page.gather, [tmp_path / "all"])


def test_whole_words():
  held = (
    ("Is it in Paris?", "paris"), ("from 1939-1945", "1945"), ("the Paris—based one", "Paris"),
    ("a singer/songwriter", "songwriter"), ("1558–1603", "1558"), ("Beijing、Shanghai", "Shanghai"), ("Why?", "?"),
    ("O'Neil", "o'neil"), ("Caf\u00e9", "Cafe\u0301"), ("a_b", "b"), ("हिन्दी भाषा", "हिन्दी"),
  )  # fmt: skip
  not_held = (
    ("A comparison", "Paris"), ("a man who left", "The Who"), ("In a band", "The Band"), ("In the U.S.", "US"),
    ("anything", "?"), ("anything", "\u200b"), ("हिन्दी", "हिन"), ("Cafe\u0301", "Cafe"), ("東京都", "東京"),
  )  # fmt: skip
  assert [case for case in held if not qa.has_answer(case[0], ["Rome", case[1]])] == []
  assert [case for case in not_held if qa.has_answer(case[0], [case[1]])] == []
