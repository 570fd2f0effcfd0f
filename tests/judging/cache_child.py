"""Judges numbered claims in two processes, and stores the verdicts: `cache_child.py FILE START START`.

Runs until it is killed. Each process prints START:NUMBER when all claims from START to below NUMBER are stored.
"""

import os
import sys

from ragrl_jax.judging import judge_api
from ragrl_jax.store import disk_cache


class Judge:
  pace = judge_api.Pace()

  def describe(self):
    return dict(kind="child")

  def judge(self, pairs):
    return [float(int(claim) % 2) for _, claim in pairs]


def work(path, start):
  disk_cache._BUSY_S = 60.0  # a printed number must already be stored
  judge, number = judge_api.Cached(Judge(), path), start
  while True:
    judge.judge([("p", str(number + i)) for i in range(10)])
    number += 10
    os.write(1, f"{start}:{number}\n".encode())


if __name__ == "__main__":
  path, *starts = sys.argv[1:]
  work(path, int(starts[bool(os.fork())]))
