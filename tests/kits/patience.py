"""Waits for a condition, however long this machine takes. The limit only ends a test that would hang."""

import asyncio
import time

LIMIT_S = 120.0


def until(holds):
  """Returns as soon as `holds()` is true. Raises AssertionError after LIMIT_S."""
  end = time.monotonic() + LIMIT_S
  while not holds():
    assert time.monotonic() < end, f"it did not come true within {LIMIT_S:g} s"
    time.sleep(0.005)


async def reached(holds):
  """`until`, on an event loop."""
  end = time.monotonic() + LIMIT_S
  while not holds():
    assert time.monotonic() < end, f"it did not come true within {LIMIT_S:g} s"
    await asyncio.sleep(0.001)
