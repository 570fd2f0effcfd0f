import functools
import json

import paper_runs
import pytest
from console import ragrl
from refusals import refused

from ragrl_jax.evaluation import answer_verdicts, comparison, records
from ragrl_jax.evaluation.tables import writing
from ragrl_jax.store import jsonl


def row(name, prediction, golds=("Paris",), source="nq", ended="answer"):
  return dict(id=name, source=source, prediction=prediction, golds=list(golds), ended=ended)


ROWS = [
  row("1", "Paris"), row("2", "the city of Paris"), row("3", None), row("4", "Rome"), row("5", None, ended="failed"),
  row("1", "the city of Paris", source="tqa"), row("2", "?", source="tqa"),
]  # fmt: skip


def lenient(pairs):
  """A judge that finds a gold in the answer right, and cannot read "?"."""
  return [None if said == "?" else float(golds in said) for golds, said in pairs]


def test_verdicts_by_hand():
  asked = []
  found = answer_verdicts.judged(ROWS, lambda pairs: asked.extend(pairs) or lenient(pairs))
  assert [one["verdict"] for one in found] == [1.0, 1.0, 0.0, 0.0, 1.0, None]
  # No answer is not asked about, and equal pairs once.
  assert asked == [("Paris", "Paris"), ("Paris", "the city of Paris"), ("Paris", "Rome"), ("Paris", "?")]
  of = answer_verdicts.totals(ROWS, found)
  # nq: 2 of 4, exact match 1 of 4: they disagree on the second. tqa: 1 of 1, exact match 0; one unread.
  assert (of["nq"]["accuracy"], of["nq"]["em"], of["nq"]["agreement"], of["nq"]["n"]) == (0.5, 0.25, 0.75, 4)
  assert (of["tqa"]["accuracy"], of["tqa"]["n"], of["tqa"]["unjudged"]) == (1.0, 1, 1)
  assert (of[""]["accuracy"], of[""]["em"], of[""]["n"]) == (0.75, 0.125, 5)  # each set once
  lines = answer_verdicts.text(of).splitlines()
  assert lines[0].split()[0] == "set" and lines[-1].startswith(("macro average", "nq", "tqa"))
  assert any(line.split() == "nq 0.500 0.000 to 1.000 0.250 0.750 4 0".split() for line in lines)
  assert answer_verdicts.totals(ROWS[6:], found[5:])["tqa"] == dict(n=0, unjudged=1)
  of = answer_verdicts.totals([{**one, "source": one["source"].replace("tqa", "")} for one in ROWS], found)
  assert (of["(no name)"]["n"], of["nq"]["n"], of[""]["n"]) == (1, 4, 5)


def test_verdicts_are_read_with_the_predictions(tmp_path):
  folder = tmp_path / "rate[1e-6]"
  assert answer_verdicts.beside(folder, ROWS) == ROWS
  jsonl.write(folder / answer_verdicts.FILE, answer_verdicts.judged(ROWS, lenient))
  read = answer_verdicts.beside(folder, ROWS)
  assert [one["judged"] for one in read] == [1.0, 1.0, 0.0, 0.0, None, 1.0, None]
  assert comparison.by_set([{**paper_runs.row(0), **one} for one in read])["nq"]["judged"] == 0.5
  with pytest.raises(ValueError, match="on question '4' was given on another answer than the prediction"):
    answer_verdicts.beside(folder, [{**one, "prediction": "Oslo"} if one["id"] == "4" else one for one in ROWS])
  jsonl.write(folder / "predictions.jsonl", ROWS)
  assert answer_verdicts.predictions(str(folder)) == read
  (folder / "settings.json").write_text("{}")  # as at the start of an evaluation
  refused("this evaluation has not ended", answer_verdicts.predictions, str(folder))
  refused("no verdict on question '6'", answer_verdicts.beside, folder, [*ROWS, row("6", "Rome")])


def test_a_table_takes_them_for_any_recipe(tmp_path):
  """ARENA's judge column of a run that was evaluated without a judge."""
  run = paper_runs.trained(tmp_path / "run", "arena", "qwen2.5-7b")
  rows = [paper_runs.row(i, right=i < 2) for i in range(4)]
  paper_runs.evaluation(folder := tmp_path / "e", "arena", rows, checkpoint=run)
  main = lambda: paper_runs.cells("arena", "Table 3", records.read(folder))["ARENA-Qwen-7B"]
  assert [cell.value for cell in main()[:3]] == [0.5, 0.5, None]
  jsonl.write(folder / answer_verdicts.FILE, answer_verdicts.judged(rows, lambda pairs: [1.0] * len(pairs)))
  (folder / answer_verdicts.SUMMARY).write_text(json.dumps(dict(judge=dict(kind="llm", model="big"), sets={})))
  assert [cell.value for cell in main()[:3]] == [0.5, 0.5, 1.0]
  assert "verdicts on answers by kind llm, model big" in writing.described(records.read(folder))


@pytest.mark.long  # starts processes
def test_the_command(tmp_path):
  for name, rows in (("a", ROWS), ("b", ROWS[:2])):
    jsonl.write(tmp_path / name / "predictions.jsonl", rows)
  say = functools.partial(ragrl, "judge", "--config=untrained:smoke")
  say("--config.judge.kind=exact", f"--results={tmp_path}/*", says="macro average")
  assert [one["verdict"] for one in jsonl.read(tmp_path / "b" / "judged.jsonl")] == [1.0, 0.0]
  summary = json.loads((tmp_path / "a" / "judged.json").read_text())
  assert summary["judge"]["kind"] == "exact" and summary["sets"]["nq"]["accuracy"] == 0.25
  said = say("--config.judge.kind=llm", "--config.judge.prompt=think_search", f"--results={tmp_path}/a")
  assert said.returncode == 2 and "config.judge.prompt='think_search' does not judge answers: use one of" in said.stderr
  assert "no predictions.jsonl there" in say("--config.judge.kind=exact", f"--results={tmp_path}/c").stderr
  assert "compares an answer with a thought" in say("--config.judge.kind=sub_em", f"--results={tmp_path}/a").stderr
