import pytest

from ragrl_jax.report import panels


def test_curves_find_their_columns_and_other_metrics_are_shown_too():
  rows = [
    {"step": 0, "time": 5.0, "evaluation/em": 0.25},
    {"step": 1, "time": 6.0, "reward": 1.0, "term/format": 0.5, "term/answer": 0.0, "seconds/rollout": 2.0,
     "grad_norm": None, "odd/one": 3, "bottleneck": "rollout", "kl": 0.0, "old_kl": 0.0},
    {"step": 2, "time": 7.0, "reward": 1.123456789, "term/format": 0.5, "term/answer": 1.0, "grad_norm": 2.0,
     "evaluation/em": 0.5, "kl": 0.0, "old_kl": 0.125, "odd/one": 4},
  ]  # fmt: skip
  found = panels.curves({"run": rows})
  (run,) = found["runs"]
  titles = [panel["title"] for panel in found["panels"]]
  assert titles == ["Reward", "Term: answer", "Term: format", "Held-out exact match", "KL", "Gradient norm"]
  assert run["steps"] == [0, 1, 2] and run["every"] == 1
  assert run["columns"]["reward"] == [None, 1.0, 1.1235]
  assert run["columns"]["grad_norm"] == [None, None, 2.0] and run["columns"]["evaluation/em"] == [0.25, None, 0.5]
  assert run["joined"] == ["evaluation/em"]  # not measured at step 1; the gradient norm was measured but is not finite
  # A KL that is always 0 is switched off: its chart has no curve for it, but the page says its value.
  drawn = {panel["title"]: [line["column"] for line in panel["series"]] for panel in found["panels"]}
  assert drawn["KL"] == ["old_kl"]
  more = [(part["group"], [chart["title"] for chart in part["charts"]]) for part in found["more"]]
  assert more == [("odd", ["odd/one"])]
  assert found["constant"] == [{"name": "kl", "value": 0.0}]


def test_what_would_be_drawn_twice_is_drawn_once():
  row = lambda step, reward: {
    "step": step, "time": 0.0, "reward": reward, "outcome": reward, "term/answer": reward, "unearned/echo": reward / 2,
    "unearned/none": 0.0, "evaluation/em": reward, "evaluation/by_hops/1/em": reward, "evaluation/by_hops/1/n": 9.0,
  }  # fmt: skip
  charts = panels.curves({"run": [row(1, 0.5), row(2, 1.0)]})
  drawn = {panel["title"]: [line["label"] for line in panel["series"]] for panel in charts["panels"]}
  assert drawn == {"Reward": ["reward"], "Unearned reward": ["echo"], "Held-out exact match": ["all"]}
  assert charts["panels"][0]["note"] == "Mean of episodes; the same as the term answer and the outcome"
  assert charts["more"] == charts["constant"] == []
  # Two numbers of hops, a second term and another outcome say something of their own.
  more = {"evaluation/by_hops/2/em": 0.1, "term/format": 1.0, "outcome": 1.0, "groups/metric": 0.5}
  charts = panels.curves({"run": [row(step, 0.5) | more for step in (1, 2)]})
  noted = [panel["title"] for panel in charts["panels"] if "of the groups that the filter kept" in panel["note"]]
  assert noted == ["Reward", "Outcome"]
  titles = ["Reward", "Term: format", "Unearned reward", "Outcome", "Held-out exact match"]
  assert [panel["title"] for panel in charts["panels"]] == titles
  assert [line["label"] for line in charts["panels"][-1]["series"]] == ["all", "1 hop", "2 hops"]


def test_long_runs_are_averaged():
  steps = 2 * panels.MAX_POINTS + 1  # three rows per point
  rows = [{"step": step, "time": 0.0, "reward": float(step % 3)} for step in range(1, steps + 1)]
  (found,) = panels.curves({"run": rows})["runs"]
  assert found["every"] == 3 and len(found["steps"]) <= panels.MAX_POINTS
  assert found["steps"][:2] == [3, 6] and found["steps"][-1] == steps
  assert found["columns"]["reward"][:3] == [1.0, 1.0, 1.0]  # (1 + 2 + 0) / 3


def test_an_ending_without_episodes_is_zero():
  # A row logs only the endings that occurred. A curve through these values alone would leave out the zeros.
  ended = ({"answer": 1.0}, {"answer": 0.5, "length": 0.5}, {"answer": 1.0}, {"length": 1.0}, None)
  shares = lambda ways: {f"ended/{why}": share for why, share in (ways or {}).items()}
  rows = [{"step": i, "time": 0.0, "reward": 1.0} | shares(ways) for i, ways in enumerate(ended)]
  (run,) = panels.curves({"run": rows})["runs"]
  assert run["columns"]["ended/length"] == [0.0, 0.5, 0.0, 1.0, None] and run["joined"] == []
  assert run["columns"]["ended/answer"] == [1.0, 0.5, 1.0, 0.0, None]


def test_without_a_retriever_searches_are_not_shown():
  rows = [{"step": step, "time": 0.0, "reward": 1.0, "searches": 0.0, "evaluation/searches": 0.0} for step in (1, 2)]
  found = lambda **more: panels.curves({"run": rows}, **more)
  titles = lambda **more: [chart["title"] for chart in found(**more)["panels"]]
  assert found(searching=False)["more"] == found(searching=False)["constant"] == []
  assert titles(searching=False) == ["Reward"]
  assert titles(searching=True) == ["Reward", "Searches per question"]  # a policy that never searches must be visible


def test_several_runs_share_a_chart():
  rows = lambda steps, **more: [{"step": step, "time": 0.0, "reward": 1.0 * step, **more} for step in range(steps)]
  second = rows(2, **{"evaluation/em": 0.5, "new": 1, "speed": 2})
  found = panels.curves({"a": rows(3, kl=0.0, old_kl=0.5, speed=1), "b": second})
  of = lambda chart: [(line["label"], line["column"], line["run"]) for line in chart["series"]]
  assert {chart["title"]: of(chart) for chart in found["panels"] + found["more"][0]["charts"]} == {
    "Reward": [("a", "reward", 0), ("b", "reward", 1)], "Held-out exact match": [("b", "evaluation/em", 1)],
    "KL": [("a", "old_kl", 0)], "speed": [("a", "speed", 0), ("b", "speed", 1)],
  }  # fmt: skip
  assert [item["name"] for item in found["constant"]] == ["kl", "new"]
  assert [run["steps"] for run in found["runs"]] == [[0, 1, 2], [0, 1]]
  both = panels.curves({"a": rows(2, kl=1.0, old_kl=0.5), "b": rows(2)})
  assert [chart["title"] for chart in both["panels"]] == ["Reward", "KL: reference", "KL: update"]


def test_no_rows_give_no_curves():
  assert panels.curves({"run": []})["panels"] == []
  for rows in ([], [{"step": 1, "time": 0.0, "reward": 1.0}], [{"step": 1, "time": 0.0, "seconds/step": 0.0}]):
    assert panels.breakdown(rows) is None


def seconds(number, **parts):
  return {"step": number, "time": 0.0, **{f"seconds/{name}": value for name, value in parts.items()}}


def test_the_bottleneck_is_the_largest_median_after_the_first_step():
  # The first step compiles for a minute, so it is excluded.
  rows = [seconds(1, rollout=3.0, update=60.0, judge_wait=0.0, step=63.0)]
  after = dict(rollout=3.0, update=1.0, judge_wait=0.0, metrics=0.125, other=0.875, step=5.0)
  rows += [seconds(step, **after) for step in (2, 3, 4)]
  found = panels.breakdown(rows)
  parts = {part["name"]: part for part in found["parts"]}
  assert found["bottleneck"] == "rollout" and found["median"] == 5.0 and found["steps"] == [1, 2, 3, 4]
  # The host's small parts are joined. Parts that are always 0 are left out.
  assert {name: part["tone"] for name, part in parts.items()} == {"rollout": 0, "update": 4, "other": 6}
  assert parts["other"]["seconds"] == [0.0, 1.0, 1.0, 1.0]
  assert (parts["rollout"]["median"], parts["rollout"]["total"]) == (3.0, 12.0)
  assert parts["rollout"]["share"] == pytest.approx(12 / 78, rel=1e-4) and found["total"] == 78.0
  # After the first, whole steps take 2, 4, 4 and 5: their median is 4, and 1.5 and 2 are those of the parts.
  uneven = [
    seconds(step, rollout=r, update=u) for step, (r, u) in enumerate([(9, 9), (1, 1), (4, 0), (0, 4), (2, 3)], 1)
  ]
  assert panels.breakdown(uneven)["median"] == 4.0


@pytest.mark.parametrize("count", [1, panels.MAX_BARS, panels.MAX_BARS + 1, 3 * panels.MAX_BARS - 1])
def test_every_bar_has_its_step(count):
  found = panels.breakdown([seconds(step, rollout=1.0) for step in range(1, count + 1)])
  assert len(found["steps"]) == len(found["parts"][0]["seconds"]) <= panels.MAX_BARS


def test_evaluations_and_checkpoints_are_part_of_the_breakdown():
  rows = [seconds(0, evaluate=20.0)] + [seconds(step, rollout=3.0, step=3.0) for step in range(1, 10)]
  rows.append(seconds(10, rollout=3.0, step=3.0, evaluate=20.0, checkpoint=10.0))
  found = panels.breakdown(rows)
  shown = {part["name"]: (part["median"], part["total"], part["share"]) for part in found["parts"]}
  assert shown == {"rollout": (3.0, 30.0, 0.375), "evaluate": (0.0, 40.0, 0.5), "checkpoint": (0.0, 10.0, 0.125)}
  assert found["bottleneck"] == "rollout"
