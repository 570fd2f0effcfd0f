"""A run that collapses returns to its last healthy checkpoint, and a run that is killed meanwhile ends the same."""

import dataclasses
import itertools
import json
import pathlib
import shutil

import numpy as np
import pytest
import tiny_world
from refusals import refused

from ragrl_jax.jobs import train
from ragrl_jax.report import page
from ragrl_jax.run import detectors, prepared, rewards, rollback
from ragrl_jax.settings import Settings, fields
from ragrl_jax.store import checkpoint, episodes, jsonl, metrics, sums

EVERY = tuple({detector.metric for detector in detectors.DETECTORS})

# ---- what is decided -------------------------------------------------------------------------------------------------


def guard(folder, rows=(), *, every=5, ahead=0, **how):
  jsonl.write(folder / metrics.FILE, rows)
  settings = {"checkpoint.every": every, "rollout.ahead": ahead, "optimizer.learning_rate": 1e-3}
  settings |= {f"guard.{name}": value for name, value in (dict(rollback=2) | how).items()}
  return rollback.Guard(fields.replaced(Settings(), settings), folder)


def played(folder, sick, steps, **how):
  """The rows of steps whose detector holds in these `sick` ones, until a rollback or the end; and the last guard.

  Each guard is made from the rows before its step, as by a run that is resumed there; one that sees all says the same.
  """
  rows, whole = [], guard(folder, **how)
  for step in range(1, steps + 1):
    jsonl.write(folder / metrics.FILE, rows)
    row = dict(entropy=0.005 if step in sick else 0.5, searches=1.0)
    made = whole.see(step, row)
    again = guard(folder, rows, **how)
    assert again.see(step, row) == made
    assert (again.to, again.rate, again.spared(step)) == (whole.to, whole.rate, whole.spared(step))
    rows.append(dict(step=step, **row, **made))
    if rollback.STOPPED in made:
      break
  return rows, whole


def returns(rows):
  return {row["step"]: row[rollback.TO] for row in rows if rollback.TO in row}


@pytest.mark.parametrize("sick, how, want", [
  # Step 12 is sampled by the weights of step 11, so those of 10 sampled a healthy step.
  ({12, 13}, {}, {13: 10}),
  ({11, 12}, {}, {12: 5}),  # the weights of checkpoint 10 sampled step 11
  ({12}, {}, {}),
  ({12, 14, 16}, {}, {}),  # never two in a row
  ({12, 13, 14}, dict(rollback=4), {}), ({8, 9}, {}, {9: 5}),
  ({7, 8}, dict(ahead=1), {8: 0}),  # the weights of step 5 may have sampled step 7
  ({8, 9}, dict(ahead=1), {9: 5}), ({9, 10}, dict(every=1), {10: 7}),
  ({6, 7}, dict(every=9), {7: 0}),  # to the beginning
  ({12, 13}, dict(ignored=("entropy",)), {}), ({12, 13}, dict(rollback=0), {}),
  # After a rollback the state is that of its step, whatever held before it.
  ({12, 13, 14, 15}, {}, {13: 10, 15: 13}), ({12, 13, 16, 17}, {}, {13: 10, 17: 13}),
  ({12, 13, 21, 22}, {}, {13: 10, 22: 15}),
])  # fmt: skip
def test_the_run_returns_to_the_last_weights_that_sampled_a_healthy_step(tmp_path, sick, how, want):
  rows, made = played(tmp_path, sick, 25, **how)
  assert returns(rows) == want and made.rate == 0.5 ** len(want)
  for number, step in enumerate(want, 1):
    row = rows[step - 1]
    assert (row["rollback/number"], row["rollback/learning_rate"]) == (number, 1e-3 * 0.5**number)
    assert "entropy went from 0.5 to 0.005, out of its healthy range since step" in row["rollback/why"]
  assert sick & {row["step"] for row in rows if "warning/entropy" in row} == sick  # each is said, whatever is done


def test_rows_that_a_rollback_has_undone_do_not_count(tmp_path, monkeypatch):
  rows, _ = played(tmp_path, {12, 13, 16, 17}, 19)
  assert [row["step"] for row in rollback.lasting(rows)] == [*range(1, 11), 18, 19]
  past, file = rollback.Past(tmp_path), tmp_path / metrics.FILE
  for row in (*rows, {"step": 20, "searches": 1.0}):
    file.write_text(" " * file.stat().st_size + jsonl.line(row))  # what was read before is gone
    found = past.rows("searches")
  assert found == [{"step": step, "searches": 1.0} for step in (*range(1, 11), 18, 19, 20)]
  # One sick step before the rollback and one after it are not two in a row.
  assert returns(played(tmp_path, {10, 12, 13, 14}, 20)[0]) == {13: 10}
  sent = []  # to other hosts, which only follow the first one
  monkeypatch.setattr(rollback.hosts, "exchange", lambda value: sent.append(value) or [value])
  assert guard(tmp_path, rows).rate == 0.25 and [row["step"] for row in sent[0]] == [13, 17]


@pytest.mark.parametrize("every, keep, ahead", [*itertools.product((1, 2, 5), (1, 3), (0, 1))])
def test_the_checkpoint_to_return_to_is_always_there(tmp_path, every, keep, ahead):
  """Whatever holds when, and whenever the run was stopped and saved in between."""
  draw = np.random.default_rng(every + keep)
  for _ in range(6):
    sick = {step for step in range(6, 60) if draw.random() < 0.4}
    stops = {step for step in range(1, 60) if draw.random() < 0.2}
    watch, there = guard(tmp_path, every=every, ahead=ahead, most_rollbacks=99), [0]
    rows = []
    for step in range(1, 60):
      jsonl.write(tmp_path / metrics.FILE, rows)
      seen = watch.see(step, row := dict(entropy=0.005 if step in sick else 0.5))
      rows.append(dict(step=step, **row, **seen))
      if (to := seen.get(rollback.TO)) is not None:
        assert to in there, (step, to, there)
        there = [one for one in there if one <= to]
      if to is not None or step % every == 0 or step in stops:
        there = [*there, step]
        there = [one for one in there[:-keep] if one in watch.spared(step)] + there[-keep:]
    assert returns(rows)


def test_after_the_last_rollback_the_run_stops_and_says_where_its_healthy_weights_are(tmp_path):
  rows, made = played(tmp_path, {12, 13, 16, 17}, 30, most_rollbacks=1)
  assert returns(rows) == {13: 10} and rows[-1]["step"] == 17
  refused(r"=1 times.*checkpoints/13.* below 0.0005.*accept_changes", made.stop, rows[-1], error=rollback.Collapsed)
  made.stop({})


@pytest.mark.parametrize("purpose, change, words", [
  ("rl", dict(rollback=3), "checkpoint.every=3 with config.steps=3 saves none before the end: lower `every`"),
  ("rl", dict(ignored=("entropie",)), "no detector watches 'entropie', but .*entropy"),
  ("rl", dict(rollback=3, ignored=EVERY), "ignored=.* leaves none: set rollback to 0"),
  ("sft", dict(rollback=3), "guard.rollback=3 waits for a detector, and fine-tuning has no detectors"),
])  # fmt: skip
def test_what_cannot_return_is_refused_before_anything_is_read(world, purpose, change, words):
  config = tiny_world.config(world, variant="" if purpose == "rl" else purpose)
  config.checkpoint.every = config.steps
  config.guard.update(change)
  refused(words, prepared.prepare, config, purpose=purpose)


# ---- a run -----------------------------------------------------------------------------------------------------------

STEPS, SICK = 11, {8, 9}  # with a checkpoint every 2 steps: step 9 returns to the weights of step 6


class Killed(BaseException):
  """As of a process that ends at once: nobody saves anything."""


def planted(recipe, sick):
  """Rewards that a new model can earn, a trick in the `sick` steps, and a second stage that begins because of it."""
  made = tiny_world.collapsing(tiny_world.rewarding(recipe), {step - 1 for step in sick})
  stage = dataclasses.replace(made, weights=lambda step: {"sum": 3.0})
  began = lambda rows: any(row.get("unearned/planted") for row in rows)
  following = lambda rows: stage if began(rows) else first
  first = dataclasses.replace(made, next_recipe=following, waits_for="unearned/planted")
  return first


@pytest.fixture
def start(world, monkeypatch):
  """(workdir, settings) → the rows of the planted run, which has a checkpoint every 2 steps and keeps one."""
  recipe = prepared.recipe

  def start(workdir, settings=None, sick=SICK, steps=STEPS, until=None):
    monkeypatch.setattr(prepared, "recipe", lambda config: planted(recipe(config), sick))
    config = tiny_world.guarded(tiny_world.config(world))
    config.steps, config.checkpoint.every, config.checkpoint.keep = steps, 2, 1
    config.update_from_flattened_dict(settings or {})
    running, rows = train.train(config, workdir), []
    for row in running:
      rows.append(row)
      if row["step"] == until:
        running.close()
    return rows

  return start


def made(workdir: pathlib.Path):
  """All that a run makes which another one of the same settings must make to the bit."""
  rows = tiny_world.untimed(metrics.read_metrics(workdir))
  logged = {step: path.read_bytes() for step, path in episodes.steps(workdir).items()}
  steps = tiny_world.checkpoints(workdir)
  hosts = [json.loads((workdir / "checkpoints" / str(step) / "host.json").read_text()) for step in steps]
  return rows, logged, hosts


def same(one, other):
  tiny_world.assert_same(one, other)
  assert made(one) == made(other)
  assert (one / "model/model.safetensors").read_bytes() == (other / "model/model.safetensors").read_bytes()


@pytest.mark.long  # a run of 11 steps
def test_a_collapsed_run_goes_on_from_healthy_weights_with_other_questions_and_half_the_rate(start, tmp_path):
  rows = start(tmp_path, {"checkpoint.keep": 9})
  assert [row["step"] for row in rows] == [*range(1, STEPS + 1)] and returns(rows) == {9: 6}
  assert [row["learning_rate"] for row in rows[-3:]] == [pytest.approx(1e-2)] + [pytest.approx(5e-3)] * 2
  assert [row["optimizer_step"] for row in rows] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 7, 8]
  # The weights of step 6 sampled step 10, whose questions and samples are new.
  kept = checkpoint.Checkpoints(tmp_path / "checkpoints", keep=9)
  assert kept.steps() == [0, 2, 4, 6, 9, 10, 11]
  for name, array in tiny_world.arrays(tmp_path, 6)[1].items():
    np.testing.assert_array_equal(array, tiny_world.arrays(tmp_path, 9)[1][name], err_msg=name)
  logged = map(episodes.read_episodes, episodes.steps(tmp_path).values())
  prompts = [{row["prompt_index"] for row in rows} for rows in logged]
  assert len(prompts) == STEPS and sorted(set().union(*prompts)) == [*range(2 * STEPS)]
  # The second stage began because of step 8, which is undone.
  weights = [row["weight/sum"] for row in rows]
  assert weights == [1.0] * 8 + [3.0] + [1.0] * 2
  # The page says so at its top, and the curves have a mark.
  found = page.gather(tmp_path)
  first = found["run"]["warnings"][0]
  assert first["first"] == 9 and first["text"].startswith("Returned to the weights of step 6, now with the learning")
  assert found["curves"]["runs"][0]["rollbacks"] == [9] and "rollback/" not in str(found["curves"])


def killing(patch, point):
  """Makes the run die at this point of step 9, which returns to an earlier checkpoint."""

  def dies(owner, name, when, *, after=False):
    do = getattr(owner, name)

    def dying(*given, **how):
      result = do(*given, **how) if after else None
      if when(*given):
        raise Killed
      return result if after else do(*given, **how)

    patch.setattr(owner, name, dying)

  made = checkpoint.Checkpoints
  {
    "before": lambda: dies(made, "restore", lambda self, like, step: step is not None),
    "deleting": lambda: dies(made, "_remove_what_is_no_step", lambda self: (self.folder / "8.deleted").exists()),
    "its episodes": lambda: dies(rewards, "write", lambda workdir, step, *_: step == 9),
    "its row": lambda: dies(metrics.MetricWriter, "write", lambda self, step, row: step == 9),
    "its checkpoint": lambda: dies(sums, "write", lambda folder: folder.name == "9.tmp"),
    "after": lambda: dies(made, "save", lambda self, step, *_: step == 9, after=True),
  }[point]()


# Steps 7 to 10 are sampled by weights 6 and 8. Those of step 10 are under way when step 9 returns, and thrown away.
AHEAD = {"rollout.ahead": 1, "rollout.filter.metric": "outcome", "guard.rollback": 3}
KEEPING = {"rollout.filter.metric": "outcome", "rollout.filter.surplus": "keep", "rollout.filter.max_draws": 8}
STEERED = {"loss.kl": "k2", "loss.kl_coef": 0.1, "loss.kl_target": 0.001, "optimizer.schedule": "cosine"}
STEERED |= {"advantage.kind": "gae", "critic.kind": "own", "critic.learning_rate": 1e-2, "critic.alone_steps": 1}


@pytest.mark.long  # two runs a point
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("settings, points", [
  ({}, ("deleting", "its row", "its checkpoint", 8)), ({}, ("before", "its episodes", "after", 7, 10)),
  (AHEAD, ("its row", "after", 8, 10)), (KEEPING, ("its row", "after", 8, 10)), (STEERED, ("its row", "after", 8, 10)),
])  # fmt: skip
def test_a_run_that_is_killed_around_a_rollback_ends_like_an_undisturbed_one(start, tmp_path, settings, points):
  sick, to = ({7, 9}, 4) if settings == AHEAD else (SICK, 6)
  assert returns(start(tmp_path / "whole", settings, sick)) == {9: to}
  start(tmp_path / "begun", settings, sick, until=7)
  for point in points:
    part = tmp_path / str(point)
    if point != points[0]:  # that run is killed in its first start
      shutil.copytree(tmp_path / "begun", part)
    if isinstance(point, str):
      with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        killing(patch, point)
        start(part, settings, sick)
    elif point != 7:
      start(part, settings, sick, until=point)
    start(part, settings, sick)
    same(tmp_path / "whole", part)


@pytest.mark.slow  # two runs
def test_a_run_that_collapses_again_and_again_stops_with_the_same_words_at_every_start(start, tmp_path):
  sick, words = {*range(8, 20)}, "most_rollbacks=1 times.*checkpoints/9"
  for _ in range(2):
    with pytest.raises(rollback.Collapsed, match=words) as error:
      start(tmp_path, {"guard.most_rollbacks": 1}, sick, steps=19)
    rows = metrics.read_metrics(tmp_path)
    assert rows[-1]["step"] == STEPS and rows[-1]["warning/collapsed"] == str(error.value) and returns(rows) == {9: 6}
  assert checkpoint.Checkpoints(tmp_path / "checkpoints", keep=9).steps() == [9, 10]
  assert not (tmp_path / "model").exists()
