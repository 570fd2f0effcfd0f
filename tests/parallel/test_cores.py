"""The cores of a process, where the system says them and where it does not."""

import os

from ragrl_jax.parallel import cores


def test_a_containers_quota_and_other_systems_than_linux(tmp_path, monkeypatch):
  monkeypatch.setattr(cores, "QUOTA", tmp_path / "cpu.max")
  monkeypatch.setattr(os, "cpu_count", lambda: 8)
  monkeypatch.delattr(os, "sched_getaffinity", raising=False)  # as on macOS
  assert cores.count() == 8
  for quota, count in (("max", 8), ("150000", 2), ("50000", 1), ("6400000", 8)):
    cores.QUOTA.write_text(f"{quota} 100000\n")
    assert cores.count() == count
