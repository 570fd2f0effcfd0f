"""The papers' tables: filled by hand-made runs, in four formats; bad runs are refused in one line."""

import csv
import dataclasses
import html
import io
import json
import pathlib
import re
import runpy
import types

import paper_runs
import pytest
from refusals import refused

from ragrl_jax.cli import tables
from ragrl_jax.evaluation import records
from ragrl_jax.evaluation.tables import filling, layout, measures, papers, writing
from ragrl_jax.recipes.released import agents

OWN = "--config.data.own_passages=False"
HEADS = {"hotpotqa": "HotpotQA", "musique": "MuSiQue"}
COLUMNS = papers.columns(dict(measures=["em_spaced"], average="Avg."), HEADS, {})
RUNS = {"direct": dict(evaluate="arena:direct"), "api": "an API"}
RUNS["ours"] = dict(evaluate="arena", train="arena", flags="{flags}")
ROWS = """
# Group
ours & co | ours qwen2.5-7b against plain | 0.9 | 0.8 0.85
plain     | direct qwen2.5-7b             | 0.4 | - 0.3
closed    | api                           | 0.1 | / -
"""
TEXTS = {"flags": "--config.rollout.top_p={share}", "share": 0.5}
TABLE = layout.Table("Table 9", "a table", COLUMNS, papers.rows(ROWS, RUNS, TEXTS))
PAPER = layout.Paper("made", "Made <up>", (TABLE,), {"Figure 1": "a drawing"}, "nowhere")


def rows_of(right, number=4):
  """Rows of questions of which the first ones are right."""
  return [paper_runs.row(i, right=i < right) for i in range(number)]


def runs(tmp_path, *, sets=("hotpotqa", "musique")):
  """One evaluation of ours and one of the untrained model for each set, of four questions."""
  run = paper_runs.trained(tmp_path / "a_run", "arena", "qwen2.5-7b")
  plain = paper_runs.model(tmp_path / "plain", "qwen2.5-7b")
  made = []
  for name in sets:
    data, plain_too = f"{name}.jsonl", tmp_path / f"y_{name}"
    made.append(paper_runs.evaluation(tmp_path / f"x_{name}", "arena", rows_of(4), checkpoint=run, data=data))
    made.append(paper_runs.evaluation(plain_too, "arena:direct", rows_of(0), checkpoint=plain, data=data))
  return made


def test_a_table_by_hand_in_four_formats(tmp_path):
  filled = filling.fill(PAPER, runs(tmp_path))
  # All four right against none: of the 16 ways to swap pairs, 2 are as far apart: p = 2/16. Of two sets' signs, 2 of 4.
  text = writing.FORMATS["markdown"](PAPER, filled)
  lines = text.splitlines()
  assert "|  |  | HotpotQA EM | MuSiQue EM | Avg. EM |" in lines
  assert "| Group: ours &amp; co | paper | 0.9 | 0.8 | 0.85 |" in lines
  # Holm: .125 · 3, then the same, then .5 · 1.
  each = "1.000 [1.000, 1.000] n 4 p 0.125 (0.375)"
  assert f"| Group: ours &amp; co | ours | {each} | {each} | 1.000 n 2 p 0.500 (0.500) |" in lines
  none = "0.000 [0.000, 0.000] n 4"
  assert f"| Group: plain | ours | {none} | {none} | 0.000 n 2 |" in lines
  assert "| Group: plain | paper | 0.4 | – | 0.3 |" in lines and "| Group: closed | ours | – | – | – |" in lines
  assert "1. `closed: an API`" in lines and "- Figure 1: a drawing." in lines
  assert any("ours & co against plain (two-sided; by question a permutation test" in line for line in lines)
  (said,) = [line for line in lines if "in " + str(tmp_path / "x_hotpotqa") in line]
  described = ("model qwen2.5-7b", "decoding greedy", "256 new tokens a turn, 5120 in all")
  assert all(part in said for part in ("questions 4 of hotpotqa.jsonl", *described))
  table = list(csv.DictReader(io.StringIO(writing.csv_text(PAPER, filled))))
  assert len(table) == 9 and table[0]["row"] == "ours & co" and table[0]["published"] == "0.9"
  names = ("ours", "low", "high", "n", "p", "against")
  assert [table[0][name] for name in names] == ["1", "1", "1", "4", "0.125", "plain"]
  assert table[2]["p"] == "0.5" and table[2]["pairs"] == "2" and table[4]["published"] == ""
  assert table[0]["settings"] == writing.described(filled[0].cells[0][0].evaluations[0])
  assert table[8]["note"] == "an API" and table[0]["runs"] == str(tmp_path / "x_hotpotqa")
  tex = writing.FORMATS["latex"](PAPER, filled)
  assert r"Group: ours \& co & ours & 1.000 [1.000, 1.000] n 4 p 0.125 (0.375) & " in tex
  assert r"\caption{Made $<$up$>$, Table 9: a table}" in tex and tex.count(r"\begin{tabular}{llccc}") == 1
  page = writing.FORMATS["html"](PAPER, filled)
  assert f"<td>{each}</td>" in page and "<h1>Made &lt;up&gt;</h1>" in page and "<script" not in page
  # A row's name stands on its first line.
  paper, ours = page.split("<tr")[2:4]
  assert '<th scope="row">Group: ours &amp; co</th><td>paper</td>' in paper
  assert ours.startswith(' class="ours"><th scope="row"></th><td>ours</td>')
  assert page.count('<a href="#table-') == page.count('<h2 id="table-') == len(filled) and "<details>" in page


def test_a_missing_run_has_its_command(tmp_path):
  filled = filling.fill(PAPER, runs(tmp_path, sets=("hotpotqa",)))
  text = writing.FORMATS["markdown"](PAPER, filled)
  assert "| Group: ours &amp; co | ours | 1.000 [1.000, 1.000] n 4 p 0.125 | → 1 | – |" in text
  out = "out/made/arena-qwen2.5-7b"
  asked = f"--data=hf:RUC-NLPIR/FlashRAG_datasets/musique/dev --out={out}-musique --config.rollout.top_p=0.5"
  assert f"1. `ragrl evaluate --config=arena --checkpoint={out} {asked}`" in text
  assert f"1. `ragrl train --config=arena --workdir={out} --config.model.path=Qwen/Qwen2.5-7B-Instruct`" in text


def test_hostile_text_is_escaped(tmp_path):
  bad = "</code><script>alert(1)</script>|`x` $\\"
  one = runs(tmp_path)[0]
  one = dataclasses.replace(one, metrics=one.metrics | {"settings": one.metrics["settings"] | {"checkpoint": bad}})
  filled = filling.fill(PAPER, [one])
  page = writing.FORMATS["html"](PAPER, filled)
  assert "<script" not in page and html.escape(bad) in page
  assert "<script>" not in re.sub(r"`[^`]*`", "", writing.FORMATS["markdown"](PAPER, filled))
  comments = [line for line in writing.FORMATS["latex"](PAPER, filled).splitlines() if "alert" in line]
  assert comments and all(line.startswith("% ") for line in comments)


def test_a_run_says_what_stands_beside_its_scores(tmp_path):
  shape = dict(model_type="qwen3", hidden_size=64, num_hidden_layers=2)
  more = dict(own_passages=False, retrieval=dict(index="out/index", top_k=3, checksum="0123456789abcdef" * 4))
  for config in (shape, dict(model_type="whole", text_config=shape)):
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = writing.described(paper_runs.evaluation(tmp_path / "e", "untrained", checkpoint=tmp_path, **more))
    assert "model qwen3 of 2 layers, width 64; " in said and "passages the questions' own left out; " in said
    assert "retriever index out/index, top_k 3, checksum 0123456789ab; " in said and "cut in the middle" not in said


def test_seeds_are_averaged_by_question(tmp_path):
  run = paper_runs.trained(tmp_path / "run", "arena", "qwen2.5-7b")
  read = lambda name, found: paper_runs.evaluation(tmp_path / name, "arena", found, checkpoint=run)
  filled = filling.fill(PAPER, [read("a", rows_of(4)), read("b", rows_of(2))])
  cell = filled[0].cells[0][0]
  assert cell.value == 0.75 and cell.n == 4 and len(cell.evaluations) == 2  # questions at 1, 1, .5, .5
  assert cell.deviation == pytest.approx(0.5 / 2**0.5)  # of the runs' means, 1 and .5
  text = writing.FORMATS["markdown"](PAPER, filled)
  assert "0.750 ± 0.354 [" in text and "p do not cover further seeds" in text
  # A question that failed in one seed has the value of the other.
  failed = [*rows_of(2, 3), paper_runs.row(3, ended="failed")]
  cell = filling.fill(PAPER, [read("a", rows_of(4)), read("f", failed)])[0].cells[0][0]
  assert cell.n == 4 and cell.value == (1 + 1 + 0.5 + 1) / 4
  with pytest.raises(ValueError, match="several runs fill a cell of hotpotqa .4, 3 questions."):
    filling.fill(PAPER, [read("a", rows_of(4)), read("c", rows_of(3, 3))])


def test_runs_with_noise_or_other_passages_are_in_their_own_columns_alone(tmp_path):
  """Figure 6's runs with noise are no seeds of Table 4's, nor Figure 5's with ten passages of Table 3's."""
  run = paper_runs.trained(tmp_path / "run", "lear", "qwen2.5-1.5b")
  generator = paper_runs.trained(tmp_path / "generator", "lear:sft,generator", "qwen2.5-1.5b")
  plain = paper_runs.model(tmp_path / "plain", "qwen2.5-3b")

  def read(name, config, run, *flags, **more):
    of = dict(checkpoint=run, data="nq.jsonl", flags=flags)
    return paper_runs.evaluation(tmp_path / name, config, [paper_runs.row(0, **more)], **of)

  noisy, of = [], dict(checkpoint=generator, data="nq.jsonl")
  for name, flag, right in (("n0", "--config.data.noise=0", 1), ("n8", "--config.data.noise=8", 0), ("own", OWN, 1)):
    noisy.append(read(name, "lear:inference", run, flag, evidence="e"))  # one evidence: they differ in their settings
    noisy.append(paper_runs.read(tmp_path / f"read_{name}", noisy[-1], rows_of(right, 1), **of))
  tables_ = paper_runs.filled("lear", *noisy)
  values = lambda one: [cell.value for cells in one.cells for cell in cells if cell.value is not None]
  assert values(tables_["Figure 6"]) == [100.0, 0.0] and values(tables_["Table 4, 1.5B"])[0] == 100.0
  counted = [read(f"k{k}", "untrained", plain, f"--config.retrieval.top_k={k}", right=k < 10) for k in (5, 10)]
  counted += [read(mode, f"untrained:{mode}", plain, right=False) for mode in ("thinking", "no_thinking")]
  tables_ = paper_runs.filled("when_to_search", *counted, any_model=True)
  rag = paper_runs.cells("when_to_search", "Table 3", *counted, any_model=True)["Standard RAG"]
  assert rag[0].value == 1.0 and len(rag[0].evaluations) == 1 and 0.0 in values(tables_["Figure 5"])


def test_answers_of_the_same_weights_are_no_seeds(tmp_path):
  """With and without gold sentences the greedy answers are the same. Table 5's seconds are those without an answer."""
  runs_ = [paper_runs.trained(tmp_path / name, "lear:sft,study_vanilla", "qwen2.5-1.5b") for name in ("run", "other")]

  def read(name, run, *flags):
    of = dict(checkpoint=run, data="nq.jsonl", flags=(OWN, *flags))
    rows_ = [paper_runs.row(0, answer_recall=1.0, evidence="e")]
    return paper_runs.evaluation(tmp_path / name, "lear:study_vanilla", rows_, **of)

  given = [read("plain", runs_[0]), read("marked", runs_[0], "--config.data.evidence=nq_dev.jsonl")]
  cell = lambda: filling.fill(papers.PAPERS["lear"], given)[0].cells[0][0]
  assert cell().deviation is None and len(cell().evaluations) == 1
  given.append(read("seed", runs_[1]))
  assert cell().deviation == 0.0  # two runs


def test_verdicts_are_pooled_over_pairs():
  """Three verdicts in two episodes. An episode without a pair changes nothing, though its term is 0."""
  measure = measures.MEASURES["information_think"]
  rows_ = [dict(pooled=dict(information_think=pairs)) for pairs in ((2.0, 2), (0.0, 1))]
  scores = measure.scores(rows_)
  assert sum(scores) / 2 == pytest.approx(2 / 3) and scores[0] > scores[1]
  more = measure.scores([*rows_, dict(pooled=dict(information_think=(0.0, 0))), dict(pooled={})])
  assert sum(more) / 4 == pytest.approx(2 / 3) and more[2] == more[3] == pytest.approx(2 / 3)
  assert measure.scores(rows_[:0]) == [] and measure.scores([dict(pooled={}), {}]) == [None, None]


def test_lear_searches_for_passages_even_if_questions_bring_some():
  """HotpotQA's rows do. Figure 6 adds noise to the passages that questions bring; the study's questions have theirs."""
  for table in papers.PAPERS["lear"].tables:
    if table.name == "Table 3":  # retrieval alone, by another command
      assert all("--noown_passages" in row.run.flags for row in table.rows)
      continue
    searching = [OWN in column.flags for column in table.columns]
    brings = table.name in ("Table 1", "Figure 2", "Figure 6")
    assert all(searching) and not brings or brings and not any(searching), table.name
    if table.name in ("Table 1", "Figure 2"):
      assert all(column.data == f"out/lear/data/{column.sets[0]}/answerable.jsonl.gz" for column in table.columns)


def test_reasoning_models_think_in_when_to_searchs_tables():
  rows_ = [row for table in papers.PAPERS["when_to_search"].tables for row in table.rows]
  for name, run in ((row.name, run) for row in rows_ for run in (row.run, row.versus) if run is not None):
    if run.evaluate.startswith("untrained") and run.model.startswith("qwen3"):
      plain = "w/o think" in name
      assert run.where["thinking"] == ("off" if plain else "on"), name
      assert ("no_thinking" if plain else "thinking") in run.evaluate.partition(":")[2].split(","), name


def test_care_without_its_curriculum_loads_no_hard_questions():
  runs_ = {row.name: row.run for table in papers.PAPERS["care"].tables for row in table.rows}
  hard = lambda name: any("data.hard" in flag for flag in runs_[name].train_flags)
  assert hard("CARE") and not hard("No Ret.") and not hard("No Cur.")


def test_shares_of_two_runs_by_hand(tmp_path):
  """Rational evidence recalls questions 0, 1; vanilla 0, 2: a quarter each way. The rationale recalls three."""
  read, values = [], lambda i, right: dict(answer_recall=float(i in right), measures=dict(reason_recall=float(i < 3)))
  for name, right in (("study_rational", (0, 1)), ("study_vanilla", (0, 2))):
    run = paper_runs.trained(tmp_path / f"run{name}", f"lear:sft,{name}", "qwen2.5-1.5b")
    found, of = [paper_runs.row(i, **values(i, right)) for i in range(4)], dict(checkpoint=run, flags=(OWN,))
    read.append(paper_runs.evaluation(tmp_path / f"e{name}", f"lear:{name}", found, **of))
  of = lambda *given: paper_runs.filled("lear", *given)["Figure 2"].cells[0]
  cells = of(*read)
  assert [cell.value for cell in cells[4:]] == [25.0] * 4 and cells[5].published == "14.49%"
  assert len(cells[5].evaluations) == 2 and cells[0].value is None
  assert "--config=lear:study_rational " in cells[0].command
  alone = of(read[0])
  assert alone[5].value is None and "--config=lear:study_vanilla" in alone[5].command  # the other half is missing
  study = filling.fill(papers.PAPERS["lear"], read)[0]
  assert [cells[1].value for cells in study.cells] == [50.0, 50.0, 75.0]
  text = writing.FORMATS["markdown"](papers.PAPERS["lear"], [study])
  assert "Rationale: share of rationales that hold a gold answer" in text


def test_a_judge_may_be_asked_in_either_way(tmp_path):
  run = paper_runs.trained(tmp_path / "run", "arena", "qwen2.5-7b")
  rows_ = [paper_runs.row(i, terms=dict(accuracy=float(i < 3))) for i in range(4)]
  for name, more in (("arena:judge", {}), ("arena", dict(flags=("--config.switches.accuracy=judge",)))):
    place, of = tmp_path / name.replace(":", "_"), dict(checkpoint=run, judged=True)
    made = paper_runs.evaluation(place, name, rows_, **of, **more)
    cells = paper_runs.cells("arena", "Table 3", made)
    assert [cell.value for cell in cells.pop("ARENA-Qwen-7B")[:3]] == [1.0, 1.0, 0.75]
    assert {cell.value for found in cells.values() for cell in found} == {None}
    assert ("switches unlike the preset's: accuracy judge" in writing.described(made)) == bool(more)


def test_bad_and_foreign_runs_are_one_clear_line(tmp_path):
  one = runs(tmp_path, sets=("hotpotqa",))[0]
  folder = tmp_path / "x_hotpotqa"
  metrics = json.loads((folder / "metrics.json").read_text())
  for file, content, says in (
    ("metrics.json", "{", "metrics.json: not JSON"), ("predictions.jsonl", "x\n", "predictions.jsonl:1: not a JSON"),
    ("metrics.json", "[]", "metrics.json: a list, but it must be a JSON object"),
    ("metrics.json", '{"n": 1}', "was not written by `ragrl evaluate`"),
    ("metrics.json", json.dumps(metrics | {"n": 9}), "of 9 questions, predictions.jsonl has 4"),
    ("predictions.jsonl", '{"id": 1}\n', "predictions.jsonl:1: no question, golds"),
    ("predictions.jsonl", None, "it has no predictions.jsonl, so it is not a finished"),
  ):  # fmt: skip
    path = folder / file
    before = path.read_text()
    path.write_text(content) if content is not None else path.unlink()
    refused(says, records.read, folder)
    path.write_text(before)
  change = lambda **facts: dataclasses.replace(one, folder="F", facts=one.facts | facts)
  elsewhere = [row | dict(source="mine") for row in one.rows]
  unknown = lambda **facts: dataclasses.replace(change(data="mine.jsonl", **facts), rows=elsewhere)
  nameless = unknown(model="qwen2.5-1.5b")
  for other, says in (
    (change(recipe="care"), "--runs=F: recipe care, preset paper fills no row of made's tables"),
    (change(model="qwen2.5-1.5b"), "ours & co: its model is qwen2.5-1.5b, not qwen2.5-7b: --any_model lets"),
    (change(model=None), "its model is not known here"), (change(system="desa"), "system desa fills no row"),
    (change(trained=False), "ours & co: it is of no run: no config.json is beside its checkpoint"),
    (change(data="nq.jsonl"), "fills none of its columns: its questions are nq"),
    (unknown(), "mine.jsonl names no data set of the tables"), (nameless, "--any_model lets other models"),
  ):  # fmt: skip
    refused(says, filling.fill, PAPER, [other])
  refused("names no data set of the tables", filling.fill, PAPER, [nameless], any_model=True)
  cell = filling.fill(PAPER, [change(model="qwen2.5-1.5b")], any_model=True)[0].cells[0][0]
  assert cell.value == 1.0 and "model qwen2.5-1.5b" in writing.described(cell.evaluations[0])


def test_every_row_has_a_number_for_each_column_and_a_run_or_a_reason():
  for table in (table for paper in papers.PAPERS.values() for table in paper.tables):
    names = {row.name for row in table.rows}
    for row in table.rows:
      assert len(row.published) == len(table.columns), (table.name, row.name)
      assert row.against in names | {""} and (row.run is None) == bool(row.why_not), (table.name, row.name)


def test_a_line_names_the_runs_of_its_row():
  made = dict(train="x", transcripts="{model}.jsonl", made="--checkpoint={hub}", reads="ours")
  block = "a | made qwen2.5-7b versus=direct measure=f1 | 1\nb | api | -\nc | direct against a | 2"
  a, b, c = papers.rows(block, {**RUNS, "made": made}, TEXTS, against="b")
  assert {a.run.model, a.run.reads.model, a.versus.model} == {"qwen2.5-7b"} and a.measure == "f1"
  assert (a.run.transcripts, a.run.made) == ("qwen2.5-7b.jsonl", "--checkpoint=Qwen/Qwen2.5-7B-Instruct")
  assert (b.run, b.why_not, c.run) == (None, "an API", layout.Run("arena:direct"))
  assert [row.against for row in (a, b, c)] == ["b", "", "a"]


def test_the_page_lists_every_table():
  site = pathlib.Path(__file__).parents[2] / "docs" / "site"
  page = (site.parent / "howto" / "tables.md").read_text(encoding="utf-8")
  written = runpy.run_path(str(site / "paper_tables.py"))["written"]
  assert written(page) == page, "python docs/site/paper_tables.py writes the lists"
  for name in agents.AGENTS:
    assert f"`{name}`" in page


def test_the_command_prints_and_writes(tmp_path, monkeypatch, capsys):
  runs(tmp_path)

  def call(runs, table=(), format="markdown", out=None):
    given = dict(PAPER="arena", RUNS=runs, TABLE=list(table), FORMAT=format, OUT=out, ANY_MODEL=False)
    for name, value in given.items():
      monkeypatch.setattr(tables, name, types.SimpleNamespace(value=value))
    tables.main()

  call([str(tmp_path / "[xy]_hotpotqa")], ["Table 5"])
  out = capsys.readouterr().out
  assert "| ARENA-Qwen-7B | ours | 1.000 [1.000, 1.000] n 4 | 1.000 [1.000, 1.000] n 4 | → 4 |" in out  # nobody judged
  assert "--config.endpoint.model=gpt-4o-2024-11-20 --config.prompting.tokenizer=Qwen/Qwen2.5-7B-Instruct" in out
  assert "## Figure 2" not in out
  call([], format="csv", out=str(tmp_path / "all.csv"))
  assert len((tmp_path / "all.csv").read_text().splitlines()) > 300
  refused("--runs=/nowhere/x: there is no such folder", call, ["/nowhere/x"], error=(ValueError, FileNotFoundError))
  refused("--table=Table 99: arena has Table 3", call, [], ["Table 99"], error=(ValueError, FileNotFoundError))


@pytest.mark.parametrize("data", ["hotpotqa_project/qa", "musique/qa/*_dev.jsonl.gz", "data/qa/*_dev.jsonl.gz"])
def test_sets_of_one_folder_are_told_apart_by_their_rows_whatever_the_folder_is_called(tmp_path, data):
  def sets(*sources):
    rows = [paper_runs.row(number, source=source) for number, source in enumerate(sources)]
    found = paper_runs.written(tmp_path, rows, dict(recipe="arena", data=data))
    return {name: [row["id"] for row in some] for name, some in found.sets.items()}

  assert sets("nq", "triviaqa_dev", "musique", "nq") == dict(nq=["q0", "q3"], triviaqa=["q1"], musique=["q2"])
  assert sets("nq") == dict(nq=["q0"]) and sets("mine", "other") == {}
  known = {"hotpotqa": dict(hotpotqa=["q0"]), "musique": dict(musique=["q0"])}
  assert sets("test") == known.get(records.set_of(data), {})


@pytest.mark.parametrize("name, row", [
  ("arena", "ARENA-Qwen-7B"), ("arena:sft", "Qwen-7B-SFT-reasoning"), ("arena:sft,repo", "Qwen-7B-SFT-reasoning"),
  ("arena:sft,direct,repo", "Qwen-7B-SFT-direct"),
])  # fmt: skip
@pytest.mark.parametrize("weight", ["0.0", "0.3", "1.0"])
def test_the_recorded_kind_of_a_run_decides_its_row(tmp_path, name, row, weight):
  """A setting of fine-tuning that RL never reads, or its value in the authors' code, changes no row."""
  train = paper_runs.config_of(name).data.train  # with a comma at its end, which names no further set
  flags = (f"--config.sft.environment_weight={weight}", f"--config.data.train={train},")
  run = paper_runs.trained(tmp_path / "run", name, "qwen2.5-7b", *flags)
  asked = name.replace("sft,", "").replace(":sft", "")
  rows = [paper_runs.row(i, em_spaced=1.0, f1_spaced=1.0) for i in range(2)]
  made = paper_runs.evaluation(tmp_path / "out", asked, rows, checkpoint=run)
  cells = paper_runs.cells("arena", "Table 3", made)
  assert [name for name, found in cells.items() if any(cell.value for cell in found)] == [row]


def test_a_run_that_fills_no_row_is_told_what_each_row_lacks(tmp_path):
  run = paper_runs.trained(tmp_path / "run", "search_r1", "qwen2.5-7b")
  made = paper_runs.evaluation(tmp_path / "out", "search_r1", checkpoint=run, data="nq.jsonl")
  with pytest.raises(ValueError, match="fills no row.*Search-R1-base.*: preset='paper', not 'ppo'") as told:
    filling.fill(papers.PAPERS["search_r1"], [made])
  assert re.search("Rejection Sampling.*: trained.objective='rl', not 'sft'", str(told.value))


def test_scores_of_other_golds_are_no_pairs(tmp_path):
  """Two of the four questions had other golds when the untrained model was scored."""
  ours, _ = runs(tmp_path, sets=("hotpotqa",))
  rows = [row | (dict(golds=["no"]) if i < 2 else {}) for i, row in enumerate(rows_of(0))]
  read = lambda name, rows: paper_runs.evaluation(tmp_path / name, "arena:direct", rows, checkpoint=tmp_path / "plain")
  other = read("y_hotpotqa", rows)
  (table,) = filling.fill(PAPER, [ours, other])
  assert (table.cells[0][0].n, table.cells[0][0].paired) == (4, 2)
  with pytest.raises(ValueError, match="several runs fill a cell of hotpotqa .* different questions"):  # no seeds
    filling.fill(PAPER, [other, read("z", rows_of(0))])


def test_runs_and_columns_inherit_and_insert_texts():
  base = dict(evaluate="{paper}:x", where={"top_k": [5, "-"], "noise": 1}, needs="{index} --a={k}")
  runs = dict(base=base, own=dict(like="base", where={"noise": "-"}, train="{paper}"))
  texts = dict(paper="arena", index="--index=I --of={paper}", k=3)
  (row,) = papers.rows("a | own | 1", runs, texts)
  where = {"top_k": (5, None), "noise": None}
  assert row.run == layout.Run("arena:x", "arena", where=where, needs=("--index=I", "--of=arena", "--a=3"))
  each = dict(measures=["em"], sets=["nq"], each=[{"k": 1}, {"k": 2}], head="{head} at {k}", where={"top_k": "{k}"})
  rights = [{"right": [True, True]}, {"right": [True, False]}, {"right": [False, True]}, {"right": [False, False]}]
  halves = dict(measures={"Both": "em"}, sets=["nq"], each=rights, both="{right}", data="{questions}")
  found = papers.columns(dict(groups=[each, halves]), {"nq": "NQ"}, {})
  assert [(one.head, one.where) for one in found[:2]] == [("NQ at 1", {"top_k": 1}), ("NQ at 2", {"top_k": 2})]
  assert [one.both for one in found[2:]] == [(True, True), (True, False), (False, True), (False, False)]
  assert found[2].data == records.SETS["nq"]["questions"]
