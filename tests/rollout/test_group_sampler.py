"""The groups of a step, with a rollout that records the questions it receives."""

import contextlib
import json

import pytest
from refusals import refused

from ragrl_jax import structs
from ragrl_jax.rollout import group_sampler
from ragrl_jax.rollout.dispatch import Work
from ragrl_jax.rollout.timings import Timings

GROUP, PROMPTS, QUESTIONS = 2, 3, 7
EXAMPLES = [structs.Example(f"q{i}", f"Question {i}?", ("x",)) for i in range(QUESTIONS)]
draw = lambda cursor, count: [(index, index * 3 % QUESTIONS) for index in range(cursor, cursor + count)]


class Rollout:
  """Plays at once. `tape` holds the step and prompts of every draw. An episode names its prompt and sample."""

  def __init__(self, version=0, broken=(), unjudged=()):
    self.version, self.broken, self.unjudged, self.tape, self.report = version, broken, unjudged, [], Timings()
    self.open = False

  @contextlib.contextmanager
  def session(self):
    assert not self.open
    self.open, self.report = True, Timings()
    try:
      yield self
    finally:
      self.open = False

  def start(self, requests, *, step):
    self.tape.append((step, sorted({r.prompt_index for r in requests})))
    assert [(r.prompt_index, r.sample) for r in requests] == [(i, g) for i in self.tape[-1][1] for g in range(GROUP)]
    return requests

  def finish(self, requests, work=None):
    assert self.open
    if work is not None:
      work.advance()
    played = Timings(seconds=1.0, wait_s=0.25, episodes=len(requests))
    played.engine.sampled_tokens = 10
    self.report.add(played)
    return [self.episode(r) for r in requests]

  def episode(self, request):
    failed = (request.prompt_index, request.sample) in self.broken
    said = structs.Segment(structs.MODEL, (5,), "!", (-0.5,), "eos")
    facts = {structs.NO_VERDICT: "status 401"} if (request.prompt_index, request.sample) in self.unjudged else {}
    numbers = dict(prompt_index=request.prompt_index, sample=request.sample, example_id=request.example.id)
    ended = dict(failure="down", ended="failed") if failed else dict(ended="eos")
    segments = (structs.Segment(structs.ENVIRONMENT, (1,), "?"), said)
    return structs.Episode(segments, version=self.version, facts=facts, **ended, **numbers)


def spread_in(*prompts, unknown=()):
  """A measure by which the samples of these prompts differ. The (prompt, sample) pairs in `unknown` have no value."""

  def measure(examples, episodes, step):
    assert [e.id for e in examples] == [e.example_id for e in episodes]
    at = [(e.prompt_index, e.sample) for e in episodes]
    return [None if (i, g) in unknown else float(i in prompts and g == 0) for i, g in at]

  return measure


def make(measure=None, rollout=None, share=0.5, ahead=False, examples=EXAMPLES, **settings):
  rollout, rule = rollout or Rollout(), group_sampler.Filter(**({"metric": "outcome"} | settings))
  how = dict(prompts_per_step=PROMPTS, group_size=GROUP, filter=rule, max_failed_share=share, ahead=ahead)
  return rollout, group_sampler.GroupSampler(rollout, examples, draw, measure, **how)


def prompts(supplied):
  assert [e.sample for e in supplied.episodes] == list(range(GROUP)) * len(supplied.groups)
  return [group[0].prompt_index for group in supplied.groups]


def counts(*, staleness=0, **of_groups):
  """The metrics of a step: numbers of groups, by their names."""
  return {f"groups/{name}": number for name, number in of_groups.items()} | dict(staleness=staleness)


def test_without_a_filter_a_step_is_one_draw_and_nothing_is_measured():
  rollout, sampler = make(metric="none")
  first = sampler.take(1)
  rollout.version = 1
  second = sampler.take(2)
  assert prompts(first) == [0, 1, 2] and prompts(second) == [3, 4, 5] and sampler.cursor == 6
  assert rollout.tape == [(1, [0, 1, 2]), (2, [3, 4, 5])]
  assert first.metrics == counts(draws=1, drawn=3, discarded_share=0, surplus=0, missing=0, trained=3, stale=0)


def test_groups_with_a_spread_are_kept_in_the_order_drawn_and_the_surplus_is_discarded():
  # Two of prompts 0 to 2 have a spread. One is missing: at a share of 3/4, two are drawn for it, and both have one.
  rollout, sampler = make(spread_in(1, 2, 3, 4, 5, 6, 8))
  found = sampler.take(1)
  assert prompts(found) == [1, 2, 3] and rollout.tape == [(1, [0, 1, 2]), (1, [3, 4])]
  # of 10 episodes, the first samples of four prompts have outcome 1
  kept = counts(draws=2, drawn=5, discarded_share=1 / 5, surplus=1, missing=0, trained=3, stale=0)
  assert found.metrics == kept | {"groups/metric": pytest.approx(4 / 10)}
  rollout.version = 1
  # At a share of 5/6, four are drawn for three: 5, 6, 7, 8. All except 7 have a spread.
  assert prompts(sampler.take(2)) == [5, 6, 8] and sampler.cursor == 9
  report = sampler.reported()
  assert (report.seconds, report.wait_s, report.episodes, report.engine.sampled_tokens) == (3.0, 0.75, 18, 30)
  assert sampler.reported().seconds == 0


def test_kept_surplus_comes_first_in_the_next_step_and_is_counted_as_stale():
  rollout, sampler = make(spread_in(1, 2, 3, 4, 5, 6, 7, 8), surplus="keep")
  assert prompts(sampler.take(1)) == [1, 2, 3]
  rollout.version = 1
  # 4 is left over. Two are missing: at a share of 5/6, three are drawn for them.
  second = sampler.take(2)
  assert prompts(second) == [4, 5, 6] and rollout.tape[-1] == (2, [5, 6, 7])
  assert (second.metrics["groups/stale"], second.metrics["staleness"]) == (1, pytest.approx(1 / 3))
  assert [e.version for e in second.episodes] == [0, 0, 1, 1, 1, 1]
  rollout.version = 2
  assert prompts(sampler.take(3))[0] == 7
  # A stage that begins with step 2 pays the samples of prompt 4 alike.
  stage = lambda asked, played, step: spread_in(*{1, 2, 3, 4, 5, 6, 7} - ({4} if step > 1 else set()))(
    asked, played, step
  )
  rollout, sampler = make(stage, surplus="keep")
  assert prompts(sampler.take(1)) == [1, 2, 3] and prompts(sampler.take(2)) == [5, 6, 7]


def test_a_draw_asks_for_what_is_missing_over_the_share_that_was_kept():
  # By hand, with three groups per step. The share is (1 + kept) / (1 + drawn) over this step and the one before.
  #   step 1: nothing is known, so 3 for 3. Prompt 0 is kept: 2 are missing, 2 / (2/4) = 4. 3 and 5 are kept.
  #   step 2: 3 of 7 were kept: 3 / (4/8) = 6. 8 and 9 are kept: 1 is missing, 1 / ((1+3+2)/(1+7+6)) = 2.33, so 3.
  #           Of 13 to 15 none is kept: 1 / ((1+3+2)/(1+7+9)) = 2.83, so 3. Of 16 to 18 all are.
  #   step 3: 5 of 12 were kept in step 2, and step 1 no longer counts: 3 / (6/13) = 6.5, so 7.
  rollout, sampler = make(spread_in(0, 3, 5, 8, 9, 16, 17, 18, *range(19, 30)), max_draws=8)
  for step in (1, 2, 3):
    rollout.version = step - 1
    assert sampler.take(step).metrics["groups/missing"] == 0
  drawn = [(step, prompts[0], len(prompts)) for step, prompts in rollout.tape]
  assert drawn == [(1, 0, 3), (1, 3, 4), (2, 7, 6), (2, 13, 3), (2, 16, 3), (3, 19, 7)]


def test_a_draw_is_at_most_what_the_step_may_still_draw_and_at_least_one_prompt():
  rollout, sampler = make(spread_in(), max_draws=4)
  sampler.take(1)
  assert [len(drawn) for _, drawn in rollout.tape] == [3, 9]  # 3 / (1/4) = 12, but only 9 may still be drawn
  # All were kept. Besides the surplus of two one group is missing, so one is drawn.
  rollout, sampler = make(spread_in(*range(1, 20)), surplus="keep")
  sampler.restore(dict(cursor=5, surplus=[], ahead=None, coming=None, seen=[4, 9]))
  assert prompts(sampler.take(1)) == [5, 6, 7] and rollout.tape == [(1, [5, 6, 7, 8, 9, 10])]  # 3 / (5/10)
  rollout.version = 1
  assert prompts(sampler.take(2)) == [8, 9, 10] and len(rollout.tape) == 1  # the surplus suffices
  rollout.version = 2
  assert prompts(sampler.take(3)) == [11, 12, 13] and sampler.cursor == 14


def test_few_failures_in_a_small_draw_do_not_stop_the_run():
  # The second draw, for one missing group, has prompts 3 and 4. Half of it fails: 2 of the step's 10 episodes.
  broken = [(3, 0), (3, 1)]
  rollout, sampler = make(spread_in(1, 2, 4, unknown=broken), rollout=Rollout(broken=broken), share=0.4)
  assert prompts(sampler.take(1)) == [1, 2, 4] and rollout.tape[-1] == (1, [3, 4])


def test_draws_are_limited_and_the_step_continues_with_fewer_groups():
  rollout, sampler = make(spread_in(4), max_draws=3)
  found = sampler.take(1)
  assert prompts(found) == [4] and len(rollout.tape) == 2 and sampler.cursor == 9
  assert (found.metrics["groups/missing"], found.metrics["groups/trained"]) == (2, 1)
  found = make(spread_in(), max_draws=2)[1].take(1)  # no spread anywhere
  assert found.episodes == [] and found.metrics["groups/trained"] == 0 and found.metrics["groups/discarded_share"] == 1


def test_unscored_episodes_neither_make_nor_hide_a_spread():
  # Prompt 0 would have a spread if its first sample were known. Of the five known values two are 1.
  _, sampler = make(spread_in(0, 1, 2, unknown=[(0, 0)]), max_draws=1)
  found = sampler.take(1)
  assert prompts(found) == [1, 2] and found.metrics["groups/metric"] == pytest.approx(2 / 5)
  # All values are unknown, so there is no mean.
  _, sampler = make(spread_in(0, unknown=[(i, g) for i in range(3) for g in range(2)]), max_draws=1)
  assert "groups/metric" not in sampler.take(1).metrics


def test_the_tolerance_decides_what_differs():
  slightly = lambda examples, episodes, step: [0.7 + 1e-3 * step * e.sample for e in episodes]  # of step 1
  assert len(make(slightly, max_draws=1)[1].take(1).groups) == 3
  assert make(slightly, max_draws=1, tolerance=0.01)[1].take(1).groups == ()


def test_a_restored_sampler_continues_as_if_never_stopped():
  measure = spread_in(1, 2, 4, 5, 6, 7, 8, 10)
  rollout, whole = make(measure, surplus="keep")
  whole.take(1)
  saved = json.loads(json.dumps(whole.saved()))
  again, resumed = make(measure, surplus="keep", rollout=Rollout(version=1))
  resumed.restore(saved)
  rollout.version = 1
  assert resumed.take(2) == whole.take(2) and resumed.saved() == whole.saved() and again.tape == rollout.tape[-1:]


def test_groups_sampled_ahead_are_the_next_steps_and_other_work_is_done_meanwhile():
  done = []

  def pieces():
    for piece in range(5):
      done.append(piece)
      yield
    return "learnt"

  rollout, sampler = make(spread_in(0, 1, 2, 3, 4, 6), rollout=Rollout(version=3), ahead=True)
  now = sampler.take(4)
  assert prompts(now) == [0, 1, 2] and now.metrics["staleness"] == 0 and sampler.next.playing and rollout.open
  work = Work(pieces())
  sampler.sample_next(5, work)
  assert not sampler.next.playing and not rollout.open and sampler.next.groups
  assert done == [0, 1]  # one piece of work beside each of the two draws
  assert work.finish() == work.finish() == "learnt" and done == [0, 1, 2, 3, 4] and not work.advance()
  saved = json.loads(json.dumps(sampler.saved()))
  found = sampler.take(5)  # episodes started now would be two steps old, so none are started
  assert prompts(found) == [3, 4, 6] and rollout.tape == [(4, [0, 1, 2]), (5, [3, 4, 5]), (5, [6, 7])]
  assert sampler.next == group_sampler.NextStep()
  assert (found.metrics["staleness"], found.metrics["groups/stale"], found.metrics["groups/draws"]) == (1, 3, 2)
  assert sampler.saved()["ahead"] is None

  # A resumed run trains on the same groups and draws from the same prompt on.
  again, resumed = make(spread_in(8, 9, 11), rollout=Rollout(version=5))
  resumed.restore(saved)
  assert resumed.take(5) == found and again.tape == [] and prompts(resumed.take(6)) == [8, 9, 11]
  assert again.tape == [(6, [8, 9, 10, 11, 12])]  # step 5 kept 3 of 5: 3 / (4/6) = 4.5
  # A step later they would be two steps old.
  resumed.restore(saved)
  refused("step 6 would train on episodes that weights 2 steps old", resumed.take, 6)


def test_sampling_ahead_can_find_no_group():
  rollout, sampler = make(spread_in(), max_draws=1, ahead=True)
  sampler.take(1)
  sampler.sample_next(2, Work(iter(())))
  sampler.restore(json.loads(json.dumps(sampler.saved())))
  assert sampler.take(2).groups == () and len(rollout.tape) == 2


def test_prompts_of_a_draw_that_a_failed_tool_cut_short_are_drawn_again():
  measure = spread_in(0, 1, 3, 5, 6, 8)

  def played(rollout):
    _, sampler = make(measure, rollout=rollout, ahead=True)
    assert prompts(sampler.take(1)) == [0, 1, 6]  # 3 to 5 are the next step's from the start
    return sampler

  rollout = Rollout()
  whole = played(rollout)
  whole.sample_next(2, Work(iter(())))
  assert rollout.tape == [(1, [0, 1, 2]), (2, [3, 4, 5]), (1, [6, 7]), (2, [8, 9])]

  for broken in ([3, 4, 5], [8, 9]):  # in the first draw; in the second, when the first one had moved the cursor
    down = Rollout(broken=[(i, g) for i in broken for g in range(GROUP)])
    sampler = played(down)
    sampler._max_failed_share = 0.3
    with pytest.raises(group_sampler.TooManyFailures):
      sampler.sample_next(2, Work(iter(())))
    assert sampler.next == group_sampler.NextStep((3, 3)) and not down.open
    again, resumed = make(measure)
    resumed.restore(json.loads(json.dumps(sampler.saved())))
    assert prompts(resumed.take(2)) == [3, 5, 8] and again.tape == [(2, [3, 4, 5]), (2, [8, 9])]
    assert resumed.saved() == whole.saved() | dict(ahead=None)


@pytest.mark.parametrize("down", [False, True])
def test_what_older_weights_will_not_train_on_is_thrown_away(down):
  """Whether the next step's groups were sampled or a tool failed meanwhile, the same questions come next."""
  rollout = Rollout()
  _, sampler = make(spread_in(0, 1, 3, 6, 7, 8, 9), rollout=rollout, surplus="keep", ahead=True)
  before = sampler.saved()
  assert prompts(sampler.take(1)) == [0, 1, 6] and sampler.saved()["surplus"]  # 3 to 5 and 7 are the next step's
  rollout.broken = {(i, g) for i in (8, 9) for g in range(GROUP)} if down else set()
  sampler._max_failed_share = 0.1
  with pytest.raises(group_sampler.TooManyFailures) if down else contextlib.nullcontext():
    sampler.sample_next(2, Work(iter(())))
  assert rollout.tape[-1] == (2, [8, 9]) and sampler.cursor == (8 if down else 10)
  sampler.forget(before)
  assert sampler.saved() == dict(cursor=8, surplus=[], ahead=None, coming=None, seen=[0, 0])
  rollout.version, rollout.broken = 1, set()
  assert prompts(sampler.take(2))[0] == 8


def test_sampling_under_way_is_closed_once():
  rollout, sampler = make(spread_in(*range(9)), ahead=True)
  sampler.take(1)
  sampler.close()
  assert not rollout.open and not sampler.next.playing and sampler.reported().seconds == 1.0
  sampler.close()


def test_groups_of_other_questions_are_not_restored():
  _, sampler = make(spread_in(1, 2, 4, 5), surplus="keep")
  sampler.cursor = 1  # 1 to 3, then 4 and 5
  sampler.take(1)
  saved = sampler.saved()
  assert len(saved["surplus"]) == 1
  _, other = make(examples=EXAMPLES[::-1])
  refused(r"prompt 5 for example 'q1'.*is example 'q5'.*config.data.train", other.restore, saved)


def test_groups_that_are_too_old_are_never_trained_on():
  rollout, sampler = make(spread_in(1, 2, 3, 4, 6, 7, 8), surplus="keep")
  sampler.take(1)
  rollout.version = 5
  refused("weights 5 steps old.*at most 1", sampler.take, 6)


def test_a_tool_that_is_down_stops_the_run_and_a_single_failure_does_not():
  broken = [(0, 0), (1, 0), (1, 1)]
  _, sampler = make(spread_in(0, 2, unknown=broken), rollout=Rollout(broken=broken), max_draws=1)
  assert prompts(sampler.take(1)) == [2]
  rollout, sampler = make(spread_in(), rollout=Rollout(broken=broken), share=0.4)
  with pytest.raises(group_sampler.TooManyFailures, match="3 of 6 episodes failed.*max_failed_share=0.4.*said: down"):
    sampler.take(1)
  assert len(rollout.tape) == 1  # at once, not after max_draws


def test_a_judge_that_gives_no_verdicts_stops_the_run():
  """Failed and unreadable verdicts both count as the judge's failures, not the retriever's."""
  pairs = [(0, 0), (1, 0), (1, 1), (2, 0)]
  for broken in ([], pairs):
    _, sampler = make(spread_in(0, 1, 2), rollout=Rollout(broken=broken, unjudged=pairs), share=0.0)
    why = r"4 of 6 episodes have no verdict, more than config.judge.max_failed_share=0.5.*status 401"
    refused(why, sampler.take, 1, error=group_sampler.TooManyFailures)
    _, sampler = make(spread_in(0, 1, 2), rollout=Rollout(broken=broken[:3], unjudged=pairs[:3]), share=0.0)
    sampler.take(1)
