"""SIGTERM and Ctrl-C end a run where it can go on, on all hosts at the same step."""

import os
import signal
import threading
import time

from ragrl_jax.parallel import hosts

SIGNALS = (signal.SIGTERM, signal.SIGINT)
SOON_S = 0.5  # a signal so soon after the first is the same one, come by another way (a terminal's group, a launcher)


class Signals:
  """Notes the first SIGTERM or SIGINT in a `with` block, instead of ending the process; a second one ends it at once.

  Outside the main thread, where Python has no signals, and for signals that are ignored already it does nothing.
  """

  def __init__(self):
    self._caught, self._before, self._watching = 0, {}, None

  def __enter__(self) -> "Signals":
    if threading.current_thread() is threading.main_thread():
      # A handler of Python's waits until the program under way has ended, which may take minutes: a thread need not.
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
        signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not Python's
      signal.set_wakeup_fd(self._wakeup)
      os.close(self._write)
      self._watching.join()
      os.close(self._read)

  def caught(self) -> int:
    """The number of the signal that any host has had, 0 for none. All hosts must ask, after the same step."""
    return max(hosts.exchange(self._caught))

  def _note(self, number: int, _) -> None:
    self._caught = self._caught or number

  def _watch(self) -> None:
    first = None
    while told := os.read(self._read, 1):
      if told[0] not in self._before:
        continue
      if first is None:
        first = time.monotonic()
        self._note(told[0], None)
        os.write(
          2,
          (
            f"\n{signal.Signals(told[0]).name}: the step under way is finished and saved first; a second "
            "signal ends at once, and what was not saved is lost\n"
          ).encode(),
        )
      elif time.monotonic() - first > SOON_S:
        os._exit(128 + told[0])
