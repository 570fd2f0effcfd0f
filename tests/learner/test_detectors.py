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


@pytest.mark.parametrize(
  "change, metric",
  [
    (dict(entropy=0.005), "entropy"),
    (dict(entropy=0.09), "entropy"),
    (dict(entropy=3.0), "entropy"),
    (dict(response_tokens=20.0), "response_tokens"),
    (dict(response_tokens=900.0), "response_tokens"),
    (dict(searches=0.1), "searches"),
  ],
)
def test_what_leaves_its_range_is_compared_with_the_first_steps(change, metric):
  assert list(alarms([CALM] * 5 + [CALM | change])) == [metric]
  assert not alarms([CALM] * 4 + [CALM | change])  # too early to know what is normal


def test_an_alarm_says_what_moved_since_when_and_what_to_try():
  alarm = alarms([CALM] * 6 + [CALM | dict(entropy=0.05)] * 3)["entropy"]
  assert (alarm.since, alarm.step, alarm.start, alarm.value) == (7, 9, 0.5, 0.05)
  assert "entropy went from 0.5 to 0.05, out of its healthy range since step 7 (at least 0.2 times" in alarm.text
  assert "config.loss.clip_high" in alarm.text
  assert not alarms([CALM] * 6 + [CALM | dict(entropy=0.05)] * 3 + [CALM])  # it is over
  back = alarms([CALM] * 6 + [CALM | dict(entropy=0.05), CALM, CALM | dict(entropy=0.05)])
  assert back["entropy"].since == 9  # of the steps in a row


def test_a_trick_that_spreads_is_told_early():
  """ARENA's analysis died in a real run (docs/real_model.md): its shares, step by step, and those of the run before."""
  died = "0.008 0.0 0.002 0.004 0.004 0.01 0.002 0.004 0.01 0.043 0.068 0.113 0.25 0.33 0.391 0.531 0.809"
  lived = "0.006 0.008 0.012 0.006 0.004 0.006 0.004 0.008 0.012 0.033 0.008 0.006 0.008 0.014 0.021"
  falls = "0.459 0.482 0.447 0.463 0.408 0.434 0.402 0.445 0.484 0.516 0.533 0.508 0.441 0.4 0.463"
  run = lambda **shares: [
    CALM | {f"unearned/{name}": float(value) for name, value in zip(shares, values)}
    for values in zip(*(text.split() for text in shares.values()))
  ]
  assert not alarms(run(no_reasoning=died)[:12])
  alarm = alarms(run(no_reasoning=died)[:13])["unearned/no_reasoning"]
  assert alarm.text.startswith("unearned/no_reasoning went from 0.004 to 0.25")
  assert not any(alarms(run(no_reasoning=lived, shape_alone=falls)[:step]) for step in range(1, 16))


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
  rows += [
    dict(step=n, **{m: rng.choice([0.1, 1.0, 10.0]) * v for m, v in CALM.items()}, kl=None) for n in range(1, 40)
  ]
  whole = [watch.see(row) for row in rows]
  assert sum(map(len, whole)) > 9
  for step in range(1, 40):
    assert detectors.Watch(rows[:step]).see(rows[step]) == whole[step]
