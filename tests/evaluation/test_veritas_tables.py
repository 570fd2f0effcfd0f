import csv
import functools
import json
import pathlib
import re

import judge_folders
import paper_runs
import pytest
from refusals import refused
from scripted_server import serving

from ragrl_jax.cli import tables as tables_command
from ragrl_jax.data import writers
from ragrl_jax.evaluation import foreign_transcripts, played_rows, raters, records, step_verdicts
from ragrl_jax.evaluation.tables import commands_of, measures, papers
from ragrl_jax.store import jsonl
from ragrl_jax.structs import Example, Passage

PAPER = papers.PAPERS["veritas"]
NUMBERS = range(12)
with_verdicts = functools.partial(step_verdicts.joined, **measures.STEPS)
QUESTIONS = [Example(f"test_{n}", f"Who founded Town {n}?", (f"Olaf {n}",), source="nq") for n in NUMBERS]


def said(number):
  """A transcript of Search-R1, whose answer is right but for question 3."""
  found = f"<information>Doc 1(Title: Town {number}) Town {number} was founded by Olaf {number}.</information>"
  asked = f"<think> Who founded Town {number}? </think><search> founder of Town {number} </search>"
  answer = "Knut" if number == 3 else f"Olaf {number}"
  return f"{asked}{found}<think> Olaf {number} did. </think><answer> {answer} </answer>"


def transcribed(path):
  jsonl.write(path, (dict(id=f"test_{n}", transcript=said(n)) for n in NUMBERS))
  return path


def scored(folder):
  settings = dict(data="nq.jsonl", model="qwen2.5-7b-base")
  path = transcribed(folder.with_suffix(".jsonl"))
  foreign_transcripts.score(path, QUESTIONS, folder, system="search_r1", settings=settings)
  return records.read(folder)


def verdicts(path, one, given):
  """A file of `ragrl faithfulness`: per term (kind, {question's number: verdict on its one pair})."""
  verdicts_of = lambda its: {str(n): v for n, v in its.items()}
  questions_of = lambda its: {f"test_{n}": (v or 0.0, int(v is not None)) for n, v in its.items()}
  judged = {term: dict(verdicts=verdicts_of(its), questions=questions_of(its)) for term, (_, its) in given.items()}
  folders = {"elsewhere": played_rows.digest(pathlib.Path(one.folder))}
  file = dict(judges={term: dict(kind=kind) for term, (kind, _) in given.items()})
  path.write_text(json.dumps(file | dict(systems=[dict(folders=folders, sets=dict(nq=judged))])))
  return path


def cells(evaluations, table, row):
  """Heading → cell of a row."""
  heads = [column.head for one in PAPER.tables if one.name == table for column in one.columns]
  return dict(zip(heads, paper_runs.cells("veritas", table, *evaluations, any_model=True)[row], strict=True))


def test_verdicts_fill_the_evaluation_whose_episodes_they_judge(tmp_path):
  one = scored(tmp_path / "out")
  # The LLM says 1 to questions 0 to 5, the model to 2 to 5, and nothing to question 11: they agree on 9 of 11.
  llm = {n: float(n < 6) for n in NUMBERS}
  model = {n: None if n == 11 else float(2 <= n < 6) for n in NUMBERS}
  given = dict(a=("llm", llm), b=("reward_model", model))
  files = [verdicts(tmp_path / f"{name}.json", one, dict(information_think=of)) for name, of in given.items()]
  found = cells(with_verdicts([one], files), "Table 1, NQ", "SearchR1-7B-PPO")
  assert found["task"].value == pytest.approx(11 / 12) and found["Info-Think LLMaaJ"].value == 0.5
  assert found["Info-Think RM"].value == pytest.approx(4 / 11)  # the missing verdict is no 0
  agreed = found["Info-Think Agree."]
  assert agreed.value == pytest.approx(9 / 11) and agreed.n == 11 and agreed.low < agreed.value < agreed.high
  # Fleiss: of 22 labels 10 are 1, so chance agrees on (10/22)² + (12/22)².
  chance = (10 / 22) ** 2 + (12 / 22) ** 2
  assert found["Info-Think Kappa"].value == pytest.approx((9 / 11 - chance) / (1 - chance))
  assert found["Think-Search NLI"].value is None and "ragrl faithfulness" in found["Think-Search NLI"].command
  public = "Search-R1's public checkpoint"
  assert cells(with_verdicts([one], files), "Table 3, Info-Think", public)["NQ"].value == pytest.approx(4 / 11)
  assert cells([one], "Table 3, Info-Think", public)["NQ"].value is None
  assert cells([one], "Table 2", public)["NQ"].value == pytest.approx(11 / 12)
  assert cells([one], "Table 2", "Search-R1-7B-Base-PPO")["NQ"].value is None  # a training by our own recipe
  with pytest.raises(ValueError, match="b.json: .*a.json has llm verdicts on information_think"):
    with_verdicts([one], [files[0], verdicts(tmp_path / "b.json", one, dict(information_think=("llm", llm)))])
  with open(tmp_path / "out" / "episodes.jsonl", "a") as file:
    file.write("\n")
  refused("a.json: its verdicts are on episodes of no given run", with_verdicts, [one], files[:1])
  refused("neither an evaluation's folder nor a file of", with_verdicts, [one], [transcribed(tmp_path / "x.jsonl")])


def test_a_judge_is_compared_with_the_labels_beside_its_pairs(tmp_path):
  """Two of three labels are the judge's, and a pair without a verdict is in no number."""
  pairs = [Example(str(n), f"Claim {n}", (str(n % 2),), (Passage("1", "", "P"),)) for n in range(4)]
  writers.write_examples(tmp_path / "held_out.jsonl.gz", pairs)
  path, judge = str(tmp_path / "held_out.jsonl.gz"), dict(kind="llm", model="claude-sonnet-4-5", endpoint="")
  labels = dict(kind="llm", model="claude-3-7-sonnet-20250219", by="judge", max_pairs=27_000)
  raters.write_labels(tmp_path, labels)
  of = dict(recipe="veritas", preset="reward_model")
  raters.write_verdicts(tmp_path / "out", path, pairs, [0.0, 1.0, 1.0, None], judge, "", **of)
  found = cells([records.read(tmp_path / "out")], "Table 10", "Claude-4.5-Sonnet")
  assert found["Consistency"].value == pytest.approx(2 / 3) and found["Consistency"].n == 3
  # Cohen: the labels have 1 of 3, the judge 2 of 3: chance agrees on 4 of 9. (2/3 − 4/9) / (5/9) = .4
  assert found["Kappa"].value == pytest.approx(0.4) and found["Kappa"].low is not None
  (tmp_path / "labels.json").write_text(json.dumps(labels | dict(files={"held_out.jsonl.gz": "of other pairs"})))
  raters.write_verdicts(tmp_path / "other", path, pairs, [0.0, 1.0, 1.0, None], judge, "", **of)
  with pytest.raises(ValueError, match="fills none of its columns.*labels.model=None"):
    cells([records.read(tmp_path / "other")], "Table 10", "Claude-4.5-Sonnet")


def test_a_pattern_leaves_out_what_lies_beside_evaluations(tmp_path, capsys):
  """The printed commands put trained runs, labelled pairs and sheets into the same folder."""
  scored(tmp_path / "out")  # and out.jsonl beside it
  (tmp_path / "run" / "checkpoints").mkdir(parents=True)
  (tmp_path / "out-llm.json").write_text("{}")
  assert tables_command.folders([f"{tmp_path}/*"]) == [f"{tmp_path}/out", f"{tmp_path}/out-llm.json"]
  assert f"left out: {tmp_path}/out.jsonl, {tmp_path}/run" in capsys.readouterr().err
  assert tables_command.folders([f"{tmp_path}/run"]) == [f"{tmp_path}/run"]  # named alone: `records.read` refuses it


def even(messages, number):
  """The scripted judge: 1 for even towns."""
  found = re.findall(r"Olaf (\d+) did|founder of Town (\d+)", messages[-1]["content"])[-1]
  return str(int(int("".join(found)) % 2 == 0))


@pytest.mark.long  # twelve processes, of which seven compile a small model
def test_the_commands_run_as_printed_in_miniature(tmp_path):
  """From transcripts to filled Tables 1, 9 and 11, with a scripted judge and models of random weights."""
  writers.write_examples(tmp_path / "nq.jsonl.gz", QUESTIONS)
  transcribed(tmp_path / "said.jsonl")
  tables = {one.name: one for one in PAPER.tables}
  named = lambda table, row: next(one for one in tables[table].rows if one.name == row)
  row = named("Table 1, NQ", "SearchR1-7B-PPO")
  evaluated = [commands_of.evaluation(PAPER, column, row.run) for column in tables["Table 1, NQ"].columns]
  commands = " && ".join(evaluated).split(" && ")
  judged = [("Table 9", name) for name in ("Qwen2.5-7B-Inst", "Qwen2.5-7B-Inst + LoRA", "Claude-3.7-Sonnet")]
  judged.append(("Table 11", "Claude-4.5-Sonnet"))
  made, compared = [labelled := PAPER.tables[-2].columns[0].made], []
  for table, name in judged:
    of, column = named(table, name).run, tables[table].columns[0]
    made += [one for one in (of.made, column.made, commands_of.training(PAPER, of)) if one]
    compared.append(commands_of.evaluation(PAPER, column, of))
  with serving(even) as (endpoint, _):
    small = {
      "ENDPOINT": endpoint, "JUDGE_FOLDER|Qwen/Qwen2.5-7B-Instruct": str(judge_folders.decoder(tmp_path / "decoder")),
      "NLI_FOLDER": str(judge_folders.t5(tmp_path / "t5")),
      r"hf:RUC-NLPIR/FlashRAG_datasets/nq/test": f"{tmp_path}/nq.jsonl.gz", "=nq.jsonl": f"={tmp_path}/said.jsonl",
      "=out/": f"={tmp_path}/out/", "RUN": f"{tmp_path}/out/veritas/search_r1-qwen2.5-7b-base-nq",
      "held_out=\\d+": "held_out=4", "--config=veritas:reward_model": "--config=veritas:reward_model,smoke",
      "--config.steps=195": "--config.steps=2",
    }  # fmt: skip
    outs, places = [], lambda words: [pathlib.Path(word[6:]) for word in words if word.startswith("--out=")]
    for command in dict.fromkeys([*commands, *made]):
      words = paper_runs.run(command, small)
      if words[0] in ("score", "faithfulness"):
        outs += places(words)
    sheet = tmp_path / "out" / "veritas" / "labelled_by_hand.csv"
    with open(sheet, encoding="utf-8-sig", newline="") as file:
      rows = list(csv.DictReader(file))
    with open(sheet, "w", newline="") as file:
      out = csv.DictWriter(file, rows[0].keys())
      out.writeheader()
      out.writerows(dict(one, label="01"[number % 2]) for number, one in enumerate(rows))
    for command in compared:
      outs += places(paper_runs.run(command, small))
  assert labelled in commands + made
  files = [path for path in outs if path.is_file()]
  evaluations = with_verdicts([records.read(path) for path in outs if path.is_dir()], files)
  found = cells(evaluations, "Table 1, NQ", row.name)
  assert len(found) == 13 and all(cell.value is not None for cell in found.values())
  assert found["Info-Think LLMaaJ"].value == found["Think-Search LLMaaJ"].value == 0.5
  assert found["Think-Ans SubEM"].value == found["task"].value == pytest.approx(11 / 12)
  for table, name in judged:
    assert all(cell.value is not None for cell in cells(evaluations, table, name).values()), name
  assert cells(evaluations, "Table 9", "Claude-3.7-Sonnet")["Consistency"].value == 1.0  # the labeller itself
