"""SIGTERM and Ctrl-C end a run where it can go on, on all hosts at the same step."""

import os
import signal
import threading

from ragrl_jax.parallel import hosts

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Signals:
  """Notes the first SIGTERM or SIGINT in a `with` block, instead of ending the process; a second one ends it at once.

  Outside the main thread, where Python has no signals, and for signals that are ignored already it does nothing.
  """

  def __init__(self):
    self._caught, self._before = 0, {}

  def __enter__(self) -> "Signals":
    if threading.current_thread() is threading.main_thread():
      for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
          self._before[number] = signal.signal(number, self._note)
    return self

  def __exit__(self, *_) -> None:
    if threading.current_thread() is threading.main_thread():
      for number, handler in self._before.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not Python's

  def caught(self) -> int:
    """The number of the signal that any host has had, 0 for none. All hosts must ask, after the same step."""
    return max(hosts.exchange(self._caught))

  def _note(self, number: int, _) -> None:
    self._caught = number
    for other in self._before:
      signal.signal(other, signal.SIG_DFL)
    # print() may not be entered a second time from a handler.
    os.write(2, (f"\n{signal.Signals(number).name}: the step under way is finished and saved first; a second signal "
                 "ends at once, and what was not saved is lost\n").encode())
