"""The memory of a test's process."""

import resource
import sys


def peak() -> int:
  """The largest resident memory of this process so far, in bytes."""
  unit = 1 if sys.platform == "darwin" else 1024
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
