"""Handles SIGTERM and Ctrl-C: a run stops after a saved step, on all hosts at the same one, and can be resumed."""

import os
import select
import signal
import threading
import time

from ragrl_jax.parallel import hosts

SIGNALS = (signal.SIGTERM, signal.SIGINT)
SOON_S = 0.5  # a signal this soon after the first is the same one, sent twice (by the terminal and by a launcher)


class Signals:
  """Records the first SIGTERM or SIGINT in a `with` block instead of ending the process; a second one ends it at once.

  It does nothing outside the main thread, where Python cannot handle signals, nor for signals that are already ignored.
  """

  def __init__(self):
    self._caught, self._before, self._watching = 0, {}, None

  def __enter__(self) -> "Signals":
    if threading.current_thread() is threading.main_thread():
      # A Python signal handler runs only after the current XLA program, perhaps minutes later. A thread that reads the
      # wakeup pipe sees the signal at once.
      self._read, self._write = os.pipe()
      os.set_blocking(self._write, False)
      self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
      for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
          self._before[number] = signal.signal(number, self._note)
      self._watching = threading.Thread(target=self._watch, name="signals", daemon=True)
      self._watching.start()
    return self

  def __exit__(self, *_) -> None:
    if self._watching and threading.current_thread() is threading.main_thread():
      for number, handler in self._before.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set by Python
      signal.set_wakeup_fd(self._wakeup)
      os.close(self._write)
      self._watching.join()
      os.close(self._read)

  def end(self, error: BaseException | None = None) -> BaseException | None:
    """Why all hosts end after this step; None if they go on. All hosts must call this after the same step.

    Args:
      error: why this host ends, which others may not know, such as that of a user's function.

    Returns:
      This host's `error`; else hosts.Ended if another host has one, or hosts.Stopped if any has received a signal.
    """
    numbers, failed = zip(*hosts.exchange((self._caught, error is not None)))
    if error is not None:
      return error
    if any(failed):
      return hosts.Ended(f"host {failed.index(True)} ends after this step because of an error, which its log has.")
    return hosts.Stopped(max(numbers)) if any(numbers) else None

  def _note(self, number: int, _) -> None:
    self._caught = self._caught or number

  def _watch(self) -> None:
    first, until = 0, 0.0
    while told := os.read(self._read, 1):
      if told[0] not in self._before:
        continue
      if first:
        os._exit(128 + told[0])
      first, until = told[0], time.monotonic() + SOON_S
      self._note(first, None)
      os.write(
        2,
        (
          f"\n{signal.Signals(first).name}: the step under way is finished and saved first; a second "
          "signal ends at once, and unsaved work is lost\n"
        ).encode(),
      )
      # On a busy machine this thread may continue long after SOON_S. What came meanwhile may have come soon, too.
      while SOON_S and select.select([self._read], [], [], max(0.0, until - time.monotonic()))[0]:
        if not os.read(self._read, 1):
          return
