"""Two processes judge numbered claims and keep the verdicts until they are killed: `cache_child.py FILE START START`.

Each prints START:NUMBER when all claims from START to below NUMBER are kept.
"""

import os
import sys

from ragrl_jax.judging import api, verdict_cache


class Judge:
  pace = api.Pace()

  def describe(self):
    return dict(kind="child")

  def judge(self, pairs):
    return [float(int(claim) % 2) for _, claim in pairs]


def work(path, start):
  verdict_cache._BUSY_S = 60.0  # what it says is kept must be
  judge, number = verdict_cache.Cached(Judge(), path), start
  while True:
    judge.judge([("p", str(number + i)) for i in range(10)])
    number += 10
    os.write(1, f"{start}:{number}\n".encode())


if __name__ == "__main__":
  path, *starts = sys.argv[1:]
  work(path, int(starts[bool(os.fork())]))
