"""A run's folder while it is trained in: one process at a time, its settings, where it goes on, and its end."""

import contextlib
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from jax.experimental import multihost_utils

from ragrl_jax.store import changes, checkpoint, jsonl, lock, metrics

RESUME = ("auto", "must", "never")
FINISHED = "finished.json"  # written when the last step is saved and model/, too


class Run:
  """What `opened` gives.

  Attributes:
    workdir: the folder.
    checkpoints: its checkpoints.
    finished: whether the run has ended before, so that there is nothing to do.
    restored: the step it went on from; None before `restore`, and for a new run.
  """

  def __init__(self, workdir: pathlib.Path, config, still_held, say, *, resume: str, accept_changes: bool):
    self.workdir, self.restored = workdir, None
    self._config, self._still_held, self._say, self._changes = config, still_held, say, {}
    self.checkpoints = checkpoint.Checkpoints(workdir / "checkpoints", keep=config.checkpoint.keep)
    found = (-1, False)
    if checkpoint.is_first():  # whose word counts for all: another host may come when this one writes already
      found = self._found(resume, accept_changes)
    latest, finished = (int(x) for x in multihost_utils.broadcast_one_to_all(np.asarray(found, np.int32)))
    self._latest, self.finished = latest, bool(finished)
    if self.finished:
      say(
        f"{workdir} is finished: it has its {latest} steps, and model/ is what they made. Nothing was trained; raise "
        "config.steps to go on."
      )

  def _found(self, resume: str, accept_changes: bool) -> tuple[int, bool]:
    """(newest step or -1, whether the run has ended there), if the run may go on from it."""
    latest, workdir = self.checkpoints.latest(), self.workdir
    if resume == "must" and latest is None:
      raise ValueError(f"--resume=must, but {workdir} has no checkpoint: see that it is the right folder.")
    if resume == "never" and (
      latest is not None or (workdir / changes.FILE).exists() or (workdir / metrics.FILE).exists()
    ):
      raise ValueError(f"--resume=never, but {workdir} holds a run already: use another workdir.")
    if latest is None:
      return -1, False
    if not (accept_changes and not (workdir / changes.FILE).exists()):
      self._changes = changes.differences(workdir, self._config)
    if not accept_changes:
      changes.refuse_others(workdir, self._changes, self._config)
    path = workdir / FINISHED
    end = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return latest, end.get("step") == latest and (end["reached"] or latest >= self._config.steps)

  def restore(self, state: Any) -> tuple[Any, dict[str, Any] | None]:
    """(state, host part) of the newest sound checkpoint; (the given state, None) in a new run.

    Args:
      state: as before the first step.
    """
    host = None
    if self._latest >= 0:
      state, host = self.checkpoints.restore(state)
      self.restored = host["step"]
      self._say(f"{self.workdir}: going on from step {self.restored}, of at most {self._config.steps}")
    if checkpoint.is_first():
      (self.workdir / FINISHED).unlink(missing_ok=True)
      changes.write(self.workdir, self._config)
      if self._changes:
        changes.record(self.workdir, self.restored, self._changes)
    return state, host

  def save(self, step: int, state: Any, host: Mapping[str, Any], *, reached: bool = False) -> None:
    """Saves a checkpoint, unless the step has one.

    Args:
      step: steps that are done.
      state, host: what is saved of them.
      reached: whether the run has reached what it is for: it will not be trained on.

    Raises:
      lock.Held: another machine trains here, too.
    """
    self._still_held()
    if self.checkpoints.latest() != step:
      self.checkpoints.save(step, state, dict(step=step, reached=reached, **host))

  def leave(self, step: int, state: Any, host: Mapping[str, Any]) -> None:
    """Saves a checkpoint since the run ends before its last step, and says so."""
    self.save(step, state, host)
    self._say(f"{self.workdir}: step {step} is saved; the same command goes on from it")

  def end(self, step: int, *, reached: bool) -> None:
    """Notes that all is done: the last step is saved, and the model."""
    if checkpoint.is_first():
      with jsonl.whole(self.workdir / FINISHED) as part:
        part.write_text(json.dumps(dict(step=step, reached=reached)), encoding="ascii")


@contextlib.contextmanager
def opened(
  workdir: pathlib.Path,
  config,
  *,
  resume: str = "auto",
  accept_changes: bool = False,
  say: Callable[[str], None] = print,
) -> Iterator[Run]:
  """Holds a run's folder for the length of a `with` block; of several hosts the first one does, for all.

  Args:
    workdir: is made if it is not there.
    config: the settings now.
    resume: "auto" goes on where there is something to go on from; "must" refuses a folder without a checkpoint,
      "never" one with a run in it.
    accept_changes: go on with other settings than the run's so far, which is recorded.
    say: what the run tells whoever started it.

  Raises:
    ValueError: `resume` is none of the three, or refuses; or settings that change the run.
    lock.Held: another process trains there.
  """
  if resume not in RESUME:
    raise ValueError(f"resume={resume!r}: it must be one of {', '.join(RESUME)} (--resume).")
  if not checkpoint.is_first():
    yield Run(workdir, config, lambda: None, lambda text: None, resume=resume, accept_changes=accept_changes)
    return
  with lock.held(workdir) as still_held:
    yield Run(workdir, config, still_held, say, resume=resume, accept_changes=accept_changes)
