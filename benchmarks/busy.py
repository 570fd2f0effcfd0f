"""Finds out whether other work uses the machine. Import it before torch; the result is `busy.NOW`.

torch's threads spin while they wait for each other. On a busy machine they wait for threads that are not scheduled, and
a round takes many times as long. This module makes them sleep instead, which must be set before torch is loaded.
"""

import os
import sys

import psutil

ALONE = 0.1  # largest share of the cores that other processes may use during a valid measurement


def _look() -> bool:
  """Whether other processes use the cores now. If so, warns, and makes torch's threads sleep while they wait."""
  if "torch" in sys.modules:
    raise RuntimeError("torch is already loaded, so its threads' wait policy can no longer be set. Import busy first.")
  share = psutil.cpu_percent(interval=1.0) / 100
  if share <= ALONE:
    return False
  os.environ.update(OMP_WAIT_POLICY="PASSIVE", GOMP_SPINCOUNT="0", KMP_BLOCKTIME="0")
  print(
    f"This machine is BUSY: other work takes {share:.0%} of its cores. What follows shows that everything runs; "
    "its ratios do not count. Run it again on a quiet machine, or compare CPU seconds of one thread "
    "(taskset -c 0 … --threads 1 --clock cpu).",
    flush=True,
  )
  return True


NOW = _look()
