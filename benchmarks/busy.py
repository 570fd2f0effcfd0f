"""Whether a benchmark has the machine to itself: `busy.NOW`, looked at when this is imported, which is before torch.

torch's threads spin while they wait for each other. Beside other work they then wait for threads that do not run, and a
round takes many times as long: they must sleep instead, which has to be said before torch is loaded.
"""

import os
import sys

import psutil

ALONE = 0.1  # of the cores: what other processes may use beside a measurement that counts


def _look() -> bool:
  """Says aloud if other work takes more of the cores just now, and has torch's threads sleep while they wait."""
  if "torch" in sys.modules:
    raise RuntimeError("torch is loaded: how its threads wait must be said before. Import busy first.")
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
