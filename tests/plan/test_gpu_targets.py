"""Topologies of GPUs, and the errors for wrong ones and for a missing compiler."""

import dataclasses
import os
import subprocess
import sys
import types
from unittest import mock

import pytest
from refusals import refused

from ragrl_jax.plan import aot, chips, gpus, summary
from ragrl_jax.plan.summary import Conversation, Program, Report


@pytest.mark.parametrize("topology, expected", [("h200:8", (1, 8)), ("h100:1", (1, 1)), ("b200:16x8", (16, 8))])
def test_hosts_and_gpus(topology, expected):
  assert gpus.is_gpu(topology) and gpus.hosts(topology) == expected
  assert aot.of_hosts(topology) == f"{topology[:4]}:{expected[1]}"


ODD = ("h200", "h200:", "h200:0", "h200:9", "h200:2x16", "h200:1x2x8", "h200:-1")


@pytest.mark.parametrize("ask, says", [
  *((lambda x=x: gpus.devices(x), "h200:N with 1 to 8 GPUs of one host, or h200:HxN") for x in ODD),
  (lambda: aot.devices("h200:8", 2), "2 slices of 'h200:8'"),
  (lambda: chips.for_topology("h300:8"), "v5e, v5p, v6e, h100, h200, b200"),
])  # fmt: skip
def test_what_is_no_topology_of_gpus(ask, says):
  refused(says, ask)


def test_the_compiler_receives_the_gpu_and_its_hosts(monkeypatch):
  asked, found = {}, types.SimpleNamespace(devices=("gpu 0", "gpu 1"))
  monkeypatch.setattr(gpus.topologies, "get_topology_desc", lambda **said: asked.update(said) or found)
  monkeypatch.setattr(gpus.cudnn, "check_cudnn_version", lambda: 91_000)
  assert aot.devices("h200:2x8") == ["gpu 0", "gpu 1"] and asked["topology"] == "2x1x8"
  target = asked["target_config"]
  assert "core_count: 132\n" in target and f"device_memory_size: {round(139.7 * 2**30)}\n" in target
  assert "memory_bandwidth: 4800000000000\n" in target and target.count("{") == target.count("}")


def test_a_missing_plugin_is_named(monkeypatch):
  refuse = mock.Mock(side_effect=NotImplementedError("topology not implemented for cuda"))
  monkeypatch.setattr(gpus.topologies, "get_topology_desc", refuse)
  monkeypatch.setattr(gpus.cudnn, "check_cudnn_version", lambda: 91_000)
  refused(r"pip install 'ragrl_jax\[gpu-check\]' jax-cuda12-plugin==\d", gpus.devices, "h100:1", error=RuntimeError)


def test_cudnn_is_assumed_where_it_is_missing(monkeypatch):
  monkeypatch.setattr(gpus.cudnn, "check_cudnn_version", mock.Mock(side_effect=RuntimeError("cuDNN not found.")))
  gpus._without_cudnn()
  assert gpus.cudnn.check_cudnn_version() == gpus.CUDNN
  monkeypatch.setattr(gpus.cudnn, "check_cudnn_version", lambda: 92_000)
  gpus._without_cudnn()
  assert gpus.cudnn.check_cudnn_version() == 92_000


GIB = 2**30


def report(topology, resident):
  """One program with 16 tokens per call, 8 GB sent within a host and 3 GB between hosts."""
  sizes = dict(temporaries=2 * GIB, flops=989e9, hbm=4.8e9, sent=9e9, dcn=3e9, turns=16)
  counts = dict(kernels=16 * 1500, host_loops=2, host_branches=3, fewest=16 * 400)
  joined = dict(collectives={"all-gather": 5, "all-reduce": 2}, crossing={"all-gather": 4})
  decode = Program("engine: decode", 1.0, **sizes, **counts, **joined)
  conversation = Conversation(tokens=2048, bytes=GIB / 4, reserved=GIB, replicas=2, most=200)
  stays = {"weights": resident, "gradient": 0}
  return Report(topology, 1, 16, 2, dict(data=16), 10**9, stays, (decode,), 8, 1000, 1.0, False, conversation)


def test_seconds_are_of_the_slowest_resource_of_which_a_gpus_links_are_named():
  assert summary.seconds("h200:1", Program("x", 0.0, hbm=4800e9, flops=1.0)) == (1.0, "hbm")
  assert all(summary.peak(f"{kind}:8") > 1e14 for kind in chips.CHIPS)
  found = report("h200:2x8", GIB)
  assert found.seconds(found.programs[0]) == (3e9 / 50e9, "network")
  within = dataclasses.replace(found.programs[0], dcn=0.0)
  assert found.seconds(within) == (9e9 / 450e9, "nvlink")
  assert report("v5p:4x4x4", GIB).seconds(within) == (9e9 / 600e9, "ici")


def test_the_table_of_a_gpu_run():
  text = summary.text(report("h200:2x8", GIB))
  assert "between hosts GB" in text and "1,500 a token" in text and "It fits." in text
  assert "5 all-gather (4 between hosts), 2 all-reduce" in text
  head, line = (next(x for x in text.splitlines() if x.startswith(name)) for name in ("program", "engine: decode"))
  assert "host-read loops   conditions" in head and line.split("a token")[1].split()[:2] == ["2", "3"]
  text = summary.text(report("v5p:4x4x4", GIB))
  assert "between slices GB" in text and "kernels" not in text
  # 95.74 GiB, less 1 that stays and 2 of temporaries: 370 conversations of a quarter, of which the kernel reaches 200.
  assert "92.74 GiB a chip are free" in text and "400 conversations an engine, on 2 replicas" in text
  assert "2,048 tokens in pages, 256.0 MiB a chip" in text and "1024.0 MiB, there would be room for 184." in text


def test_needing_more_memory_than_jax_reserves_is_reported():
  # 75 % of an H200 are 104.8 GiB, and 92 % are 128.5.
  for gib, fits, says in ((100, True, False), (110, True, True), (130, False, False)):
    text = summary.text(found := report("h200:8", gib * GIB))
    of_memory = "XLA_PYTHON" in text, "XLA_PYTHON_CLIENT_MEM_FRACTION=0.92" in text
    assert (found.fits, *of_memory) == (fits, says, says), gib


def test_the_base_of_adapters_stays_in_the_engine_while_the_learner_works():
  stays = {"gradient": 3 * GIB, "engine: weights": 5 * GIB}
  needed = lambda base: dataclasses.replace(report("h200:8", 0), resident=stays, base=base * GIB).needed / GIB
  assert (needed(0), needed(5)) == (5 + 2, 5 + 3)  # the engine needs more, with 2 of temporaries; the learner


def test_a_part_of_the_programs_says_nothing_of_a_step():
  learn = dataclasses.replace((whole := report("h200:8", GIB)).programs[0], name="learner: accumulate")
  whole = dataclasses.replace(whole, programs=(learn,))
  part = dataclasses.replace(whole, partial=True)
  assert "the learner's MFU" in summary.text(whole) and {"step_s", "mfu", "tokens_per_second"} <= whole.to_json().keys()
  said = summary.text(part)
  assert "Not all programs of a step were compiled (--only)" in said and "MFU" not in said
  assert not {"step_s", "mfu", "tokens_per_second"} & part.to_json().keys()
  summary.refuse_unknown(["learner: accumulate"], part)
  with pytest.raises(ValueError, match="--only=learner:accumulate: the run has no program 'learner:accumulate'. Names"):
    summary.refuse_unknown(["learner:accumulate"], part)


@pytest.mark.parametrize("command", ["compile_check", "export_hf", "push_hf"])
def test_commands_that_compute_on_the_cpu_start_no_accelerator(command):
  asks = f"""import contextlib, jax, ragrl_jax.cli.{command} as command
with contextlib.suppress(BaseException): command.main()
print(jax.config.jax_platforms)"""
  users = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
  done = subprocess.run([sys.executable, "-c", asks], env=users, capture_output=True, text=True, check=True)
  assert done.stdout.strip() == "cpu"
