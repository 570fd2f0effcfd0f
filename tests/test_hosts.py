"""Several processes train like one. If one is killed the others end, and any number of processes can resume."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from unittest import mock

import hosts_child
import jax
import pytest
import tiny_world
from refusals import refused

from ragrl_jax import config as config_lib
from ragrl_jax.parallel import hosts
from ragrl_jax.rollout import multihost
from ragrl_jax.store import episodes as episodes_lib, jsonl, metrics as metrics_lib

ROOT = pathlib.Path(__file__).parents[1]
TWO = dict(data=2, fsdp=2)


def free_port():
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    return free.getsockname()[1]


def start_all(commands, logs):
  """Starts one process per command; their output goes to logs/NUMBER.txt."""
  children, environment = [], os.environ | dict(JAX_PLATFORMS="cpu", PYTHONPATH=str(ROOT))
  for number, command in enumerate(commands):
    with open(logs / f"{number}.txt", "w") as log:
      told, command = dict(stdout=log, stderr=subprocess.STDOUT), [sys.executable, *map(str, command)]
      children.append(subprocess.Popen(command, env=environment, **told))
  return children


def start(count, devices, mesh, world, workdir, steps, logs, ahead=0, engine=1):
  port, rest = free_port(), (world, workdir, steps, devices, json.dumps(mesh), ahead, engine)
  return start_all([(hosts_child.__file__, number, count, port, *rest) for number in range(count)], logs)


def end_all(children, logs, seconds=400):
  """Waits until all processes have ended with status 0."""
  try:
    ended = [child.wait(timeout=seconds) for child in children]
    assert not any(ended), "\n".join((logs / f"{i}.txt").read_text()[-3000:] for i, code in enumerate(ended) if code)
  finally:
    for child in children:
      child.kill()


def wait_for(ready, children, logs, seconds=240):
  end = time.monotonic() + seconds
  while not ready():
    gone = [number for number, child in enumerate(children) if child.poll() is not None]
    assert not gone and time.monotonic() < end, (gone, *((logs / f"{i}.txt").read_text()[-3000:] for i in (0, 1)))
    time.sleep(0.05)


def sampled(workdir, step):
  """The questions and the sampled ids of a step."""
  rows = episodes_lib.read_episodes(episodes_lib.steps(workdir)[step])
  return [(row["prompt_index"], row["sample"], row["id"], [s["ids"] for s in row["segments"]]) for row in rows]


@pytest.mark.long  # two new processes and one run here compile all programs
def test_two_hosts_train_like_one_and_one_host_resumes_after_a_kill(world, tmp_path):
  children = start(2, 2, TWO, world, tmp_path / "two", 1000, tmp_path)
  try:
    wait_for(lambda: (tmp_path / "two" / "checkpoints" / "4").is_dir(), children, tmp_path)
    children[1].send_signal(signal.SIGKILL)
    children[1].wait()
    killed = time.monotonic()
    assert children[0].wait(timeout=200) != 0
    assert time.monotonic() - killed < 90  # the heartbeat's ten seconds; without it, JAX notices after a hundred
  finally:
    for child in children:
      child.kill()
  said = (tmp_path / "0.txt").read_text()
  assert "host 0 of 2 ends" in said or "another task died" in said or "unhealthy" in said, said[-3000:]
  found = {row["step"]: row for row in metrics_lib.read_metrics(tmp_path / "two")}
  assert found[4]["rollback/to"] == 1
  last = max(int(folder.name) for folder in (tmp_path / "two" / "checkpoints").iterdir() if folder.name.isdigit())

  # One process with as many devices resumes the run; another one makes the whole run.
  list(hosts_child.run(world, tmp_path / "one", last + 1, **TWO))
  list(hosts_child.run(world, tmp_path / "two", last + 1, **TWO))
  check_runs_equal(tmp_path / "two", tmp_path / "one")
  for want in metrics_lib.read_metrics(tmp_path / "one"):
    if want["step"] <= last:  # before the kill
      check_equal(found[want["step"]], want)


def check_equal(got, want):
  """Compares two rows of metrics.jsonl: the same prompts and episodes, and numbers equal up to the order of sums."""
  same = ("prompts", "groups/drawn", "groups/surplus", "groups/trained", "episodes", "engine/sampled_tokens", "tokens")
  same += ("rollback/to", "learning_rate")
  assert [got.get(name) for name in same] == [want.get(name) for name in same], want["step"]
  for name in ("loss", "reward", "grad_norm", "entropy", "mismatch", "evaluation/em"):
    assert got.get(name) == (pytest.approx(want[name], rel=1e-5, abs=1e-5) if name in want else None), name


def check_runs_equal(many, one):
  """Compares the metrics of two runs, and the episodes of each step."""
  found = {row["step"]: row for row in metrics_lib.read_metrics(many)}
  for want in metrics_lib.read_metrics(one):
    check_equal(found[want["step"]], want)
    if want["step"]:
      assert sampled(many, want["step"]) == sampled(one, want["step"])


@pytest.mark.hosts  # six processes and this one compile a run's programs
@pytest.mark.timeout(900)
@pytest.mark.parametrize("count, devices, mesh, ahead", [
  (4, 1, dict(data=1, fsdp=2, tensor=2), 0),  # every axis spans hosts
  (4, 2, dict(data=2, fsdp=2, tensor=2), 0), (4, 1, dict(data=1, fsdp=2, tensor=2), 1),
])  # fmt: skip
def test_four_hosts_train_five_steps_like_one_and_two_hosts_resume(world, tmp_path, count, devices, mesh, ahead):
  for hosts_now, steps in ((count, 5), (2, 6)):
    own = count * devices // hosts_now
    end_all(start(hosts_now, own, mesh, world, tmp_path / "many", steps, tmp_path, ahead), tmp_path)
    list(hosts_child.run(world, tmp_path / "one", steps, ahead, **mesh))
  check_runs_equal(tmp_path / "many", tmp_path / "one")


@pytest.mark.hosts  # starts fourteen processes
@pytest.mark.timeout(600)
def test_any_number_of_hosts_restores_what_any_number_saved(tmp_path):
  folders = {count: tmp_path / str(count) for count in (1, 2, 4)}
  child = pathlib.Path(__file__).with_name("checkpoint_child.py")
  for verb in ("save", "restore"):
    for count, own in folders.items():
      port = free_port()
      which = [own] if verb == "save" else folders.values()
      end_all(start_all([(child, number, count, port, verb, *which) for number in range(count)], tmp_path), tmp_path)


@pytest.mark.hosts  # starts five processes
def test_a_signal_to_one_host_ends_all_at_one_step_and_a_second_job_is_refused(tmp_path):
  child, workdir = pathlib.Path(__file__).with_name("signals_child.py"), tmp_path / "run"
  of = lambda port, count: [(child, number, count, port, workdir) for number in range(count)]
  begin = lambda logs, count: start_all(of(free_port(), count), logs)
  stepped = lambda logs: (logs / "1.txt").exists() and "3\n" in (logs / "1.txt").read_text()
  last = 0
  for attempt in (1, 2):
    logs = tmp_path / str(attempt)
    logs.mkdir()
    children = begin(logs, 2)
    try:
      wait_for(lambda logs=logs: stepped(logs), children, logs)
      if attempt == 1:
        (tmp_path / "other").mkdir()
        (other,) = begin(tmp_path / "other", 1)
        assert other.wait(timeout=120) == 1
        assert f"process {children[0].pid} on" in (tmp_path / "other" / "0.txt").read_text()
      children[1].send_signal(signal.SIGTERM)
      assert [child.wait(timeout=200) for child in children] == [143, 143], (logs / "0.txt").read_text()[-3000:]
    finally:
      for process in children:
        process.kill()
    saved = sorted(int(path.name) for path in (workdir / "checkpoints").iterdir())
    assert len(saved) == attempt and saved[-1] > last
    last = saved[-1]
    said = (logs / "0.txt").read_text()
    assert f"step {last} is saved; the same command goes on from it" in said
    assert "is saved" not in (logs / "1.txt").read_text()
  assert f"going on from step {saved[0]}, of at most 1000000" in said


@pytest.mark.hosts  # three processes compile the step
@pytest.mark.timeout(600)
def test_supervised_fine_tuning_on_two_hosts_is_ones(world, tmp_path):
  """Uses the launcher and its flags."""
  configs = tiny_world.config(world, variant="sft"), config_lib.load("quickstart", "sft")
  made, usual = (dict(jsonl.flat(config.to_dict())) for config in configs)
  changed = [f"--config.{name}={value}" for name, value in made.items() if value != usual.get(name)]
  for count in (1, 2):
    command = ["-m", "ragrl_jax", "sft", f"--config={ROOT}/configs/quickstart.py:sft", *changed]
    command += [f"--workdir={tmp_path / str(count)}", f"--config.mesh.data={count}"]
    if count > 1:
      command += [f"--coordinator=127.0.0.1:{free_port()}", f"--num_processes={count}"]
    each = [[*command, *[f"--process_id={number}"] * (count > 1)] for number in range(count)]
    end_all(start_all(each, tmp_path), tmp_path)
  one, two = (metrics_lib.read_metrics(tmp_path / str(count)) for count in (1, 2))
  assert len(one) == len(two) == made["steps"]
  for want, got in zip(one, two):
    for name in ("loss", "grad_norm", "tokens"):
      assert got[name] == pytest.approx(want[name], rel=1e-5), name
  assert (tmp_path / "2" / "model" / "model.safetensors").is_file()


def test_shares_cover_all_prompts_once_and_differ_by_at_most_one():
  for count in (1, 2, 4, 7):
    parts = [multihost.share(range(10), number, count) for number in range(count)]
    assert sorted(prompt for part in parts for prompt in part) == list(range(10))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_what_jax_does_not_find_and_whom_it_waits_for_are_said(monkeypatch):
  for error, kind, says in (
    (ValueError("No coordinator."), ValueError, "finds no TPU slice, .*No coordinator.*or give --coordinator"),
    (jax.errors.JaxRuntimeError("late"), TimeoutError, "of the 4 hosts joined at tpu-0:8482 .* every host"),
  ):
    monkeypatch.setattr(jax.distributed, "initialize", mock.Mock(side_effect=error))
    monkeypatch.setattr(hosts.distributed.global_state, "num_processes", 4)
    monkeypatch.setattr(hosts.distributed.global_state, "coordinator_address", "tpu-0:8482")
    refused(says, hosts.Joined(automatic=True).__enter__, error=kind)


def test_the_coordinators_address_is_that_of_process_0_whatever_number_a_tpu_gives_it(monkeypatch):
  monkeypatch.setattr(hosts.distributed.global_state, "coordinator_address", "127.0.0.2:9")
  assert hosts.address() == "127.0.0.2"
  monkeypatch.setattr(hosts.distributed.global_state, "process_id", 3)  # and jax.process_index() is 0
  assert hosts.address() == "127.0.0.1"


def test_contradicting_flags_are_refused():
  for given in (dict(coordinator="a:1"), dict(coordinator="a:1", count=2, number=1, automatic=True)):
    refused("give the first three together", hosts.Joined, **given)
  refused("process_id=2 with num_processes=2", hosts.Joined, "a:1", 2, 2)
  refused("must be ADDRESS:PORT", hosts.Joined, "a", 2, 0)
  with hosts.Joined():  # a single process
    assert hosts.is_first() and hosts.exchange({"x": 0.1}) == [{"x": 0.1}]
