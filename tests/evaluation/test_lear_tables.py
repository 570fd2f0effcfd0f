"""LEAR's tables: which runs fill a row, and that their commands run as printed."""

import re
import shlex
import subprocess
import sys

import paper_runs
import pytest

from ragrl_jax import retrieval
from ragrl_jax.data import writers
from ragrl_jax.evaluation import records
from ragrl_jax.evaluation.tables import commands_of, filling, papers, writing
from ragrl_jax.structs import Example, Passage

OWN = "--config.data.own_passages=False"


def made(tmp_path):
  """(the extraction of LEAR's best checkpoint, the generator's answers from it, those from all passages)."""
  run = paper_runs.trained(tmp_path / "run", "lear", "qwen2.5-1.5b")
  generator = paper_runs.trained(tmp_path / "generator", "lear:sft,generator", "qwen2.5-1.5b")
  best = dict(checkpoint=run / "checkpoints" / "450", chosen_by="evaluation/measure/em_from_evidence")
  rows_ = [paper_runs.row(i, right=False, evidence=f"e{i}", passage_tokens=600, evidence_tokens=20) for i in range(4)]
  flags = (OWN, "--config.switches.answers=", "--config.evaluate.batch=64")
  made = paper_runs.evaluation(tmp_path / "extracted", "lear:inference", rows_, data="nq.jsonl", flags=flags, **best)
  extracted = records.read(made)
  of = dict(checkpoint=generator, data="nq.jsonl")
  said = [paper_runs.row(i, right=i < 3) for i in range(4)]
  read = records.read(paper_runs.read(tmp_path / "read", extracted, said, **of))
  said = [paper_runs.row(i, right=i < 2) for i in range(4)]
  return (
    extracted,
    read,
    records.read(paper_runs.evaluation(tmp_path / "full", "lear:generator", said, flags=(OWN,), **of)),
  )


def test_lears_rows_are_read_by_the_generator(tmp_path):
  """As in the paper: EM of the generator's answers (3 of 4), the extractor's compression (600 / 20) and seconds."""
  extracted, read, full = made(tmp_path)
  tables_ = {one.table.name: one for one in filling.fill(papers.PAPERS["lear"], [read, full, extracted])}
  main = tables_["Table 4, 1.5B"]
  cells = {row.name: found for row, found in zip(main.table.rows, main.cells)}
  assert [cell.value for cell in cells["LEAR"][:3:2]] == [75.0, 30.0] and cells["Full"][0].value == 50.0
  assert cells["Full"][0].paired == 4  # the same reader: tested against each other
  assert tables_["Table 6"].cells[-1][0].value == 75.0 and tables_["Table 5"].cells[-1][0].value == 0.2
  text = writing.FORMATS["markdown"](papers.PAPERS["lear"], [main])
  assert "evidence of recipe lear, preset inference, model qwen2.5-1.5b" in text
  assert "chosen_by evaluation/measure/em_from_evidence" in text


def test_answers_of_the_extractor_itself_fill_no_row(tmp_path):
  extracted, read, full = made(tmp_path)
  fill = lambda *given: filling.fill(papers.PAPERS["lear"], given)
  with pytest.raises(ValueError, match="read: it answers from evidence of 1 extractions, and 0 of them"):
    fill(read, full)
  own = paper_runs.evaluation(
    tmp_path / "own", "lear:inference", [paper_runs.row(0, evidence="e")], checkpoint=tmp_path / "run",
    data="nq.jsonl", flags=(OWN,),
  )  # fmt: skip
  with pytest.raises(ValueError, match="a generator must read.*make-lear-generator --predictions="):
    fill(full, records.read(own))
  # Passages that HotpotQA's rows bring were extracted from: the right row, but not the table's protocol.
  given = [paper_runs.row(0, evidence="e", source="hotpotqa")]
  of = dict(checkpoint=tmp_path / "run", data="hotpotqa.jsonl")
  brought = records.read(paper_runs.evaluation(tmp_path / "brought", "lear:inference", given, **of))
  of |= dict(checkpoint=tmp_path / "generator")
  answered = records.read(paper_runs.read(tmp_path / "answered", brought, [paper_runs.row(0)], **of))
  with pytest.raises(ValueError, match="row 'LEAR', but fills none of its columns:.*own_passages=None, not False"):
    fill(brought, answered)
  # Another step than the best one, and the best one by another metric.
  for name, more in (("step", {}), ("other", dict(chosen_by="evaluation/f1"))):
    of = dict(checkpoint=tmp_path / "run" / "checkpoints" / "100", data="nq.jsonl", flags=(OWN,)) | more
    step = records.read(
      paper_runs.evaluation(tmp_path / name, "lear:inference", [paper_runs.row(0, evidence="e")], **of)
    )
    assert not any(not filling.unmet(row.run, step.facts) for row in papers.PAPERS["lear"].tables[5].rows)


@pytest.mark.long  # fourteen processes, of which six compile a small model
def test_the_commands_run_as_printed_in_miniature(tmp_path):
  """From the data to a filled table: all commands of three rows, for models of random weights (variant `smoke`)."""
  passages = [Passage(str(i), f"Town {i}", f"Town {i} was founded by Olaf {i}. It is old.") for i in range(12)]
  writers.write_passages(tmp_path / "corpus.jsonl", passages)
  retrieval.build_index(tmp_path / "corpus.jsonl", "bm25", tmp_path / "index", progress=False)
  for split, numbers in (("train", range(8)), ("test", range(8, 12))):
    asked = [Example(f"{split}_{i}", f"Who founded Town {i}?", (f"Olaf {i}",), source="nq") for i in numbers]
    writers.write_examples(tmp_path / f"nq_{split}.jsonl", asked)
  main = papers.PAPERS["lear"].tables[3]
  runs = {row.name: row.run for row in main.rows if row.name in ("Full", "FilCo", "LEAR")}
  needed = [run for named in runs.values() for run in (named.reads, named) if run]
  commands = [run.made for run in needed if run.made]
  commands += [commands_of.training(papers.PAPERS["lear"], run) for run in needed]
  for run in runs.values():
    commands += commands_of.evaluation(papers.PAPERS["lear"], main.columns[0], run).split(" && ")
  small = {
    r"hf:RUC-NLPIR/FlashRAG_datasets/nq/(\w+)": rf"{tmp_path}/nq_\1.jsonl",
    "DPR_INDEX": f"{tmp_path}/index",
    "--config.model.path=Qwen/Qwen2.5-1.5B-Instruct": "--config.prompting.tokenizer=bytes",
    "--checkpoint": "--config.prompting.tokenizer=bytes --checkpoint",
    "=out/lear": f"={tmp_path}/out",
    r"--config=(lear:\S+)": r"--config=\1,smoke",
    r"--config=lear ": "--config=lear:smoke ",
  }
  own = [
    f"--config.data.{name}={tmp_path}/nq_{split}.jsonl" for name, split in (("train", "train"), ("evaluate", "test"))
  ]
  program = [sys.executable, "-c", "from ragrl_jax.cli import main; main.main()"]
  folders = []
  for command in dict.fromkeys(commands):
    for pattern, by in small.items():
      command = re.sub(pattern, by, command)
    words = shlex.split(command)[1:]
    given = own if words[0] == "train" else []  # the config names NQ's sets on the hub
    done = subprocess.run([*program, *words, *given], capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"
    if words[0] == "evaluate":
      folders += [word.removeprefix("--out=") for word in words if word.startswith("--out=")]
  evaluations = [records.read(folder) for folder in folders]
  assert [one.facts.get("chosen_by") for one in evaluations].count("evaluation/measure/em_from_evidence") == 1
  filled = {one.table.name: one for one in filling.fill(papers.PAPERS["lear"], evaluations, any_model=True)}
  cells = {row.name: found for row, found in zip(main.rows, filled["Table 4, 1.5B"].cells)}
  assert {name for name, found in cells.items() if found[0].value is not None} == set(runs)
  assert {cells[name][0].n for name in runs} == {4}
