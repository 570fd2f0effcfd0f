"""A run's folder during training: locks it, checks and records the settings, restores, saves, and notes the end."""

import concurrent.futures
import contextlib
import json
import pathlib
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from ragrl_jax.parallel import hosts
from ragrl_jax.settings import Settings
from ragrl_jax.store import changes, checkpoint, episodes, folders, jsonl, lock, metrics, versions

RESUME = ("auto", "must", "never")
FINISHED = "finished.json"  # written after the last checkpoint and model/


def ended(workdir: pathlib.Path) -> int:
  """The step at which the run ended, to which its model/ belongs; -1 if it has not ended."""
  return jsonl.read_object(workdir / FINISHED).get("step", -1)


class Run:
  """A run's opened folder; `opened` makes it.

  Attributes:
    finished: whether the run has already reached its end, so that there is nothing to do.
    contents: setting → digest of the files that it names, on the first host (`compare`).
    thread: a thread for work beside the run's own; it does one call after the other.
    written: waits for the last call of `write`, and raises its error.
    restored: the step from which the run was resumed; None before `restore`, and for a new run.
  """

  def __init__(
    self,
    workdir: pathlib.Path,
    config: Settings,
    still_held,
    say,
    thread: concurrent.futures.Executor,
    *,
    objective: str,
    waits_for_held_out: bool,
    resume: str,
    accept_changes: bool,
  ):
    self._waits_for_held_out, self.thread = waits_for_held_out, thread
    self.written: Callable[[], Any] = lambda: None
    self.workdir, self.restored, self._objective = workdir, None, objective
    self._config, self._still_held, self._say, self._changes = config, still_held, say, {}
    self._accept_changes, self._was, self.contents = accept_changes, {}, {}
    self.checkpoints = checkpoint.Checkpoints(workdir / "checkpoints", keep=config.checkpoint.keep)
    state = (-1, False, False)
    if hosts.is_first():  # host 0 decides for all: a later host could already see what this one writes
      state = self._found(resume, accept_changes)
    latest, finished, reached = (int(x) for x in multihost_utils.broadcast_one_to_all(np.asarray(state, np.int32)))
    self._latest, self.finished = latest, bool(finished)
    self._saved: int | None = None  # the step of the present state's checkpoint
    if self.finished:
      all_steps, goal = f"it has its {latest} steps", f"it reached its goal at step {latest}"
      more = "; raise config.steps to go on" if not reached else ""
      say(
        f"{workdir} is finished: {all_steps if more else goal}, and model/ holds the result. Nothing was trained{more}."
      )

  def _found(self, resume: str, accept_changes: bool) -> tuple[int, bool, bool]:
    """(newest step or -1, whether the run ended there, whether by its goal); a ValueError if it must not be resumed."""
    saved, workdir = self.checkpoints.latest(), self.workdir
    end = jsonl.read_object(workdir / FINISHED)
    latest = end.get("step") if saved is None else saved  # a run that has ended needs no checkpoints
    if resume == "must" and latest is None:
      raise ValueError(f"--resume=must, but {workdir} has no checkpoint: check that it is the right folder.")
    if resume == "never" and (
      latest is not None or (workdir / changes.FILE).exists() or (workdir / metrics.FILE).exists()
    ):
      raise ValueError(f"--resume=never, but {workdir} holds a run already: use another workdir.")
    if latest is None:
      return -1, False, False
    changes.refuse_other_kind(workdir, self._objective)
    if not (accept_changes and not (workdir / changes.FILE).exists()):
      self._changes = changes.differences(workdir, self._config)
    self._was = jsonl.read_object(workdir / changes.CONTENTS)  # as at the last start
    if not accept_changes:  # a place that moved is compared by its contents, in `compare`
      changed = {name for name, pair in self._changes.items() if name in self._was and all(pair)}
      self._refuse({name: pair for name, pair in self._changes.items() if name not in changed})
    ended, reached = end.get("step") == latest, end.get("reached", False)
    finished = ended and (reached or latest >= self._config.steps)
    if saved is None and not finished:
      raise ValueError(
        f"{workdir} ended at step {latest} and has no checkpoint any more, so it cannot go on to step "
        f"{self._config.steps}. Use another workdir; config.model.path={workdir}/model begins with its weights."
      )
    return latest, finished, ended and reached

  def _refuse(self, made: Mapping[str, tuple[Any, Any]]) -> None:
    changes.refuse_others(self.workdir, made, self._config, self._waits_for_held_out)

  def compare(self, found: Mapping[str, str]) -> None:
    """Compares the files that settings name with those of the run's last start. `restore` records them.

    Args:
      found: setting → digest. Equal contents at another place are no change; other contents at the same place are one.
        "": the run has none now, which is a change if it had one. In the same way, it is one if it had none.

    Raises:
      ValueError: contents have changed that would change what is trained, without `accept_changes`.
    """
    for name, digest in found.items():
      if self._was.get(name) == digest:
        self._changes.pop(name, None)
      elif name in self._was:
        self._changes[f"{name} (its contents)"] = self._was[name], digest
    self.contents |= found
    if not self._accept_changes:
      checked = {name: pair for name, pair in self._changes.items() if name.partition(" (")[0] in found}
      self._refuse(checked)

  @property
  def base(self) -> str:
    """Fingerprint of the base's weights, which adapters are trained on; "" without adapters."""
    adapted = self._config.model.lora.rank or self._config.model.lora.path
    return self.contents.get("model.path", "").partition("+")[0] if adapted else ""

  def restore(self, state: Any) -> tuple[Any, dict[str, Any] | None]:
    """(state, host part) of the newest undamaged checkpoint; (the given state, None) for a new run.

    Also removes what later steps have logged: episodes and answers. The metrics are cut by their writer.

    Args:
      state: the initial state, before the first step; its arrays are freed before those of a checkpoint are read.
    """
    host = None
    if not self._accept_changes and hosts.is_first():  # places whose contents were not compared
      self._refuse(self._changes)
    if self._latest >= 0:
      state, host = self._read(state)
      self.restored = host["step"]
      self._say(f"{self.workdir}: going on from step {self.restored}, of at most {self._config.steps}")
      if other := versions.changed(self.workdir):
        self._say(f"{self.workdir}: {other}. From here on it goes on by these, so numbers may differ (CHANGELOG.md).")
    if hosts.is_first():
      (self.workdir / FINISHED).unlink(missing_ok=True)
      episodes.cut(self.workdir, self.restored)
      jsonl.cut_steps(self.workdir / jsonl.EVALUATIONS, self.restored)
      if self._changes:  # first: once config.json has the new settings, no later start would find a change
        changes.record(self.workdir, self.restored, self._changes)
      changes.write(self.workdir, self._config, self._objective)
      jsonl.write_text(self.workdir / changes.CONTENTS, json.dumps(self.contents, indent=1))
      versions.record(self.workdir, self.restored)
      self._say_little_room(sum(x.nbytes for x in jax.tree.leaves(state)))
    return state, host

  def _say_little_room(self, size: int) -> None:
    """Says so if the disk has no room for all checkpoints that will be kept; `size` of each, in bytes."""
    keep, every = self._config.checkpoint.keep, self._config.checkpoint.every
    there, coming = len(self.checkpoints.steps()), -(-self._config.steps // every) - (self.restored or 0) // every
    more = min(keep + 1, there + coming) - there  # the oldest is deleted when the newest is written
    if size * more > (free := shutil.disk_usage(self.workdir).free):
      self._say(
        f"{self.workdir} will hold {more} more checkpoints of {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free: "
        f"make room, or lower config.checkpoint.keep ({keep})."
      )

  def rewind(self, step: int, state: Any, why: str) -> tuple[Any, dict[str, Any]]:
    """(state, host part) of an older checkpoint, which becomes the newest: those after it are deleted. Says why.

    Raises:
      FileNotFoundError: there is no such checkpoint; the message says what can be done.
      checkpoint.Damaged: its files are damaged; nothing is deleted then.
    """
    if step not in self.checkpoints.steps():
      raise FileNotFoundError(
        f"the run has to return to the weights of step {step}, but {self.checkpoints.path(step)} does not exist: a "
        "checkpoint is kept for this only while config.guard.rollback is set. Set guard.rollback=0 with "
        f"--accept_changes to go on as it is, or begin a new run. Why it returns: {why}"
      )
    self._say(f"{self.workdir}: {why}")
    result = self._read(state, step)
    self.checkpoints.delete_after(step)
    return result

  def _read(self, state: Any, step: int | None = None) -> tuple[Any, dict[str, Any]]:
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
    jax.tree.map(lambda x: x.delete(), state)  # two copies of parameters and moments would need twice the memory
    state, host = self.checkpoints.restore(like, step)
    self._saved = host["step"]
    return state, host

  def write(self, function: Callable[..., Any], *args: Any) -> None:
    """Calls a function that writes a step's files, in the run's thread, after the last call has `written`.

    `save` waits for it, so that no checkpoint is newer than the files of its steps. So does the end of the run.
    """
    self.written()
    self.written = self.thread.submit(function, *args).result

  def save(self, step: int, state: Any, host: Mapping[str, Any], *, reached: bool = False, older: Any = None) -> None:
    """Saves a checkpoint, unless the step already has one.

    Args:
      reached: whether the run has reached its goal, so that it will not be resumed.
      older: weights of an earlier step, if the next step is sampled with them and not with the state's.

    Raises:
      lock.Held: another machine trains in this folder, too.
      OSError: the disk is full, perhaps already for what `write` has been given.
    """
    self._still_held()
    self.written()
    # The folder is not asked: on a network file system a host may see it as it was before, and would save alone.
    if self._saved != step:
      base = dict(base=self.base) if self.base else {}
      self.checkpoints.save(step, state, dict(step=step, reached=reached, **base, **host), older=older)
      self._saved = step

  def leave(self, step: int, state: Any, host: Mapping[str, Any], *, older: Any = None) -> None:
    """Saves a checkpoint because the run stops before its last step, and tells the user."""
    self.save(step, state, host, older=older)
    self._say(f"{self.workdir}: step {step} is saved; the same command goes on from it")

  def end(self, step: int, *, reached: bool) -> None:
    """Notes in finished.json that the run is done: the last checkpoint and the model are saved."""
    if hosts.is_first():
      jsonl.write_text(self.workdir / FINISHED, json.dumps(dict(step=step, reached=reached)))


def _refuse_own_folders(workdir: pathlib.Path) -> None:
  """Raises a ValueError if a host does not see the folder of the first one: checkpoints would lack its part."""
  mark = f".{secrets.token_hex(8)}"  # a new name, which no network file system has looked for yet
  if hosts.is_first():
    (workdir / mark).touch()
  file = workdir / hosts.exchange(mark)[0]
  seen = hosts.exchange(file.exists())
  if hosts.is_first():
    file.unlink()
  if not all(seen):
    raise ValueError(
      f"--workdir={workdir}: host {seen.index(False)} does not see the files of host 0 there. Every host writes its "
      "part of a checkpoint: name a folder that all hosts share."
    )


@contextlib.contextmanager
def opened(
  workdir: pathlib.Path,
  config: Settings,
  *,
  objective: str = "rl",
  waits_for_held_out: bool = False,
  resume: str = "auto",
  accept_changes: bool = False,
  say: Callable[[str], None] = print,
) -> Iterator[Run]:
  """Locks a run's folder for the length of a `with` block; with several hosts, host 0 locks it for all.

  Args:
    workdir: the folder; made if it does not exist.
    objective: the run's kind, "rl" or "sft". config.json keeps it, and it decides what may continue the run.
    waits_for_held_out: held-out questions decide when a stage begins, so their settings must not change.
    resume: "auto" resumes if there is a checkpoint; "must" refuses a folder without one; "never" refuses a folder with
      a run in it.
    accept_changes: resume even if the settings have changed; the changes are recorded.

  Raises:
    ValueError: `resume` is not one of the three, or refuses the folder; the folder holds something else than a run;
      a changed setting would change the run; or hosts have other settings, or folders of their own.
    lock.Held: another process trains there.
  """
  if resume not in RESUME:
    raise ValueError(f"resume={resume!r}: it must be one of {', '.join(RESUME)} (--resume).")
  how = dict(objective=objective, waits_for_held_out=waits_for_held_out, resume=resume, accept_changes=accept_changes)
  with contextlib.ExitStack() as stack:
    still_held = lambda: None
    if hosts.is_first():
      folders.refuse_others(workdir, folders.RUN, flag="--workdir")
      changes.refuse_model(workdir)
      still_held = stack.enter_context(lock.held(workdir))
    else:
      say = lambda text: None
    if hosts.count() > 1:
      hosts.refuse_different("config", changes.values(config))
      _refuse_own_folders(workdir)
    run = Run(workdir, config, still_held, say, stack.enter_context(concurrent.futures.ThreadPoolExecutor(1)), **how)
    stack.callback(lambda: run.written())
    yield run
