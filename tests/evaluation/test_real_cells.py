"""The evaluations of benchmarks/real_tables.py: read from the papers' tables, with settings that can be run."""

import pathlib

import pytest
import real_cells

from ragrl_jax import config as config_lib
from ragrl_jax.evaluation.tables import papers
from ragrl_jax.run import checks, prepared

EVERY = real_cells.evaluations()


def test_each_is_there_once_and_every_baseline_is():
  assert len({one.name for one in EVERY}) == len(EVERY) > 400
  assert {name for named in EVERY.values() for name in named} == set(papers.PAPERS)
  configs = {one.config for one in EVERY}
  assert {*real_cells.BASELINES, "arena:direct", "lear:inference", "care:longbench"} <= configs
  assert set(real_cells.MAIN) <= {one.training.config for one in EVERY if one.training}
  for config in real_cells.BASELINES:
    assert {one.dataset for one in EVERY if one.config == config} == set(real_cells.FILES), config
  # Recipes and baselines come first, and every paper has one among the first ten.
  first = list(EVERY)[:10]
  assert {name for one in first for name in EVERY[one]} == set(papers.PAPERS)
  assert all(one.training is None or one.training.config in real_cells.MAIN for one in first)


def test_what_a_cell_asks_for_is_kept_and_what_is_not_here_replaced():
  by_name = {one.name: one for one in EVERY}
  out = pathlib.Path("out")
  one = real_cells.asked(by_name["untrained-top_k_3-hotpotqa"], out, 200)
  assert (one.retrieval.top_k, one.retrieval.index) == (3, "out/indexes/hotpotqa")
  assert not one.data.own_passages and one.data.max_examples == 200
  given = real_cells.asked(by_name["untrained-sure-given-correctness_judge-musique"], out, 200)
  assert given.data.own_passages and not given.retrieval.index and given.judge.kind == "exact"
  noisy = by_name["lear-sft-generator--lear-generator-noise_8-nq"]
  assert real_cells.asked(noisy, out, 200).data.noise == 8 and real_cells.data(noisy, out).name == "nq_asked.jsonl.gz"
  group = real_cells.trained(real_cells.Training("search_r1:grpo", (("rollout.group_size", "3"),)), out, out)
  assert group.rollout.group_size == 3 and group.data.train.endswith("hotpotqa_train.jsonl.gz")
  without = real_cells.trained(real_cells.Training("arena:without_2wiki"), out, out).data.train
  assert "musique" in without and "hotpotqa" in without and "2wiki" not in without


@pytest.mark.slow  # a hundred configs are loaded
def test_all_settings_are_valid(monkeypatch):
  out = pathlib.Path("out")
  monkeypatch.setattr(pathlib.Path, "exists", lambda path: True)  # indexes are built when an evaluation is made
  each = {(one.config, one.flags, one.training): one for one in EVERY}.values()
  asked = [config_lib.validate(real_cells.asked(one, out, 200), training=False) for one in each]
  trainings = {one.training for one in EVERY if one.training}
  for made in (*asked, *(config_lib.validate(real_cells.trained(one, out, out)) for one in trainings)):
    checks.tools(made, prepared.recipe(made))
