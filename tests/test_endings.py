import json
import shutil
import signal
import threading
import types

import pytest
import tiny_world
from refusals import refused

from ragrl_jax.jobs import sft, train
from ragrl_jax.learner import packing
from ragrl_jax.parallel import hosts
from ragrl_jax.rollout import group_sampler
from ragrl_jax.run import rewards, rooms as rooms_lib
from ragrl_jax.store import checkpoint, episodes, metrics as metrics_lib

pytestmark = pytest.mark.usefixtures("rewarding")


def settings(world, variant=""):
  config = tiny_world.config(world, variant=variant)
  config.steps, config.checkpoint.every = 4, 50
  if variant == "sft":
    config.rollout.context, config.learner.row_lengths = 256, ()  # chosen as steps need them: 256
  return config


def on(step, do):
  """An evaluation that causes an event after this step's update."""

  def measure(now, *_):
    if now == step:
      do()
    return {}

  return measure


@pytest.mark.slow  # five runs of one world
@pytest.mark.parametrize("ahead", [pytest.param(0, marks=pytest.mark.long), 1])
def test_signals_failed_tools_and_damaged_checkpoints_cost_no_finished_step(world, tmp_path, monkeypatch, ahead):
  config, said = settings(world), []
  config.rollout.ahead = ahead
  if not ahead:
    config.learner.row_lengths = ()  # chosen as steps need them, and kept by every later start
  start = lambda **given: train.train(config, tmp_path / "run", say=said.append, **given)

  with pytest.raises(hosts.Stopped) as stopped:
    list(start(evaluate=on(1, lambda: signal.raise_signal(signal.SIGTERM))))
  assert stopped.value.code == 143 and "step 1 is saved; the same command goes on from it" in said[-1]

  refuse = group_sampler.refuse_failures

  def down(episodes, *shares):
    if episodes[0].prompt_index == 4 + 2 * ahead:  # of step 3; or of step 4, which is sampled while step 3 learns
      raise group_sampler.TooManyFailures("the retriever is down")
    refuse(episodes, *shares)

  monkeypatch.setattr(group_sampler, "refuse_failures", down)
  refused("is down", list, start(), error=group_sampler.TooManyFailures)
  monkeypatch.setattr(group_sampler, "refuse_failures", refuse)
  at = 2 + ahead
  assert "going on from step 1, of at most 4" in said[-2] and f"step {at} is saved" in said[-1]
  assert [row["step"] for row in metrics_lib.read_metrics(tmp_path / "run")] == list(range(at + 1))

  shutil.copytree(tmp_path / "run", tmp_path / "next_day")
  newest = max((tmp_path / "run" / "checkpoints" / str(at) / "state").rglob("*"), key=lambda path: path.stat().st_size)
  content = bytearray(newest.read_bytes())
  content[len(content) // 2] ^= 1
  newest.write_bytes(content)
  with pytest.warns(UserWarning, match=f"damaged checkpoint.*{newest.name}.*Step 1 is undamaged"):
    rows = list(start())
  assert [row["step"] for row in rows] == [2, 3, 4] and rows[-1]["seconds/step"] > 0
  assert [row["step"] for row in metrics_lib.read_metrics(tmp_path / "run")] == [0, 1, 2, 3, 4]

  list(train.train(config, tmp_path / "whole", say=said.append))
  assert tiny_world.assert_same(tmp_path / "whole", tmp_path / "run") == 4
  list(train.train(config, tmp_path / "next_day", say=said.append))  # from the step that was saved when the tool failed
  assert tiny_world.assert_same(tmp_path / "whole", tmp_path / "next_day") == 4
  assert list(start()) == [] and "is finished: it has its 4 steps" in said[-1]


@pytest.mark.slow  # runs of one world
@pytest.mark.parametrize("variant, begin", [("sft", sft.sft), ("", train.train)])
def test_a_run_that_has_reached_its_goal_is_over(world, tmp_path, variant, begin):
  config, said = settings(world, variant), []
  start = lambda reached=lambda row: False: list(begin(config, tmp_path, reached=reached, say=said.append))
  assert [row["step"] for row in start(lambda row: row["step"] == 2)] == [1, 2]
  (tmp_path / "finished.json").unlink()  # the state after a kill before the model is saved
  (tmp_path / "model" / "model.safetensors").unlink()
  assert start() == [] and (tmp_path / "model" / "model.safetensors").is_file() and "going on from step 2" in said[-1]
  config.steps = 5
  assert start() == [] and "is finished" in said[-1]


@pytest.mark.slow  # runs of fine-tuning
@pytest.mark.parametrize("draws", [False, True])
def test_fine_tuning_that_a_signal_ended_is_resumed(world, tmp_path, monkeypatch, draws):
  """Whether its transcripts are read or drawn: then they are those of their step, and no file is needed."""
  config, asked = settings(world, "sft"), []
  config.data.train, config.learner.row_lengths = ("drawn", (256,)) if draws else (config.data.train, ())

  def drawn(step):
    asked.append(step)
    return [([5 + step, 6, 7 + i, 8], [0.0, 0.0, 1.0, 1.0]) for i in range(8)]

  start = lambda name, **how: sft.sft(config, tmp_path / name, **how, **dict(drawn=drawn) if draws else {})
  with pytest.raises(hosts.Stopped) as stopped:
    list(start("run", evaluate=on(2, lambda: signal.raise_signal(signal.SIGINT))))
  assert stopped.value.code == 130
  list(start("whole"))
  monkeypatch.setattr(sft, "row_lengths", None)  # those of the start are kept
  assert [row["step"] for row in start("run")] == [3, 4] and asked == [0, 1, 0, 1, 2, 3, 2, 3] * draws
  tiny_world.assert_same(tmp_path / "whole", tmp_path / "run")


@pytest.mark.slow  # three runs
def test_episodes_are_written_beside_the_next_step_and_its_parts_are_timed(world, tmp_path, monkeypatch):
  config = settings(world)
  config.checkpoint.every = 2
  measure = lambda step, *_: {"evaluation/em": 0.5} if step < 2 else {}
  before, first, second, third, _ = train.train(config, tmp_path / "whole", evaluate=measure)
  assert before["seconds/evaluate"] >= 0 and first["seconds/evaluate"] >= 0 and "seconds/evaluate" not in second
  assert third["seconds/checkpoint"] > 0 and "seconds/checkpoint" not in second
  parts = {name for name in third if name.startswith("seconds/")} - {"seconds/step", "seconds/checkpoint"}
  assert {"seconds/metrics", "seconds/writing", "seconds/handing_over", "seconds/other"} < parts
  assert sum(third[name] for name in parts) == pytest.approx(third["seconds/step"])

  next_step, full, found = threading.Event(), [3], []
  write, take, save = rewards.write, group_sampler.GroupSampler.take, checkpoint.Checkpoints.save

  def writing(workdir, step, *given):
    found.append(step != 1 or next_step.wait(60))  # step 1 is written when step 2 has begun
    if step in full:
      raise OSError(28, "the disk is full")
    write(workdir, step, *given)

  def saving(self, step, *given, **how):
    assert {*range(1, step + 1)} == {*episodes.steps(tmp_path / "run")}
    return save(self, step, *given, **how)

  taking = lambda self, step, **how: (next_step.set() if step == 2 else None) or take(self, step, **how)
  monkeypatch.setattr(rewards, "write", writing)
  monkeypatch.setattr(group_sampler.GroupSampler, "take", taking)
  monkeypatch.setattr(checkpoint.Checkpoints, "save", saving)
  refused("the disk is full", list, train.train(config, tmp_path / "run"), error=OSError)  # at step 4, before its row
  assert found == [True] * 3 and [row["step"] for row in metrics_lib.read_metrics(tmp_path / "run")] == [1, 2, 3]
  assert checkpoint.Checkpoints(tmp_path / "run" / "checkpoints", keep=9).latest() == 2
  full.clear()
  list(train.train(config, tmp_path / "run"))
  assert tiny_world.assert_same(tmp_path / "whole", tmp_path / "run") == 4
  for step, file in episodes.steps(tmp_path / "whole").items():
    assert file.read_bytes() == episodes.steps(tmp_path / "run")[step].read_bytes()


def test_chosen_row_lengths_are_kept_and_added_to():
  """Each length is a program. A run that is resumed or returns has those that it had, and adds the same again."""
  nothing = lambda saved: None
  sampler = types.SimpleNamespace(saved=lambda: "groups", restore=nothing, forget=nothing, ahead=False)
  packs = dict(rows=1, lengths=(), sharing=None, routes=0)
  learner = types.SimpleNamespace(resumed=lambda state: state)
  rooms = lambda *given: rooms_lib.Rooms(
    *(None, types.SimpleNamespace(), sampler, learner, None, 1, packs | dict(lengths=given)),
    given=bool(given),
    unmeasured=dict(context=200, multiple=1),
    remote=None,
  )
  of = lambda *sizes: [packing.of_demonstration([7] * size, [1.0] * size, n) for n, size in enumerate(sizes)]
  shapes = lambda parts: [block.tokens.shape for part in parts for block in part.blocks]

  whole = rooms()
  assert shapes(whole.pack([[]])) == [(1, 896)] and whole.saved() == dict(group_sampler="groups", row_lengths=[])
  assert shapes(whole.pack([of(120, 130)])) == [(1, 256)] and whole.saved()["row_lengths"] == [256]
  assert shapes(whole.pack([of(250, 200)])) == [(1, 256)] * 2
  saved = json.loads(json.dumps(whole.saved()))
  for host, kept in ((dict(group_sampler="groups"), []), (saved, [256])):  # checkpoints of 0.2 have none
    resumed = rooms()
    resumed.restore(host, None, None)
    assert resumed.saved()["row_lengths"] == kept and shapes(resumed.pack([of(250, 200)])) == [(1, 256)] * 2
  for one in (whole, resumed):  # half of a row of 256 would be empty
    assert shapes(one.pack([of(250, 120)])) == [(1, 256), (1, 128)] and one.saved()["row_lengths"] == [128, 256]
  run = types.SimpleNamespace(rewind=lambda *_: (None, saved))
  whole.rewind(run, None, types.SimpleNamespace(rate=1.0), {"rollback/to": 1, "rollback/why": "collapsed"})
  assert whole.saved()["row_lengths"] == [256]
  given = rooms(300)
  given.restore(whole.saved(), None, None)
  assert shapes(given.pack([of(250)])) == [(1, 300)] and given.saved()["row_lengths"] == [300]
