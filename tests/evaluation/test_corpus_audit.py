import dataclasses
import functools
import json
import os
import pathlib

import paper_runs
import pytest
from console import ragrl
from refusals import refused

from ragrl_jax.core.metrics import qa
from ragrl_jax.core.text.normalize import normalize
from ragrl_jax.data import readers, writers
from ragrl_jax.evaluation import corpus_audit, records
from ragrl_jax.evaluation.tables import filling, papers, writing
from ragrl_jax.retrieval import build_index, corpus as corpus_lib
from ragrl_jax.retrieval.corpus import read_passages
from ragrl_jax.store import jsonl
from ragrl_jax.structs import Example, Passage

LONG = " ".join(f"word{i}" for i in range(25))  # two runs of ten words, and a rest
CORPUS = [
  Passage("1", "Paris", "The capital of France, on the Seine."),
  Passage("2", "Oslo", "A capital; see Paris."),
  Passage("3", "Else", LONG.replace("word3", "other")),  # the first run is broken
]
ASKED = [
  # "Paris" is in the text of one passage and the title of another. Its document is there by title, in other words.
  Example("q0", "Capital of France?", ("Paris",), (Passage("x", "Paris", "Something else."),), (0,), "a"),
  # No passage holds "Rome" or "Roma". The document is there by text: one run of two.
  Example("q1", "Capital of Italy?", ("Rome", "Roma"), (Passage("y", "Long", LONG),), (0,), "a"),
  Example("q2", "Is Oslo a capital?", ("yes",), (), (), "b", meta={"gold_ids": ["2", "9"]}),
  # "the Seine." as four tokens, the sign too.
  Example("q3", "River?", ("the Seine.", "Seine!"), (), (), "b"),
]


def test_holdings_by_hand():
  held = corpus_audit.holdings(ASKED, iter(CORPUS))
  rows = [corpus_audit.row(example, held) for example in ASKED]
  assert held.passages == 3 and [row["passages"] for row in rows] == [1, 0, None, 1]
  asked = lambda row: {key: value for key, value in row.items() if key not in ("question", "golds")}
  assert rows[0]["question"] == "Capital of France?" and rows[0]["golds"] == ("Paris",)
  assert asked(rows[0]) == dict(source="a", id="q0", passages=1, gold=1, by_title=[1, 1], by_text=[0, 1])
  assert asked(rows[1]) == dict(source="a", id="q1", passages=0, gold=1, by_title=[0, 1], by_text=[1, 1])
  assert asked(rows[2]) == dict(source="b", id="q2", passages=None, gold=2, by_id=[1, 2])
  found = corpus_audit.summarise(rows)
  assert found["held_by"] == {"0": 1, "1": 2, "2 to 9": 0, "10 to 99": 0, "100 or more": 0}
  of = dict(questions=4, with_string=3, answerable=pytest.approx(2 / 3), gold_documents=4)  # of three questions
  of |= dict(by_title=0.5, by_text=0.5, by_id=0.5, complete_by_title=0.5, complete_by_id=0.0)
  assert {name: found[name] for name in of} == of
  first, others = (corpus_audit.holdings(ASKED, part) for part in (CORPUS[:1], CORPUS[1:]))
  assert first.plus(others) == held
  # An answer is counted up to a hundred.
  held = corpus_audit.holdings(ASKED[:1], [Passage(str(i), "", "It is Paris.") for i in range(130)])
  assert held.phrases["paris"] == held.plus(held).phrases["paris"] == 100 and held.passages == 130
  assert corpus_audit.summarise([corpus_audit.row(ASKED[0], held)])["held_by"]["100 or more"] == 1


def test_the_index_is_measured_on_what_it_can_find():
  held = corpus_audit.holdings(ASKED, CORPUS)
  found = [[CORPUS[2], CORPUS[1]], [CORPUS[0]], [CORPUS[1]], [CORPUS[1]]]
  summary, rows = corpus_audit.audited(ASKED, held, found, k=1)
  every = summary["sets"][""]
  # q0's first passage holds no answer, q1 has none anywhere, q2 has no string, q3's is not found.
  assert (every["n"], every["recall@1"], every["missed@1"]) == (3, 0.0, 1.0)
  # q0: its article is not first; q1: neither; q2: one of two ids.
  assert every["gold_n"] == 3 and every["gold_recall@1"] == pytest.approx(0.5 / 3)
  assert corpus_audit.audited(ASKED, held, found, k=2)[0]["sets"]["a"]["missed@2"] == 0.0  # Oslo's names Paris
  assert rows[2]["by_answer"] is None and rows[0]["by_gold"]["recall"] == 0.0 and rows[3]["by_gold"] is None
  lines = corpus_audit.text(summary).splitlines()
  assert lines[0].split("   ")[0] == "set"
  assert lines[3].split() == "(all) 4 3 0.667 0.500 0.500 0.500 0.000 1.000 0.167".split()
  nameless = [dataclasses.replace(ASKED[0], source=""), *ASKED[1:]]
  sets = corpus_audit.audited(nameless, held)[0]["sets"]
  assert {name: of["questions"] for name, of in sets.items()} == {"": 4, "(no name)": 1, "a": 1, "b": 2}
  without, _ = corpus_audit.audited(ASKED, held)
  assert "recall" not in corpus_audit.text(without) and without["top_k"] is None


def test_tables_say_what_the_corpus_holds(tmp_path):
  def write(rows):
    jsonl.write(folder / corpus_audit.ROWS, rows)
    (folder / corpus_audit.AUDIT).write_text(json.dumps(dict(passages=7, top_k=None, sets={}, rows=len(rows))))

  run = paper_runs.trained(tmp_path / "run", "arena", "qwen2.5-7b")
  asked = [paper_runs.row(i, right=i < 3) for i in range(4)]
  paper_runs.evaluation(folder := tmp_path / "e", "arena", asked, checkpoint=run)
  audit = lambda row, passages: {**row, "source": row["source"] or "", "passages": passages, "gold": 0}
  rows = [audit(row, count) for row, count in zip(asked, (5, 1, 0, 0))]
  write(rows)
  one = records.read(folder)
  # Right are 0, 1 and 2: both of the answerable, one of the others.
  assert (one.audit["totals"]["answerable"], one.audit["em_answerable"], one.audit["em_others"]) == (0.5, 1.0, 0.5)
  text = writing.FORMATS["markdown"](papers.PAPERS["arena"], filling.fill(papers.PAPERS["arena"], [one]))
  assert "**What their corpora hold**" in text and "7 passages; 4 of 4 questions have a searchable answer" in text
  assert "50.0 % of these have an answer in some passage; EM 1.000 with an answer in a passage" in text
  write(rows[1:])
  refused("audit.json: 1 of the evaluation's 4 questions are not in the audit", records.read, folder)
  write([rows[0] | dict(golds=["no"]), *rows[1:]])
  refused("'q0' has another text or other golds there", records.read, folder)


HERE = pathlib.Path(os.environ.get("RAGRL_DATA") or pathlib.Path(__file__).parents[3] / "shared" / "data")


@pytest.mark.real
@pytest.mark.skipif(not (HERE / "corpora").is_dir(), reason=f"no real corpora in {HERE}: set RAGRL_DATA")
def test_counts_on_a_real_corpus_are_those_of_every_answer_in_every_passage():
  examples = list(readers.read_examples(HERE / "qa" / "popqa_passages.jsonl.gz", max_examples=150))
  passages = list(read_passages(HERE / "corpora" / "popqa.jsonl.gz"))[:600]
  held = corpus_audit.holdings(examples, passages)
  known = 0
  for example in examples:
    row = corpus_audit.row(example, held)
    counts = [sum(qa.has_answer(p.text, [gold]) for p in passages) for gold in example.golds]
    assert row["passages"] == min(100, max(counts)), example
    texts = {normalize(passage.text, "squad") for passage in passages}
    there = sum(normalize(example.passages[place].text, "squad") in texts for place in example.supporting)
    assert row["by_text"][0] >= there  # a whole text is there, and so may be half of another
    known += row["passages"] > 0
  assert 30 < known < 150


@pytest.mark.long  # starts processes
def test_the_command(tmp_path):
  jsonl.write(tmp_path / "corpus.jsonl", (dict(id=p.id, title=p.title, text=p.text) for p in CORPUS))
  build_index(tmp_path / "corpus.jsonl", "bm25", tmp_path / "index")
  data = [f"--data={tmp_path}/{source}.jsonl.gz" for source in "ab"]
  for source in "ab":
    writers.write_examples(tmp_path / f"{source}.jsonl.gz", [e for e in ASKED if e.source == source])
  say = functools.partial(ragrl, "audit")
  given = (f"--index={tmp_path}/index", *data, "--top_k=1", f"--train={tmp_path}/b.jsonl.gz", f"--out={tmp_path}/out")
  said = say(*given, says="of the 4 questions are also in --train, such as ")
  assert "(all)" in said.stdout and "3 passages" in said.stdout
  summary = json.loads((tmp_path / "out" / "audit.json").read_text())
  assert summary["sets"][""]["answerable"] == pytest.approx(2 / 3) and summary["retrieval"]["kind"] == "bm25"
  assert [row["passages"] for row in jsonl.read(tmp_path / "out" / "audit.jsonl")] == [1, 0, None, 1]
  assert "recall" not in say(f"--corpus={tmp_path}/corpus.jsonl", *data, says="").stdout
  said = say(f"--index={tmp_path}/index", *data, f"--out={tmp_path}/index")
  assert said.returncode == 2 and "this folder holds an index (index.json)" in said.stderr
  assert not (tmp_path / "index" / "audit.json").exists()
  assert say(*data).stderr.startswith("error: give --index=FOLDER, or --corpus=FILE")
  assert "--index=/nowhere: no index here" in say("--index=/nowhere", *data).stderr
  bad = (f"--corpus={tmp_path}/none.jsonl", *data, "--train=/nowhere.jsonl")  # questions are read before a corpus
  assert "/nowhere.jsonl" in say(*bad).stderr
  assert "--data is missing" in say(f"--corpus={tmp_path}/corpus.jsonl").stderr


@pytest.mark.long  # starts processes
def test_several_processes_read_a_corpus(tmp_path, monkeypatch):
  corpus_lib.store(CORPUS, tmp_path, progress=False)
  monkeypatch.setattr(corpus_audit, "PART", 1)
  of_folder, held = corpus_audit.of_folder, corpus_audit.holdings(ASKED, CORPUS)
  assert of_folder(ASKED, tmp_path, 2) == of_folder(ASKED, tmp_path, 1) == held
