"""TREC's and BEIR's files, written and read, and `ragrl trec` over a BEIR folder."""

import json
import os
import pathlib
import sys

import pyarrow
import pyarrow.parquet
import pytest
import trec_runs
from refusals import refused

from ragrl_jax.cli import trec_run
from ragrl_jax.core.metrics import retrieval as metrics
from ragrl_jax.retrieval import build_index
from ragrl_jax.retrieval.documents import Chunks
from ragrl_jax.retrieval.trec_files import read_qrels, read_queries, read_run, write_run
from ragrl_jax.structs import Passage

HERE = pathlib.Path(os.environ.get("RAGRL_DATA") or pathlib.Path(__file__).parents[3] / "shared" / "data")


def test_a_run_is_read_as_it_was_written(tmp_path):
  found = {"q1": [Passage("b", "", "", 2.5), Passage("a", "", "", 0.1 + 0.2)], "q2": []}
  for name in ("run.txt", "run.txt.gz"):
    write_run(tmp_path / name, found, name="mine")
    assert read_run(tmp_path / name) == {"q1": {"b": 2.5, "a": 0.1 + 0.2}}
  assert (tmp_path / "run.txt").read_text() == "q1 Q0 b 1 2.5 mine\nq1 Q0 a 2 0.30000000000000004 mine\n"
  for bad, says in (
    ({"q 1": [Passage("a", "", "", 1.0)]}, "white space"), ({"q1": [Passage("a b", "", "", 1.0)]}, "white space"),
    ({"q1": [Passage("a", "", "")]}, "no score"),
  ):  # fmt: skip
    refused(says, write_run, tmp_path / "run.txt", bad)
  assert read_run(tmp_path / "run.txt") and not list(tmp_path.glob(".*"))  # the old file is whole


def test_judgements_in_all_their_forms(tmp_path):
  judgements = {"q1": {"a": 2, "b": 0}, "q2": {"c": 1}}
  (tmp_path / "metrics.txt").write_text("q1 0 a 2\nq1 0 b 0\nq2 0 c 1\n")
  (tmp_path / "beir.tsv").write_text("query-id\tcorpus-id\tscore\nq1\ta\t2\nq1\tb\t0\nq2\tc\t1\n")
  triples = [(query, name, float(grade)) for query, grades in judgements.items() for name, grade in grades.items()]
  rows = [dict(zip(("query-id", "corpus-id", "score"), triple)) for triple in triples]
  (tmp_path / "mteb.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "mteb.parquet")
  for name in ("metrics.txt", "beir.tsv", "mteb.jsonl", "mteb.parquet"):
    assert read_qrels(tmp_path / name) == judgements


def test_queries_in_all_their_forms(tmp_path):
  (tmp_path / "a.tsv").write_text("7\tWho?\n8\tWhere, then?\n")
  (tmp_path / "b.jsonl").write_text('{"_id": "7", "text": "Who?"}\n\n{"_id": "8", "text": "Where, then?"}\n')
  rows = [dict(query_id="7", query="Who?"), dict(query_id="8", query="Where, then?")]  # BrowseComp-Plus, decrypted
  (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  (tmp_path / "d.jsonl").write_text('{"id": 7, "text": "Who?"}\n{"id": 8, "text": "Where, then?"}\n')  # numbers
  (tmp_path / "e.jsonl").write_text('{"qid": "7", "query": "Who?"}\n{"qid": "8", "query": "Where, then?"}\n')  # TIREx
  (tmp_path / "f.tsv").write_text("qid\tquery\n7\tWho?\n8\tWhere, then?\n")
  for name in ("a.tsv", "b.jsonl", "c.jsonl", "d.jsonl", "e.jsonl", "f.tsv"):
    assert read_queries(tmp_path / name) == {"7": "Who?", "8": "Where, then?"}


@pytest.mark.parametrize("read, text, says", [
  (read_run, "q1 Q0 a 1 2.0\n", "x.txt:1: a line of a run"),
  (read_run, "\nq1 Q0 a 1 nan me\n", "x.txt:2: 'nan' is not a finite number"),
  (read_run, "q1 Q0 a 1 2 me\nq1 Q0 a 2 1 me\n", "x.txt:2: 'a' occurs twice for the query 'q1'"),
  (read_qrels, "q1 0 a 1\nq1 0 a 1\n", "x.txt:2: 'a' is judged twice"),
  (read_qrels, "q1 0 a 1.5\n", "x.txt:1: a grade must be a whole number"),
  (read_qrels, "q1 a\n", "x.txt:1: a line of qrels"), (read_queries, "q1 no tab\n", "x.txt:1: a query must be"),
  (read_queries, "q1\ta\nq1\tb\n", "x.txt:2: the query 'q1' occurs twice"),
])  # fmt: skip
def test_bad_lines_are_refused_by_file_and_line(tmp_path, read, text, says):
  (tmp_path / "x.txt").write_text(text)
  refused(says, read, tmp_path / "x.txt")


def test_the_command_searches_writes_and_scores(tmp_path, monkeypatch, capsys):
  rows = [dict(_id=f"d{i}", title=f"T{i}", text=f"word{i} common") for i in range(20)]
  (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "word3 common"}\n{"_id": "z", "text": "unjudged"}\n')
  (tmp_path / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td3\t1\n")
  build_index(tmp_path, "bm25", tmp_path / "index", progress=False)  # BEIR's folder
  flags = ["--run", tmp_path / "run.txt", "--qrels", tmp_path / "test.tsv", "--measures", "RR,P@5"]
  search = ["--index", tmp_path / "index", "--queries", tmp_path / "queries.jsonl", "--top_k", "5"]
  for more in (search, []):  # the second call scores the file that the first one wrote
    monkeypatch.setattr(sys, "argv", ["ragrl trec", *map(str, [*flags, *more])])
    trec_run.main()
    said = json.loads(capsys.readouterr().out)
    assert said == dict(run=str(tmp_path / "run.txt"), queries=1, RR=1.0) | {"P@5": 0.2}
  assert [line.split()[:4] for line in (tmp_path / "run.txt").read_text().splitlines()][:1] == [["q", "Q0", "d3", "1"]]
  assert len((tmp_path / "run.txt").read_text().splitlines()) == 5
  monkeypatch.setattr(sys, "argv", ["ragrl trec", *map(str, ["--run", tmp_path / "test.tsv", *flags[2:], *search])])
  refused("--run=.*test.tsv: this file is read, too", trec_run.main)


@pytest.mark.parametrize(("judged", "ranked"), [("d", ["d", "e"]), ("d#1", ["d#0", "d#1", "e#0"]), ("7", ["d", "e"])])
def test_documents_that_were_cut_are_scored_as_what_is_judged(tmp_path, monkeypatch, caplog, judged, ranked):
  texts = [Passage("d", "", "word other word"), Passage("e", "", "some word")]
  build_index(texts, "bm25", tmp_path / "index", chunks=Chunks(2), progress=False)
  (tmp_path / "queries.tsv").write_text("q\tword\n")
  (tmp_path / "qrels.txt").write_text(f"q 0 {judged} 1\n")
  paths = {f"--{name.partition('.')[0]}": tmp_path / name for name in ("index", "queries.tsv", "qrels.txt", "run.txt")}
  monkeypatch.setattr(sys, "argv", ["ragrl trec", *(str(word) for pair in paths.items() for word in pair)])
  trec_run.main()
  assert ("no judged passage is in" in caplog.text) == (judged == "7")
  assert sorted(line.split()[2] for line in (tmp_path / "run.txt").read_text().splitlines()) == ranked


@pytest.mark.parametrize(("query", "passage"), [("a b", "d"), ("q", "d 0")])
def test_an_id_with_white_space_is_refused_before_all_are_searched(tmp_path, monkeypatch, query, passage):
  build_index([Passage(passage, "", "word")], "bm25", tmp_path / "index", progress=False)
  (tmp_path / "queries.tsv").write_text(f"{query}\tword\n")
  words = f"trec --index {tmp_path}/index --queries {tmp_path}/queries.tsv --run {tmp_path}/run.txt".split()
  monkeypatch.setattr(sys, "argv", words)
  monkeypatch.setattr(trec_run.commands, "searched", None)
  refused("contains white space", trec_run.main)


@pytest.mark.real
@pytest.mark.parametrize("name", ["scifact_test", "nfcorpus_test", "hotpotqa", "squad"])
def test_scores_of_real_judgements_are_those_of_ir_measures(name, tmp_path):
  if not (path := HERE / "qrels" / f"{name}.tsv").is_file():
    pytest.skip(f"no {path}: set RAGRL_DATA")
  judgements = read_qrels(path)
  run = trec_runs.drawn(judgements)
  passages = {query: [Passage(p, "", "", score) for p, score in scores.items()] for query, scores in run.items()}
  write_run(tmp_path / "run.txt", passages)
  found = metrics.means(read_run(tmp_path / "run.txt"), judgements, trec_runs.MEASURES)
  assert found == pytest.approx(json.loads(trec_runs.GOLDEN.read_text())[name], abs=1e-12)
