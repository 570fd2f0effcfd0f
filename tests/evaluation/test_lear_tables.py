"""LEAR's tables: which runs fill a row, and that their commands run as printed."""

import paper_runs
import pytest

from ragrl_jax.evaluation.tables import filling, papers, results, writing

OWN = "--config.data.own_passages=False"


def made(tmp_path):
  """(the extraction of LEAR's best checkpoint, the generator's answers from it, those from all passages)."""
  run = paper_runs.trained(tmp_path / "run", "lear", "qwen2.5-1.5b")
  generator = paper_runs.trained(tmp_path / "generator", "lear:sft,generator", "qwen2.5-1.5b")
  best = dict(checkpoint=run / "checkpoints" / "450", chosen_by="evaluation/measure/em_from_evidence")
  rows_ = [paper_runs.row(i, right=False, evidence=f"e{i}", passage_tokens=600, evidence_tokens=20) for i in range(4)]
  flags = (OWN, "--config.switches.answers=", "--config.evaluate.batch=64")
  made = paper_runs.evaluation(tmp_path / "extracted", "lear:inference", rows_, data="nq.jsonl", flags=flags, **best)
  extracted = results.read(made)
  of = dict(checkpoint=generator, data="nq.jsonl")
  said = [paper_runs.row(i, right=i < 3) for i in range(4)]
  read = results.read(paper_runs.read(tmp_path / "read", extracted, said, **of))
  said = [paper_runs.row(i, right=i < 2) for i in range(4)]
  return (
    extracted,
    read,
    results.read(paper_runs.evaluation(tmp_path / "full", "lear:generator", said, flags=(OWN,), **of)),
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
  text = writing.markdown(papers.PAPERS["lear"], [main])
  assert "evidence of recipe lear, preset inference, model qwen2.5-1.5b" in text
  assert "chosen_by evaluation/measure/em_from_evidence" in text


def test_answers_of_the_extractor_itself_fill_no_row(tmp_path):
  extracted, read, full = made(tmp_path)
  fill = lambda *given: filling.fill(papers.PAPERS["lear"], given)
  with pytest.raises(ValueError, match="read: it answers from evidence of 1 extractions, and 0 of them"):
    fill(read, full)
  own = paper_runs.evaluation(
    tmp_path / "own",
    "lear:inference",
    [paper_runs.row(0, evidence="e")],
    checkpoint=tmp_path / "run",
    data="nq.jsonl",
    flags=(OWN,),
  )
  with pytest.raises(ValueError, match="a generator must read.*make-lear-generator --predictions="):
    fill(full, results.read(own))
  # Passages that HotpotQA's rows bring were extracted from: the right row, but not the table's protocol.
  given = [paper_runs.row(0, evidence="e", source="hotpotqa")]
  of = dict(checkpoint=tmp_path / "run", data="hotpotqa.jsonl")
  brought = results.read(paper_runs.evaluation(tmp_path / "brought", "lear:inference", given, **of))
  of |= dict(checkpoint=tmp_path / "generator")
  answered = results.read(paper_runs.read(tmp_path / "answered", brought, [paper_runs.row(0)], **of))
  with pytest.raises(ValueError, match="row 'LEAR', but fills none of its columns:.*own_passages=None, not False"):
    fill(brought, answered)
  # Another step than the best one, and the best one by another metric.
  for name, more in (("step", {}), ("other", dict(chosen_by="evaluation/f1"))):
    of = dict(checkpoint=tmp_path / "run" / "checkpoints" / "100", data="nq.jsonl", flags=(OWN,)) | more
    step = results.read(
      paper_runs.evaluation(tmp_path / name, "lear:inference", [paper_runs.row(0, evidence="e")], **of)
    )
    assert not any(filling.fits(row.run, step.facts) for row in papers.PAPERS["lear"].tables[5].rows)
