import pytest

from ragrl_jax.evaluation import panels


def test_curves_find_their_columns_and_the_rest_is_shown_too():
  rows = [
      {"step": 0, "time": 5.0, "evaluation/em": 0.25},
      {"step": 1, "time": 6.0, "reward": 1.0, "term/format": 0.5, "term/answer": 0.0, "seconds/rollout": 2.0,
       "grad_norm": None, "odd/one": 3, "bottleneck": "rollout", "kl": 0.0, "old_kl": 0.0},
      {"step": 2, "time": 7.0, "reward": 1.123456789, "term/format": 0.5, "term/answer": 1.0, "grad_norm": 2.0,
       "evaluation/em": 0.5, "kl": 0.0, "old_kl": 0.125}]
  found = panels.curves(rows)
  titles = [panel["title"] for panel in found["panels"]]
  assert titles == ["Reward", "Term: answer", "Term: format", "Held-out exact match", "KL", "Gradient norm"]
  assert found["steps"] == [0, 1, 2] and found["every"] == 1
  assert found["columns"]["reward"] == [None, 1.0, 1.1235]
  assert found["columns"]["grad_norm"] == [None, None, 2.0] and found["columns"]["evaluation/em"] == [0.25, None, 0.5]
  # A KL that never leaves 0 is switched off: it is no curve of its chart, but is not hidden either.
  drawn = {panel["title"]: [line["column"] for line in panel["series"]] for panel in found["panels"]}
  assert drawn["KL"] == ["old_kl"]
  assert [panel["title"] for panel in found["more"]] == ["kl", "odd/one"]


def test_long_runs_are_averaged():
  steps = 2 * panels.MAX_POINTS + 1  # three rows a point
  found = panels.curves([{"step": step, "time": 0.0, "reward": float(step % 3)} for step in range(1, steps + 1)])
  assert found["every"] == 3 and len(found["steps"]) <= panels.MAX_POINTS
  assert found["steps"][:2] == [3, 6] and found["steps"][-1] == steps
  assert found["columns"]["reward"][:3] == [1.0, 1.0, 1.0]  # (1 + 2 + 0) / 3


def test_no_rows_no_curves():
  assert panels.curves([])["panels"] == [] and panels.breakdown([]) is None
  assert panels.breakdown([{"step": 1, "time": 0.0, "reward": 1.0}]) is None
  assert panels.breakdown([{"step": 1, "time": 0.0, "seconds/step": 0.0}]) is None


def seconds(number, **parts):
  return {"step": number, "time": 0.0, **{f"seconds/{name}": value for name, value in parts.items()}}


def test_the_bottleneck_is_the_largest_median_after_the_first_step():
  # The first step compiles its update for a minute, and is no guide to what slows the run.
  rows = [seconds(1, rollout=3.0, update=60.0, judge_wait=0.0, step=63.0)]
  rows += [seconds(step, rollout=3.0, update=1.0, judge_wait=0.0, step=5.0) for step in (2, 3, 4)]
  found = panels.breakdown(rows)
  parts = {part["name"]: part for part in found["parts"]}
  assert found["bottleneck"] == "rollout" and found["median"] == 5.0
  # 5 - 3 - 1 = 1 second is unexplained; a part that is always 0 is left out.
  assert list(parts) == ["rollout", "update", "other"]
  assert parts["other"]["seconds"] == [0.0, 1.0, 1.0, 1.0]
  assert (parts["rollout"]["median"], parts["rollout"]["share"]) == (3.0, 0.6)
  assert found["steps"] == [1, 2, 3, 4]


@pytest.mark.parametrize("count", [1, panels.MAX_BARS, panels.MAX_BARS + 1, 3 * panels.MAX_BARS - 1])
def test_every_bar_has_its_step(count):
  found = panels.breakdown([seconds(step, rollout=1.0) for step in range(1, count + 1)])
  assert len(found["steps"]) == len(found["parts"][0]["seconds"]) <= panels.MAX_BARS
