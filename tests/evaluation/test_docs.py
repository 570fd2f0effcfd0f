"""docs/metrics.md lists every metric that is logged."""

import pathlib
import re

import declared
import numpy as np

from ragrl_jax import structs
from ragrl_jax.evaluation import harness
from ragrl_jax.learner import blocks, learner, packing, settings, step
from ragrl_jax.report import panels
from ragrl_jax.rollout import timings
from ragrl_jax.run import detectors, rewards, warning_signs

ROOT = pathlib.Path(__file__).parents[2]
ASKED, SAID = structs.Segment(structs.ENVIRONMENT, (1, 2), "?"), structs.Segment(structs.MODEL, (3,), "!", (-1.0,))
EPISODE = structs.Episode((ASKED, SAID), ended="answer")


def test_every_metric_that_single_modules_log_is_declared():
  """`only_declared_metrics` in conftest.py checks whole rows."""
  example, ones = structs.Example("q", "?", ("!",)), {"answer": 1.0}
  scored = rewards.Scored(example, EPISODE, ones, ones, 1.0, 1.0, (1.0,), (np.float32([0.5]),))
  packed = packing.pack_items(packing.of_episode(EPISODE, (0.5,)), rows=1, lengths=(8,))
  counted = blocks.whole_batch([blocks.count(packed.blocks, settings.Settings())])
  names = [*step.SUMS, *learner.OF_CRITIC, "return_mean", "value_mean", "explained_variance"]
  names += [*rewards.summarise([scored]), *(f"engine/{name}" for name in timings.Timings().metrics())]
  names += [name for name in counted if name not in learner.NOT_SHOWN]
  charts = {column for panel in panels.PANELS for column in panel.series.values()}
  assert not declared.undeclared([*names, *harness.flat(harness.summarise([])), *charts])


def test_every_ending_is_explained():
  (meaning,) = [row[2] for row in declared.TABLES["episodes"] if row[0] == "`ended/WHY`"]
  endings = "answer eos length budget searches turns requests silent extract failed".split()
  assert all(f"`{why}`" in meaning for why in endings)
  sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "ragrl_jax" / "recipes").rglob("*.py"))
  assert set(re.findall(r'(?:\.end\(|\bended = |\bwhy = |\bended or )"(\w+)"', sources)) <= {*endings}


def test_the_search_for_metric_names_finds_some():
  found = {name for table in declared.TABLES for name in declared.names(table)}
  assert {"reward", "term/NAME", "loss", "mask_coverage", "engine/decode_s", "no_signal", "groups/draws", "n"} <= found
  others = [table for table in declared.TABLES if table != "detectors"]
  assert len(found) == sum(len(declared.names(table)) for table in others) - 10  # 10 also held out
  assert all(unit and meaning for table in declared.TABLES.values() for _, unit, meaning, *_ in table)
  fine = ["reward", "term/f", "ended/eos", "evaluation/em", "development/terms/x", "evaluation/by_hops/2/em"]
  odd = ["rewards", "term", "term/a/b", "em", "evaluation/reward", "warning/no_sense", "macro/em", "development"]
  more = ["warning/entropy", "warning/unearned/x", "evaluation/macro/terms/answer"]
  assert declared.undeclared([*fine, *more, *odd]) == odd


def test_every_warning_is_declared():
  off = dict(searches=0, mask_coverage=0.0, mismatch=1.0, kl=9.0, old_kl=1.0, clip_fraction=1.0, skipped=1)
  off |= {"zero_advantage_share": 1.0, "groups/missing": 1, "ended/budget": 0.3}
  steps = [off, dict(zero_advantage_share=0.95), {"groups/trained": 0}, dict(episodes=8, unscorable=8, failed_share=0)]
  found = {name for metrics in steps for name in warning_signs.warnings(metrics, searches_expected=True)}
  # The tests of the recipes and of `warning_signs.of_training` cover the others.
  assert found | {"schedule", "few_spreads", "collapsed"} == set(declared.names("warnings"))


def test_the_table_of_detectors_is_the_codes():
  name = lambda metric: f"`{metric}TRICK`" if metric.endswith("/") else f"`{metric}`"
  found = [[name(d.metric), "text", d.means, d.range, str(d.hold), d.cure] for d in detectors.DETECTORS]
  assert found == declared.TABLES["detectors"]
  metrics = {metric for table in ("episodes", "update") for metric in declared.names(table)}
  assert {*declared.names("detectors")} <= metrics
