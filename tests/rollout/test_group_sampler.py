"""Where a step's groups come from, with a rollout that only remembers what it was asked."""

import json

import pytest

from ragrl_jax import structs
from ragrl_jax.rollout import groups as groups_lib
from ragrl_jax.rollout.dispatch import Work
from ragrl_jax.rollout.timings import Timings

GROUP, PROMPTS, QUESTIONS = 2, 3, 7
EXAMPLES = [structs.Example(f"q{i}", f"Question {i}?", ("x",)) for i in range(QUESTIONS)]


def draw(cursor, count):
  return [(index, index * 3 % QUESTIONS) for index in range(cursor, cursor + count)]


class Rollout:
  """Plays at once; `tape` holds every run's step and prompts. An episode says of itself who it is."""

  def __init__(self, version=0, broken=(), unjudged=()):
    self.version, self.broken, self.unjudged, self.tape, self.report = version, broken, unjudged, [], Timings()

  def run(self, requests, *, step, beside=None):
    if beside is not None:
      beside.advance()
    self.tape.append((step, sorted({r.prompt_index for r in requests})))
    assert [(r.prompt_index, r.sample) for r in requests] == [(i, g) for i in self.tape[-1][1] for g in range(GROUP)]
    self.report = Timings(seconds=1.0, wait_s=0.25, episodes=len(requests))
    self.report.engine.sampled_tokens = 10
    return [self.episode(r) for r in requests]

  def episode(self, request):
    failed = (request.prompt_index, request.sample) in self.broken
    said = structs.Segment(structs.MODEL, (5,), "!", (-0.5,), "eos")
    facts = {structs.NO_VERDICT: "status 401"} if (request.prompt_index, request.sample) in self.unjudged else {}
    return structs.Episode(
      (structs.Segment(structs.ENVIRONMENT, (1,), "?"), said),
      version=self.version,
      facts=facts,
      failure="down" * failed,
      ended="failed" if failed else "eos",
      prompt_index=request.prompt_index,
      sample=request.sample,
      example_id=request.example.id,
    )


def spread_in(*prompts, unknown=()):
  """A measure in which the samples of these prompts differ, and (prompt, sample) pairs are unknown."""

  def measure(examples, episodes, step):
    assert [e.id for e in examples] == [e.example_id for e in episodes]
    return [
      None if (e.prompt_index, e.sample) in unknown else float(e.prompt_index in prompts and e.sample == 0)
      for e in episodes
    ]

  return measure


def make(measure=None, rollout=None, share=0.5, **settings):
  rule = groups_lib.Filter(**({"metric": "outcome"} | settings))
  rollout = rollout or Rollout()
  return rollout, groups_lib.GroupSampler(
    rollout, EXAMPLES, draw, measure, prompts_per_step=PROMPTS, group_size=GROUP, filter=rule, max_failed_share=share
  )


def prompts(supplied):
  assert [e.sample for e in supplied.episodes] == list(range(GROUP)) * len(supplied.groups)
  return [group[0].prompt_index for group in supplied.groups]


def test_without_a_filter_a_step_is_one_draw_and_nothing_is_measured():
  rollout, supply = make(metric="none")
  first = supply.take(1)
  rollout.version = 1
  second = supply.take(2)
  assert prompts(first) == [0, 1, 2] and prompts(second) == [3, 4, 5] and supply.cursor == 6
  assert rollout.tape == [(1, [0, 1, 2]), (2, [3, 4, 5])]
  assert first.metrics == {
    "groups/draws": 1,
    "groups/drawn": 3,
    "groups/discarded_share": 0,
    "groups/surplus": 0,
    "groups/missing": 0,
    "groups/trained": 3,
    "groups/stale": 0,
    "staleness": 0,
  }


def test_groups_with_a_spread_are_kept_in_the_order_drawn_and_the_surplus_is_discarded():
  # Two draws: of prompts 0 to 5, four have a spread; the step needs three, and the next one begins at prompt 6.
  rollout, supply = make(spread_in(1, 2, 4, 5, 6, 7, 8))
  found = supply.take(1)
  assert prompts(found) == [1, 2, 4] and rollout.tape == [(1, [0, 1, 2]), (1, [3, 4, 5])]
  # Of 12 episodes, the first samples of four prompts have outcome 1.
  assert found.metrics == {
    "groups/draws": 2,
    "groups/drawn": 6,
    "groups/discarded_share": 2 / 6,
    "groups/surplus": 1,
    "groups/missing": 0,
    "groups/trained": 3,
    "groups/stale": 0,
    "staleness": 0,
    "groups/metric": pytest.approx(4 / 12),
  }
  rollout.version = 1
  assert prompts(supply.take(2)) == [6, 7, 8] and supply.cursor == 9
  report = supply.reported()
  assert (report.seconds, report.wait_s, report.episodes, report.engine.sampled_tokens) == (3.0, 0.75, 18, 30)
  assert supply.reported().seconds == 0


def test_kept_surplus_comes_first_in_the_next_step_and_is_counted_as_stale():
  rollout, supply = make(spread_in(1, 2, 4, 5, 6, 7, 8), surplus="keep")
  assert prompts(supply.take(1)) == [1, 2, 4]
  rollout.version = 1
  second = supply.take(2)
  assert prompts(second) == [5, 6, 7]
  assert (second.metrics["groups/stale"], second.metrics["staleness"]) == (1, pytest.approx(1 / 3))
  assert [e.version for e in second.episodes] == [0, 0, 1, 1, 1, 1]
  rollout.version = 2
  assert prompts(supply.take(3))[0] == 8


def test_draws_are_bounded_and_the_step_goes_on_with_what_there_is():
  rollout, supply = make(spread_in(4), max_draws=3)
  found = supply.take(1)
  assert prompts(found) == [4] and len(rollout.tape) == 3 and supply.cursor == 9
  assert (found.metrics["groups/missing"], found.metrics["groups/trained"]) == (2, 1)


def test_nothing_with_a_spread_is_no_groups_at_all():
  _, supply = make(spread_in(), max_draws=2)
  found = supply.take(1)
  assert found.episodes == [] and found.metrics["groups/trained"] == 0 and found.metrics["groups/discarded_share"] == 1


def test_who_cannot_be_scored_makes_no_spread_and_takes_none_away():
  # Prompt 0 would have a spread, were its first sample known. Of the five known values two are 1.
  _, supply = make(spread_in(0, 1, 2, unknown=[(0, 0)]), max_draws=1)
  found = supply.take(1)
  assert prompts(found) == [1, 2] and found.metrics["groups/metric"] == pytest.approx(2 / 5)
  # All unknown: nothing to take a mean of.
  _, supply = make(spread_in(0, unknown=[(i, g) for i in range(3) for g in range(2)]), max_draws=1)
  assert "groups/metric" not in supply.take(1).metrics


def test_the_tolerance_decides_what_differs():
  slightly = lambda examples, episodes, step: [0.7 + 1e-3 * e.sample for e in episodes]
  assert len(make(slightly, max_draws=1)[1].take(1).groups) == 3
  assert make(slightly, max_draws=1, tolerance=0.01)[1].take(1).groups == ()


def test_the_measure_is_told_the_step():
  seen = []
  measure = lambda examples, episodes, step: seen.append(step) or spread_in(*range(9))(examples, episodes, step)
  _, supply = make(measure, rollout=Rollout(version=4))
  supply.take(5)
  assert seen == [5]


def test_a_resumed_supply_goes_on_as_if_never_stopped():
  measure = spread_in(1, 2, 4, 5, 6, 7, 8, 10)
  rollout, whole = make(measure, surplus="keep")
  whole.take(1)
  saved = json.loads(json.dumps(whole.saved()))
  again, resumed = make(measure, surplus="keep", rollout=Rollout(version=1))
  resumed.restore(saved)
  rollout.version = 1
  assert resumed.take(2) == whole.take(2) and resumed.saved() == whole.saved() and again.tape == rollout.tape[-1:]


def test_what_was_sampled_ahead_is_the_next_steps_beside_other_work():
  done = []

  def pieces():
    for piece in range(5):
      done.append(piece)
      yield
    return "learnt"

  rollout, supply = make(spread_in(1, 2, 4), rollout=Rollout(version=3))
  work = Work(pieces())
  supply.sample_ahead(5, work)
  assert done == [0, 1]  # a piece beside each of the two draws
  assert work.finish() == work.finish() == "learnt" and done == [0, 1, 2, 3, 4] and not work.advance()
  saved = json.loads(json.dumps(supply.saved()))
  found = supply.take(5)
  assert prompts(found) == [1, 2, 4] and rollout.tape == [(5, [0, 1, 2]), (5, [3, 4, 5])]
  assert (found.metrics["staleness"], found.metrics["groups/stale"], found.metrics["groups/draws"]) == (1, 3, 2)
  assert supply.saved()["ahead"] is None

  # A resumed run trains on the same groups, and draws on from the same prompt.
  again, resumed = make(spread_in(6, 7, 8), rollout=Rollout(version=5))
  resumed.restore(saved)
  assert resumed.take(5) == found and again.tape == []
  assert prompts(resumed.take(6)) == [6, 7, 8]
  # Taken a step late it would be two steps old.
  resumed.restore(saved)
  with pytest.raises(ValueError, match="step 6 would train on episodes that weights 2 steps old"):
    resumed.take(6)


def test_no_group_at_all_can_be_sampled_ahead_too():
  rollout, supply = make(spread_in(), max_draws=1)
  supply.sample_ahead(1, Work(iter(())))
  supply.restore(json.loads(json.dumps(supply.saved())))
  assert supply.take(1).groups == () and len(rollout.tape) == 1


def test_groups_of_other_questions_are_not_restored():
  rollout, supply = make(spread_in(1, 2, 4, 5), surplus="keep")
  supply.take(1)
  saved = supply.saved()
  assert len(saved["surplus"]) == 1
  other = groups_lib.GroupSampler(
    rollout,
    EXAMPLES[::-1],
    draw,
    None,
    prompts_per_step=PROMPTS,
    group_size=GROUP,
    filter=groups_lib.Filter(),
    max_failed_share=0.0,
  )
  with pytest.raises(ValueError, match=r"prompt 5 for example 'q1'.*is example 'q5'.*config.data.train"):
    other.restore(saved)


def test_what_is_too_old_is_never_trained_on():
  rollout, supply = make(spread_in(1, 2, 4, 5, 6, 7, 8), surplus="keep")
  supply.take(1)
  rollout.version = 5
  with pytest.raises(ValueError, match="weights 5 steps old.*at most 1"):
    supply.take(6)


def test_a_tool_that_is_down_stops_the_run_and_one_failure_does_not():
  broken = [(0, 0), (1, 0), (1, 1)]
  _, supply = make(spread_in(0, 2, unknown=broken), rollout=Rollout(broken=broken), max_draws=1)
  assert prompts(supply.take(1)) == [2]
  rollout, supply = make(spread_in(), rollout=Rollout(broken=broken), share=0.4)
  with pytest.raises(groups_lib.TooManyFailures, match="3 of 6 episodes failed.*max_failed_share=0.4.*said: down"):
    supply.take(1)
  assert len(rollout.tape) == 1  # at once, not after max_draws


def test_a_judge_that_gives_no_verdicts_stops_the_run():
  """Failed or only unread: an episode counts as the judge's, and not as the retriever's."""
  pairs = [(0, 0), (1, 0), (1, 1), (2, 0)]
  for broken in ([], pairs):
    _, supply = make(spread_in(0, 1, 2), rollout=Rollout(broken=broken, unjudged=pairs), share=0.0)
    why = r"4 of 6 episodes have no verdict, more than config.judge.max_failed_share=0.5.*status 401"
    with pytest.raises(groups_lib.TooManyFailures, match=why):
      supply.take(1)
    _, supply = make(spread_in(0, 1, 2), rollout=Rollout(broken=broken[:3], unjudged=pairs[:3]), share=0.0)
    supply.take(1)
