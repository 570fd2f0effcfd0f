"""The commands that `ragrl tables` prints make what their tables show."""

import pathlib
import re

import paper_runs
import pytest

from ragrl_jax import config as config_lib, recipes, structs
from ragrl_jax.evaluation import records
from ragrl_jax.evaluation.tables import commands_of, filling, papers
from ragrl_jax.testing import scripted

ROOT = pathlib.Path(__file__).parents[2]


def _kept(run):
  """(the config of a row's training, the steps of which its folder has checkpoints at the end)."""
  config = paper_runs.config_of(run.train, *run.needs, *run.train_flags)
  saved = [step for step in range(1, config.steps + 1) if step % config.checkpoint.every == 0 or step == config.steps]
  return config, saved[-config.checkpoint.keep :]


@pytest.mark.parametrize("name", papers.PAPERS)
def test_printed_commands_keep_the_checkpoints_that_their_tables_evaluate(name):
  paper = papers.PAPERS[name]
  named = [(table, run) for table in paper.tables for row in table.rows for run in (row.run, row.versus)]
  for table, run in ((table, run) for table, run in named if run is not None and run.train):
    if "=TRANSCRIPTS" not in commands_of.training(paper, run):
      config, kept = _kept(run)
      if run.checkpoint:
        evaluated = commands_of.evaluation(paper, table.columns[0], run)
        assert run.checkpoint in kept and f"/checkpoints/{run.checkpoint} " in evaluated
      if any("--best" in flag for flag in run.flags):
        measured = range(config.evaluate.every, config.steps + 1, config.evaluate.every)
        assert config.evaluate.every and set(measured) <= set(kept), table.name
      if paper.name == "when_to_search" and table.name.startswith("Table 1"):  # its rows of stage one, by hand
        assert set(range(30, 301, 30)) <= set(kept)


def test_iter_retgen_makes_when_to_searchs_three_searches_and_agents_beside_it_read_five_passages():
  paper = papers.PAPERS["when_to_search"]
  (table,) = [table for table in paper.tables if table.name == "Table 3"]
  (row,) = [row for row in table.rows if row.name == "Iter-RetGen"]
  assert {row.published[place] for place, one in enumerate(table.columns) if one.measure == "searches"} == {"3.00"}
  command = commands_of.evaluation(paper, table.columns[0], row.run)
  (most,) = re.findall("--config.switches.max_searches=(\\d+)", command)
  # A search for the question, then one after every answer while any is left.
  recipe = recipes.get("untrained", "iter_retgen", max_searches=int(most))
  passage = structs.Passage("1", "T", "A text.")
  example = structs.Example("1", "Who?", ("Ann",))
  episode, _ = scripted.play(recipe, example, ["<answer> Ann </answer>"] * 4, [[passage]] * 4)
  assert episode.num_searches == 3
  rows = [row.name for other in papers.PAPERS.values() for one in other.tables for row in one.rows]
  assert [name for name in rows if "RetGen" in name] == ["Iter-RetGen"]  # no other paper's table has it
  agents = [row.run for row in table.rows if row.run is not None and row.run.system]
  assert len(agents) == 4
  for run in agents:
    played = {"recipe": "released", "switches.agent": run.system, "switches.documents": "search"}
    five, three = (filling.unmet(run, played | {"retrieval.top_k": k}) for k in (5, 3))
    assert not five and three
    assert not filling.unmet(run, {"recipe": "transcripts", "system": run.system})  # of transcripts it is not known
    assert "--config.retrieval.top_k=5" in run.flags


def test_a_missing_verdict_names_the_judge_of_the_papers_own_question():
  for name, config in (("when_to_search", "when_to_search"), ("arena", "arena:judge")):
    cells = [cell for one in filling.fill(papers.PAPERS[name], []) for found in one.cells for cell in found]
    said = {cell.why_not for cell in cells if "ragrl judge" in cell.why_not}
    assert said and all(f"`ragrl judge --config={config} " in text for text in said)
    assert config_lib.load(config).judge.prompt in ("correctness", "answer")


def test_the_page_counts_as_figure_four_does():
  (figure,) = [table for table in papers.PAPERS["when_to_search"].tables if table.name == "Figure 4"]
  page = ROOT / "ragrl_jax" / "recipes" / "when_to_search" / "README.md"
  (measure,) = re.findall(r"quadrants [^`]*--measure (\w+)", page.read_text(encoding="utf-8"))
  assert {column.measure for column in figure.columns} == {measure}


def test_no_test_set_selects_a_checkpoint():
  """Held-out questions of a training whose best checkpoint is evaluated are none of its table's questions."""
  chosen = 0
  for paper, table in ((one, table) for one in papers.PAPERS.values() for table in one.tables):
    named = [(column, name) for column in table.columns for name in column.sets]
    sets = {column.data or paper.data.get(name) or records.SETS[name]["questions"] for column, name in named}
    for row in (row for row in table.rows if row.run is not None):
      for run in (run for run in (row.run.reads, row.run) if run is not None and run.train):
        assert bool(run.best) or not any("--best" in flag for flag in run.flags)  # else the last checkpoint
        if run.best or (paper.name in ("veritas", "search_r1") and not run.transcripts):
          chosen += 1
          config = _kept(run)[0]
          assert not run.best or config.evaluate.examples == 0, row.name  # all of them
          measured = config.data.evaluate
          assert measured and not set(measured.split(",")) & sets, (paper.name, table.name, row.name)
  assert chosen > 20
