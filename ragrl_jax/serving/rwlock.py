"""A readers-writer lock: requests run together, and a change of weights runs alone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Gate:
  """Admits many tasks with `inside`, or one with `alone`. A waiting `alone` blocks new `inside` tasks.

  Attributes:
    shut: whether a task is alone, or waits to be.
  """

  def __init__(self):
    self._inside, self.shut = 0, False
    self._changed = asyncio.Condition()

  @contextlib.asynccontextmanager
  async def inside(self) -> AsyncIterator[None]:
    """Enters as soon as no task is alone or waits to be alone."""
    async with self._changed:
      await self._changed.wait_for(lambda: not self.shut)
      self._inside += 1
    try:
      yield
    finally:
      # No `await` here: a cancelled request must still be subtracted.
      self._inside -= 1
      if not self._inside:
        asyncio.get_running_loop().create_task(self._tell())

  @contextlib.asynccontextmanager
  async def alone(self, within_s: float) -> AsyncIterator[None]:
    """Blocks other tasks, and enters when all tasks inside have left. Raises TimeoutError if that takes longer."""
    async with self._changed:
      await self._changed.wait_for(lambda: not self.shut)
      self.shut = True
      try:
        async with asyncio.timeout(within_s):
          await self._changed.wait_for(lambda: not self._inside)
      except BaseException:
        self.shut = False
        self._changed.notify_all()
        raise
    try:
      yield
    finally:
      self.shut = False
      asyncio.get_running_loop().create_task(self._tell())

  async def _tell(self) -> None:
    async with self._changed:
      self._changed.notify_all()
