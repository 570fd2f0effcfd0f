"""Checkpoints: Orbax stores the arrays, a JSON file the host's state. Nothing is ever unpickled.

    folder/<step>/state/       the arrays (params, optimiser, step, rng), each device's part written by its host
    folder/<step>/host.json    one JSON object: data cursor, curriculum, episodes sampled but not yet trained on
    folder/<step>/SHA256SUMS   checksums of all these files, for `sha256sum --check`; `restore` checks them first

A step's folder gets its name only when all its files are on the disk. So a kill at any moment leaves either a whole
checkpoint or an unfinished folder. An unfinished folder is never read, and the next save removes it. In the same way,
an old step's folder is renamed before any of its files is deleted.
"""

import contextlib
import json
import logging
import math
import os
import pathlib
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from ragrl_jax.parallel import hosts
from ragrl_jax.store import malloc, sums

UNFINISHED, DELETED, DAMAGED = ".tmp", ".deleted", ".damaged"  # suffixes of a step's folder that is not a checkpoint
STALE = "stale"  # folder, in a checkpoint, of the older weights that the next step is sampled with


class Damaged(ValueError):
  """A checkpoint's files differ from those that were saved."""


class Checkpoints:
  """The checkpoints of one run. Only the newest `keep` of them are kept.

  Attributes:
    folder: of all of them.
    spared: steps of further ones that are kept, if they are there.
  """

  def __init__(self, folder: str | pathlib.Path, keep: int, *, read_only: bool = False):
    """Opens the folder, and makes it if need be. The next save removes what a killed run left unfinished.

    Args:
      folder: the folder of one run's checkpoints, visible to all its hosts.
      read_only: only read, perhaps while the run goes on: nothing is made, moved or removed.

    Raises:
      FileNotFoundError: read_only, and there is no such folder.
    """
    self.folder = pathlib.Path(folder).absolute()
    self.spared, self._keep, self._read_only = (), keep, read_only
    if read_only and not self.folder.is_dir():
      raise FileNotFoundError(f"no folder {self.folder}: give a run's checkpoints/.")
    if not read_only:
      self.folder.mkdir(parents=True, exist_ok=True)
    self._arrays = ocp.Checkpointer(ocp.StandardCheckpointHandler())

  def save(self, step: int, state: Any, host: Mapping[str, Any], *, older: Any = None) -> pathlib.Path:
    """Writes a checkpoint and waits until it is on the disk; then deletes all but the newest `keep` and `spared`.

    Args:
      host: JSON values only. Floats are restored bit for bit, tuples as lists.
      older: weights of an earlier step, a pytree of arrays, if the coming step is sampled with them and not with the
        state's.

    Raises:
      ValueError: opened read-only; the step exists; or `host` holds a value that JSON lacks (the message says where).
      OSError: the disk refused the write, for example because it is full. Older checkpoints stay whole.
    """
    if self._read_only:
      raise ValueError(f"{self.folder} was opened read-only: nothing is saved there.")
    _check_json(host, "host")
    if step in self.steps():
      raise ValueError(f"checkpoint {self.path(step)} exists: a step is saved once; remove it or use another workdir.")
    part = self.folder / f"{step}{UNFINISHED}"
    with self._writing(step):
      if hosts.is_first():
        self._remove_what_is_no_step()
      with _quiet():
        self._arrays.save(part / "state", args=ocp.args.StandardSave(state))  # waits for all hosts
        if older is not None:
          self._arrays.save(part / STALE, args=ocp.args.StandardSave(older))
      if hosts.is_first():
        (part / "host.json").write_text(json.dumps(dict(host), allow_nan=False), encoding="ascii")
        for path in part.rglob("*"):  # Orbax does not wait for its descriptions
          _to_disk(path)
        sums.write(part)
        _to_disk(part)
        part.rename(self.path(step))
        _to_disk(self.folder)
        self._delete(old for old in self.steps()[: -self._keep] if old not in self.spared)
    malloc.trim()  # Orbax's threads have freed their buffers by now
    multihost_utils.sync_global_devices("checkpoint")
    return self.path(step)

  def delete_after(self, step: int) -> None:
    """Deletes the checkpoints of later steps, so that this step's is the newest."""
    if hosts.is_first():
      self._delete(later for later in self.steps() if later > step)
    multihost_utils.sync_global_devices("checkpoint")

  def restore(self, like: Any, step: int | None = None) -> tuple[Any, dict[str, Any]]:
    """(state, host) of a step, or of the newest undamaged checkpoint if `step` is None.

    Newer checkpoints that are damaged are renamed, with a warning that names the file; the run saves their steps again.

    Args:
      like: a pytree of arrays or ShapeDtypeStructs: structure, shapes, dtypes and shardings of the restored state. Its
        mesh may differ from the mesh of the saved state.
      step: number of the step; None for the newest undamaged checkpoint.

    Raises:
      FileNotFoundError: no such checkpoint.
      Damaged: the files of this step are damaged; or, without a step, those of every checkpoint.
      ValueError: the checkpoint holds another model: the message names the first array that differs.
    """
    wanted = self._sound([self._there(step)] if step is not None else self.steps()[::-1])
    self._check_shapes(wanted, like)
    shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None))
    state = self._arrays.restore(self.path(wanted) / "state", args=ocp.args.StandardRestore(jax.tree.map(shape, like)))
    return state, self.host(wanted)

  def part(self, like: Any, step: int) -> Any:
    """The arrays of a step's state that `like` names; no others are read. Arguments and errors as in `restore`.

    Arrays for which `like` has no sharding are put on this process's first device.
    """
    folder = self.path(self._sound([self._there(step)])) / "state"
    self._check_shapes(step, like, whole=False)
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    place = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None) or here)
    like = jax.tree.map(place, like)
    how = dict(restore_args=ocp.checkpoint_utils.construct_restore_args(like), partial_restore=True)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
      return reader.restore(folder, args=ocp.args.PyTreeRestore(item=like, **how))

  def older_weights(self, step: int, like: Callable[[], Any]) -> Any:
    """The older weights that the coming step is sampled with; None if it is sampled with the state's.

    Args:
      step: number of the step; `restore` has checked its files.
      like: returns a pytree of arrays: structure, shapes, dtypes and shardings of the weights.
    """
    folder = self.path(step) / STALE
    return self._arrays.restore(folder, args=ocp.args.StandardRestore(like())) if folder.is_dir() else None

  def host(self, step: int | None = None) -> dict[str, Any]:
    """Only the host's JSON part, whose checksum is not checked: for reports, and for a restart before it reads arrays.

    Raises:
      FileNotFoundError: no such checkpoint.
      Damaged: host.json is missing or not JSON.
    """
    path = self.path(self._there(step)) / "host.json"
    try:
      return json.loads(path.read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError, RecursionError) as error:
      raise Damaged(f"{path} is missing or damaged ({error}).") from error

  def latest(self) -> int | None:
    """Step of the newest complete checkpoint; None if there is none."""
    return max(self.steps(), default=None)

  def steps(self) -> list[int]:
    """Steps of all complete checkpoints, oldest first."""
    return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdecimal() and path.is_dir())

  def path(self, step: int) -> pathlib.Path:
    """The folder of a step's checkpoint."""
    return self.folder / str(step)

  def close(self) -> None:
    """Closes Orbax's checkpointer."""
    self._arrays.close()

  def _there(self, step: int | None) -> int:
    number = self.latest() if step is None else step
    if number is None or number not in self.steps():
      raise FileNotFoundError(
        f"no checkpoint {'at all' if number is None else number} in {self.folder}; there are {self.steps() or 'none'}."
      )
    return number

  def _sound(self, steps: list[int]) -> int:
    """The first undamaged one of these steps, which host 0 finds for all; renames the damaged ones before it."""
    if not steps:
      self._there(None)
    sound, damages = -1, {}
    for step in steps if hosts.is_first() else ():
      if not (damage := sums.damage(self.path(step))):
        sound = step
        break
      damages[step] = damage
    sound = int(multihost_utils.broadcast_one_to_all(np.int32(sound)))
    listing = "; ".join(f"{self.path(step)}: {damage}" for step, damage in damages.items())
    if sound < 0:
      others = [step for step in self.steps() if step not in steps]
      raise Damaged(
        f"no undamaged checkpoint: {listing or 'see host 0'}. "
        + (f"Others: {others}." if others else "Put the files back, or start in a new workdir.")
      )
    if listing and not self._read_only:
      for step in damages:
        aside = self.folder / f"{step}{DAMAGED}"
        shutil.rmtree(aside, ignore_errors=True)
        self.path(step).rename(aside)
    if listing:
      warnings.warn(
        f"damaged checkpoint {listing}. Step {sound} is undamaged and used instead; damaged checkpoints are kept as "
        f"STEP{DAMAGED}.",
        stacklevel=3,
      )
    return sound

  @contextlib.contextmanager
  def _writing(self, step: int):
    """Removes the unfinished checkpoint after an error. A system's error, such as a full disk, becomes one line."""
    try:
      yield
    except Exception as error:
      if hosts.is_first():
        shutil.rmtree(self.folder / f"{step}{UNFINISHED}", ignore_errors=True)
      number = error.errno if isinstance(error, OSError) else _errno(error)
      if number is None:
        raise
      free = shutil.disk_usage(self.folder).free / 1e6
      message = (
        f"checkpoint {step} could not be written: {os.strerror(number)} ({free:,.0f} MB are free). Make room, then "
        f"start the same command again: it goes on from step {self.latest() or 0}"
      )
      raise OSError(number, message, str(self.folder)) from None

  def _delete(self, steps: Iterable[int]) -> None:
    for step in steps:
      self.path(step).rename(self.folder / f"{step}{DELETED}")
    self._remove_what_is_no_step()

  def _remove_what_is_no_step(self) -> None:
    for path in self.folder.iterdir():
      if re.fullmatch(rf"\d+(\{UNFINISHED}|\{DELETED}|\.orbax-checkpoint-tmp.*)", path.name):
        shutil.rmtree(path, ignore_errors=True)

  def _check_shapes(self, step: int, like: Any, *, whole: bool = True) -> None:
    stored = self._arrays.metadata(self.path(step) / "state").item_metadata.tree
    stored = {_key(path): tuple(x.shape) for path, x in jax.tree_util.tree_leaves_with_path(stored)}
    needed = {_key(path): tuple(x.shape) for path, x in jax.tree_util.tree_leaves_with_path(like)}
    for name in sorted(stored.keys() | needed.keys() if whole else needed.keys()):
      if stored.get(name) != needed.get(name):
        raise ValueError(
          f"{self.path(step)}: array {name} has shape {stored.get(name, 'none')} in the checkpoint and "
          f"{needed.get(name, 'none')} in this run: config.model, config.optimizer or the trained parameters have "
          "changed. Start with the run's config.json, or in a new workdir."
        )


def _to_disk(path: pathlib.Path) -> None:
  """Waits until a file, or a folder's list of names, is on the disk (fsync)."""
  handle = os.open(path, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)


@contextlib.contextmanager
def _quiet():
  """Stops Orbax from logging hundreds of lines of tracebacks for errors that it also raises.

  When one write fails, tensorstore's other writes go on in its own threads, and find Orbax's event loop closed. They
  report this through `sys.unraisablehook`, even after this block. So after a failure the hook stays changed until the
  run, which cannot save, has ended.
  """
  logger, hook = logging.getLogger("absl"), sys.unraisablehook
  level = logger.level
  late = lambda raised: raised.exc_type is RuntimeError and "Event loop is closed" in str(raised.exc_value)
  sys.unraisablehook = lambda raised: None if late(raised) else hook(raised)
  logger.setLevel(logging.CRITICAL)
  try:
    yield
    sys.unraisablehook = hook
  finally:
    logger.setLevel(level)


def _errno(error: Exception) -> int | None:
  """The system's error number in tensorstore's message; None if it has none."""
  match = re.search(r"os_error_code='(\d+)'", str(error))
  return int(match[1]) if match else None


def _key(path) -> str:
  """The names of a tree path. An attribute of the state is a dictionary key in the checkpoint, so kinds are ignored."""
  return "/".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path)


def _check_json(value: Any, where: str) -> None:
  if isinstance(value, Mapping):
    for name, item in value.items():
      if not isinstance(name, str):
        raise ValueError(f"{where} has the key {name!r}: keys must be strings.")
      _check_json(item, f"{where}.{name}")
  elif isinstance(value, list | tuple):
    for number, item in enumerate(value):
      _check_json(item, f"{where}[{number}]")
  elif isinstance(value, float) and not math.isfinite(value):
    raise ValueError(f"{where}={value}: JSON cannot hold this number; store None or a string.")
  elif not isinstance(value, bool | int | float | str | None):
    raise ValueError(f"{where} is a {type(value).__name__}: a checkpoint's host part must be JSON; store plain values.")
