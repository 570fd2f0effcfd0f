import paper_runs
import pytest
from refusals import refused

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
  best |= dict(data="nq.jsonl", flags=(OWN, "--config.switches.answers=", "--config.evaluate.batch=64"))
  extracted = paper_runs.evaluation(tmp_path / "extracted", "lear:inference", rows_, **best)
  of = dict(checkpoint=generator, data="nq.jsonl")
  said = lambda right: [paper_runs.row(i, right=i < right) for i in range(4)]
  read = paper_runs.read(tmp_path / "read", extracted, said(3), **of)
  return extracted, read, paper_runs.evaluation(tmp_path / "full", "lear:generator", said(2), flags=(OWN,), **of)


def test_lears_rows_are_read_by_the_generator(tmp_path):
  """As in the paper: EM of the generator's answers (3 of 4), the extractor's compression (600 / 20) and seconds."""
  extracted, read, full = made(tmp_path)
  tables_ = paper_runs.filled("lear", read, full, extracted)
  main, cells = tables_["Table 4, 1.5B"], paper_runs.cells("lear", "Table 4, 1.5B", read, full, extracted)
  assert [cell.value for cell in cells["LEAR"][:3:2]] == [75.0, 30.0] and cells["Full"][0].value == 50.0
  assert cells["Full"][0].paired == 4  # the same reader: tested against each other
  assert tables_["Table 6"].cells[-1][0].value == 75.0 and tables_["Table 5"].cells[-1][0].value == 0.2
  text = writing.FORMATS["markdown"](papers.PAPERS["lear"], [main])
  assert "evidence of recipe lear, preset inference, model qwen2.5-1.5b" in text
  assert "chosen_by evaluation/measure/em_from_evidence" in text


def test_answers_of_the_extractor_itself_fill_no_row(tmp_path):
  extracted, read, full = made(tmp_path)
  fill = lambda *given: filling.fill(papers.PAPERS["lear"], given)
  refused("read: it answers from evidence of 1 extractions, and 0 of them", fill, read, full)
  rows_, of = [paper_runs.row(0, evidence="e")], dict(data="nq.jsonl", flags=(OWN,))
  own = paper_runs.evaluation(tmp_path / "own", "lear:inference", rows_, checkpoint=tmp_path / "run", **of)
  refused("a generator must read.*make-lear-generator --predictions=", fill, full, own)
  # Passages that HotpotQA's rows bring were extracted from: the right row, but not the table's protocol.
  given = [paper_runs.row(0, evidence="e", source="hotpotqa")]
  brought = paper_runs.evaluation(tmp_path / "brought", "lear:inference", given, checkpoint=tmp_path / "run")
  of_generator = dict(checkpoint=tmp_path / "generator", data="hotpotqa.jsonl")
  answered = paper_runs.read(tmp_path / "answered", brought, [paper_runs.row(0)], **of_generator)
  refused("row 'LEAR', but fills none of its columns:.*own_passages=None, not False", fill, brought, answered)
  # Another step than the best one, and the best one by another metric.
  for name, more in (("step", {}), ("other", dict(chosen_by="evaluation/f1"))):
    at = dict(checkpoint=tmp_path / "run" / "checkpoints" / "100")
    step = paper_runs.evaluation(tmp_path / name, "lear:inference", rows_, **at, **of, **more)
    assert not any(not filling.unmet(row.run, step.facts) for row in papers.PAPERS["lear"].tables[5].rows)


@pytest.mark.long  # fourteen processes, of which six compile a small model
def test_the_commands_run_as_printed_in_miniature(tmp_path):
  """From the data to a filled table: all commands of three rows, for models of random weights (variant `smoke`)."""
  passages = [Passage(str(i), f"Town {i}", f"Town {i} was founded by Olaf {i}. It is old.") for i in range(12)]
  retrieval.build_index(passages, "bm25", tmp_path / "index", progress=False)
  splits = dict(train=range(8), test=range(8, 12))
  for split, numbers in splits.items():
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
    r"hf:RUC-NLPIR/FlashRAG_datasets/nq/(\w+)": rf"{tmp_path}/nq_\1.jsonl", "DPR_INDEX": f"{tmp_path}/index",
    "--config.model.path=Qwen/Qwen2.5-1.5B-Instruct": "--config.prompting.tokenizer=bytes",
    "--checkpoint": "--config.prompting.tokenizer=bytes --checkpoint", "=out/lear": f"={tmp_path}/out",
    r"--config=(lear:\S+)": r"--config=\1,smoke", r"--config=lear ": "--config=lear:smoke ",
  }  # fmt: skip
  own = [f"--config.data.{name}={tmp_path}/nq_{split}.jsonl" for name, split in zip(("train", "evaluate"), splits)]
  folders = []
  for command in dict.fromkeys(commands):
    given = own if command.startswith("ragrl train ") else []  # the config names NQ's sets on the hub
    words = paper_runs.run(command, small, *given)
    folders += [word[6:] for word in words if words[0] == "evaluate" and word.startswith("--out=")]
  evaluations = [records.read(folder) for folder in folders]
  assert [one.facts.get("chosen_by") for one in evaluations].count("evaluation/measure/em_from_evidence") == 1
  cells = paper_runs.cells("lear", "Table 4, 1.5B", *evaluations, any_model=True)
  assert {name for name, found in cells.items() if found[0].value is not None} == set(runs)
  assert {cells[name][0].n for name in runs} == {4}
