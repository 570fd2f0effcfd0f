"""The benchmarks collapse.py, mismatch.py and teacher.py: what counts as collapse, and the pages of their records."""

import pathlib
import sys

import pytest

from ragrl_jax.store import jsonl

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
collapse, teacher = pytest.importorskip("collapse"), pytest.importorskip("teacher")
curve = lambda *em: [[2 * at, value] for at, value in enumerate(em)]


@pytest.mark.parametrize("em, step, lost", [
  ((0.4, 0.9, 0.9, 0.9, 0.9), None, False),
  ((0.4, 0.9, 0.9, 0.5, 0.9, 0.9), None, False),  # it came back
  ((0.4, 0.9, 0.9, 0.8, 0.8), 8, False),  # it fell, but did not collapse
  ((0.4, 0.9, 0.9, 0.4, 0.3), 6, True),
  ((0.4, 0.4, 0.4), None, False),  # it learned nothing
])  # fmt: skip
def test_a_run_collapses_if_its_best_is_lost_for_good(em, step, lost):
  assert collapse.falls(curve(*em)) == step and collapse.collapsed(curve(*em)) == lost


def test_an_alarm_in_time_comes_a_fifth_of_the_steps_before_the_fall():
  em = curve(0.4, 0.9, 0.9, 0.9, 0.9, 0.9, 0.2, 0.0)  # falls at step 12
  rows = [dict(em=em, alarms={"old_kl": step}) for step in (1, 9, 10)] + [dict(em=em, alarms={})]
  assert [collapse.lead([row]) for row in rows] == [(1, 1), (1, 1), (0, 1), (0, 1)]
  assert collapse.lead(rows, without="old_kl") == (0, 4)


def test_alarms_are_replayed_from_a_runs_metrics():
  rows = [dict(step=step, entropy=0.5, old_kl=0.02 * (step == 3), zero_advantage_share=1.0) for step in range(5)]
  assert collapse.alarms(rows) == {"far_update": 3}  # a step that teaches nothing is no alarm


def test_pages_are_what_their_records_give():
  assert collapse.PAGE.read_text() == collapse.page(collapse.merged([]))
  assert teacher.PAGE.read_text() == teacher.page([*jsonl.read(teacher.RECORD)])


def test_a_goal_is_reached_where_two_evaluations_in_a_row_do():
  row = lambda *em: dict(em=curve(*em), episodes=8)
  assert [teacher.reached(row(*em)) for em in ((0.4, 0.9, 0.8, 0.9, 1.0), (0.4, 0.9, 0.8))] == [48, None]
  runs, base = {0: row(0.9, 0.9, 0.9), 1: row(0.1, 0.1)}, {0: row(0.1, 0.1), 1: row(0.9, 0.9), 2: row(0.9, 0.9)}
  assert teacher.halved(runs, base) == "1 of 2"
