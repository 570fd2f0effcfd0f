import json
import pathlib

import numpy as np
import pytest

from ragrl_jax.run import detectors

CALM = dict(searches=1.5, entropy=0.5, response_tokens=100.0)


def alarms(rows):
  """The alarms of the last of these steps, and their metrics."""
  watch, found = detectors.Watch(), []
  for step, row in enumerate(rows, 1):
    found = watch.see(dict(step=step, **row))
  return {alarm.metric: alarm for alarm in found}


def test_a_healthy_run_has_no_alarm():
  assert not alarms([CALM] * 20) and not alarms([{}] * 9)


@pytest.mark.parametrize("metric, value", [
  ("entropy", 0.005), ("entropy", 0.09), ("entropy", 3.0), ("response_tokens", 20.0), ("response_tokens", 900.0),
  ("searches", 0.1),
])  # fmt: skip
def test_what_leaves_its_range_is_compared_with_the_first_steps(metric, value):
  change = CALM | {metric: value}
  assert list(alarms([CALM] * 5 + [change])) == [metric]
  assert not alarms([CALM, change])  # too early to know what is normal
  assert not alarms([row | dict(sequences=8.0) for row in [CALM] * 5 + [change]])  # fine-tuning on demonstrations


def test_an_alarm_says_what_moved_since_when_and_what_to_try():
  alarm = alarms([CALM] * 6 + [CALM | dict(entropy=0.05)] * 3)["entropy"]
  assert (alarm.since, alarm.step, alarm.start, alarm.value) == (7, 9, 0.5, 0.05)
  assert "entropy went from 0.5 to 0.05, out of its healthy range since step 7 (at least 0.2 times" in alarm.text
  assert "config.loss.clip_high" in alarm.text
  assert not alarms([CALM] * 6 + [CALM | dict(entropy=0.05)] * 3 + [CALM])  # it is over
  back = alarms([CALM] * 6 + [CALM | dict(entropy=0.05), CALM, CALM | dict(entropy=0.05)])
  assert back["entropy"].since == 9  # of the steps in a row


# Runs of real models (docs/real_model.md) and of the quickstart, by the metrics that detectors read, step by step.
RUNS = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "detected_runs.json").read_text())
# ARENA's analysis died where its absence was paid, LEAR's evidence shrank to the answer, which its reward pays, and the
# quickstart collapsed where its rate was too high.
MOVED = {
  "ARENA on a GPU, continued": ("unearned/no_reasoning", 13), "LEAR": ("unearned/bare_answer", 20),
  "quickstart, collapsed": ("old_kl", 3), "quickstart, 16 replies a step, five times the rate": ("old_kl", 2),
}  # fmt: skip


@pytest.mark.parametrize("run", RUNS)
def test_recorded_runs_have_an_alarm_where_the_thought_died_and_no_other(run):
  watch, first = detectors.Watch(), []
  for step, values in enumerate(zip(*RUNS[run].values()), 1):
    first = first or [(alarm.metric, alarm.step) for alarm in watch.see(dict(zip(RUNS[run], values), step=step))]
  assert MOVED[run] in first if run in MOVED else not first


def test_a_collapse_in_the_first_steps_does_not_become_the_start():
  broken = lambda share: CALM | dict(broken_tags=share)
  alarm = alarms([broken(share) for share in (0.03, 0.0, 0.6, 0.8, 0.7, 0.7, 0.6, 0.4)])["broken_tags"]
  assert (alarm.since, alarm.start) == (3, 0.03)


def test_fewer_replies_answer_before_the_reward_falls():
  """A slow collapse under F1, by its share of answers; and a healthy run of eight replies a step, of which chance
  leaves one to three without an answer."""
  noise = lambda p, replies: (p * (1 - p) / (replies - 1)) ** 0.5
  answered = lambda shares, n: [CALM | {"answered": p, "noise/answered": noise(p, n)} for p in shares]
  alarm = alarms(answered((1, 1, 1, 0.94, 1, 0.75, 0.5, 0.44), 16))["answered"]
  assert alarm.since == 7 and "no_answer_penalty" in alarm.text
  assert not alarms(answered((1, 1, 1, 1, 1, 0.62, 1, 0.75, 1, 0.62, 0.88), 8))


def test_a_small_number_may_grow_by_a_factor_and_a_large_one_by_a_rise():
  """Entropy of queries is out of its range beyond three times its start and .3 nats above it."""
  queries = lambda start, later: [CALM | {"entropy/query": start}] * 5 + [CALM | {"entropy/query": later}] * 2
  assert not alarms(queries(0.01, 0.3)) and not alarms(queries(0.2, 0.5))
  assert alarms(queries(0.01, 0.4)) and alarms(queries(0.2, 0.7))
  assert not alarms(queries(0.01, 0.4)[:-1])  # it holds for two steps


def test_what_chance_moves_is_healthy():
  """A rise counts if it is three standard errors or more: that of one reply of eight is one standard error."""
  rows = lambda noise: [CALM] * 5 + [CALM | {"entropy": 2.0, "noise/entropy": noise}]
  assert not alarms(rows(0.51)) and alarms(rows(0.5))
  fall = [CALM] * 5 + [CALM | {"searches": 0.3, "noise/searches": 0.3}]
  assert alarms(fall) and not alarms([*fall[:5], fall[5] | {"noise/searches": 0.41}])


def test_a_rise_that_lasts_is_no_chance():
  """Each step is 1.7 standard errors from the start, and the mean of four steps 3.3."""
  calm, noisy = CALM | {"noise/entropy": 0.0}, CALM | {"entropy": 2.0, "noise/entropy": 0.9}
  assert not alarms([calm] * 5 + [noisy] * 3)
  alarm = alarms([calm] * 5 + [noisy] * 4)["entropy"]
  assert (alarm.since, alarm.step, alarm.value) == (9, 9, 2.0)
  (found,) = alarms([calm] * 5 + [calm | {"entropy": 7.0, "noise/entropy": 3.0}] * 4 + [calm]).values()
  assert found.value == 5.375  # the last step is calm, the mean of four is not


def test_a_bound_holds_from_the_first_step():
  """Right actions whose likelihood falls by a tenth: .42 and .57 of them in the first steps of a run that collapsed."""
  alarm = alarms([CALM | dict(fallen_tokens=share) for share in (0.423, 0.571)])["fallen_tokens"]
  says = "fallen_tokens is 0.571, out of its healthy range since step 1 (at m"
  assert alarm.since == 1 and alarm.text.startswith(says)


def test_steps_that_train_no_policy_do_not_count():
  """As while only the critic learns, while a draw finds no group with a spread, or while no episode has a score."""
  critic = {name: value for name, value in CALM.items() if name != "entropy"}
  nothing = [critic] * 4 + [dict(CALM, **{"groups/trained": 0.0}), CALM | dict(episodes=8, unscorable=8)]
  low = CALM | dict(entropy=0.001)
  found = alarms([*nothing, *[CALM] * 5, low, *nothing, low])
  assert list(found) == ["entropy"] and found["entropy"].since == 12
  assert not alarms([*nothing, *[CALM] * 5, *[one | dict(searches=0.0) for one in nothing]])


def test_a_resumed_run_goes_on_as_the_whole_one():
  rng, watch = np.random.default_rng(0), detectors.Watch()
  rows = [dict(step=0, **{"evaluation/em": 0.2})]
  moved = lambda: {name: rng.choice([0.1, 1.0, 10.0]) * value for name, value in CALM.items()}
  rows += [dict(step=n, **moved(), kl=None) for n in range(1, 40)]
  whole = [watch.see(row) for row in rows]
  assert sum(map(len, whole)) > 9
  for step in range(1, 40):
    assert detectors.Watch(rows[:step]).see(rows[step]) == whole[step]
