"""Checkpoints: arrays by Orbax, everything of the host as JSON beside them. Nothing is ever unpickled.

    folder/<step>/state/       the arrays (params, optimiser, step, rng), each device's part written by its host
    folder/<step>/host.json    one JSON object: data cursor, curriculum, episodes sampled but not yet trained on
    folder/<step>/SHA256SUMS   of all these files: what `sha256sum --check` reads, and `restore` before any of them

A step's folder gets its name only when everything in it lies on the disk, so that a kill at any moment leaves either
the whole checkpoint or an unfinished folder, which nobody takes for one and the next save removes. In the same way an
old step's folder loses its name before anything in it is deleted.
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
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from ragrl_jax.store import sums

UNFINISHED, DELETED, DAMAGED = ".tmp", ".deleted", ".damaged"  # after a step's number: it is no checkpoint


class Damaged(ValueError):
  """A checkpoint's files are not those that were saved."""


class Checkpoints:
  """The checkpoints of one run, the newest `keep` of them."""

  def __init__(self, folder: str | pathlib.Path, keep: int, *, read_only: bool = False):
    """Opens the folder, makes it if need be, and has what a killed run left unfinished removed before the next save.

    Args:
      folder: of one run's checkpoints, seen by all its hosts.
      keep: how many stay.
      read_only: for whoever only looks, perhaps while the run goes on: nothing is made, moved or removed.

    Raises:
      ValueError: keep below 1.
      FileNotFoundError: read_only, and there is no such folder.
    """
    if keep < 1:
      raise ValueError(f"keep={keep}: at least one checkpoint has to be kept (config.checkpoint.keep).")
    self.folder = pathlib.Path(folder).absolute()
    self._keep, self._read_only = keep, read_only
    if read_only and not self.folder.is_dir():
      raise FileNotFoundError(f"no folder {self.folder}: give a run's checkpoints/.")
    if not read_only:
      self.folder.mkdir(parents=True, exist_ok=True)
    self._arrays = ocp.Checkpointer(ocp.StandardCheckpointHandler())

  def save(self, step: int, state: Any, host: Mapping[str, Any]) -> pathlib.Path:
    """Writes both; returns where when all of it lies on the disk. Older checkpoints than the newest `keep` go.

    Args:
      step: its name; saving a step that is already there is an error.
      state: a pytree of arrays (a TrainState).
      host: what JSON can hold, and nothing else: floats come back bit for bit, tuples as lists.

    Raises:
      ValueError: read-only, or the step exists, or `host` holds what JSON cannot (the message says where).
      OSError: the disk took it not, being full, say. Older checkpoints are whole.
    """
    if self._read_only:
      raise ValueError(f"{self.folder} was opened read-only: nothing is saved there.")
    _check_json(host, "host")
    if step in self.steps():
      raise ValueError(f"checkpoint {self.path(step)} exists: a step is saved once; remove it or use another workdir.")
    part = self.folder / f"{step}{UNFINISHED}"
    with self._writing(step):
      if is_first():
        self._remove_what_is_no_step()
      with _quiet():
        self._arrays.save(part / "state", args=ocp.args.StandardSave(state))  # waits for all hosts
      if is_first():
        (part / "host.json").write_text(json.dumps(dict(host), allow_nan=False), encoding="ascii")
        _to_disk(part / "host.json")
        sums.write(part)
        _to_disk(part)
        part.rename(self.path(step))
        _to_disk(self.folder)
        for old in self.steps()[: -self._keep]:
          self.path(old).rename(self.folder / f"{old}{DELETED}")
        self._remove_what_is_no_step()
    multihost_utils.sync_global_devices("checkpoint")
    return self.path(step)

  def restore(self, like: Any, step: int | None = None) -> tuple[Any, dict[str, Any]]:
    """(state, host) of a step; if None, of the newest one whose files are those that were saved.

    Newer ones that are damaged are set aside, with a warning that names the file: their steps will be saved again.

    Args:
      like: a pytree of arrays or ShapeDtypeStructs: the structure, and with it the shapes, dtypes and shardings the
        state is restored to. Another mesh than the one it was saved from will do.
      step: which.

    Raises:
      FileNotFoundError: no such checkpoint.
      Damaged: its files are not those that were saved; or, without a step, those of no checkpoint are.
      ValueError: the checkpoint holds another model: the message names the first array that differs.
    """
    wanted = self._sound([self._there(step)] if step is not None else self.steps()[::-1])
    self._check_shapes(wanted, like)
    shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None))
    state = self._arrays.restore(self.path(wanted) / "state", args=ocp.args.StandardRestore(jax.tree.map(shape, like)))
    return state, self.host(wanted)

  def host(self, step: int | None = None) -> dict[str, Any]:
    """Only the JSON part, unchecked: what a report or a restart wants to know before any array is read."""
    path = self.path(self._there(step)) / "host.json"
    try:
      return json.loads(path.read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError) as error:
      raise Damaged(f"{path} is missing or damaged ({error}).") from error

  def latest(self) -> int | None:
    """The newest complete checkpoint's step, None if there is none."""
    return max(self.steps(), default=None)

  def steps(self) -> list[int]:
    """Steps of all complete checkpoints, oldest first."""
    return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdecimal() and path.is_dir())

  def path(self, step: int) -> pathlib.Path:
    return self.folder / str(step)

  def close(self) -> None:
    self._arrays.close()

  def _there(self, step: int | None) -> int:
    wanted = self.latest() if step is None else step
    if wanted is None or wanted not in self.steps():
      raise FileNotFoundError(
        f"no checkpoint {'at all' if wanted is None else wanted} in {self.folder}; there are {self.steps() or 'none'}."
      )
    return wanted

  def _sound(self, steps: list[int]) -> int:
    """The first of these steps that is sound, as the first host finds it; the damaged ones before it are set aside."""
    if not steps:
      self._there(None)
    found = {}
    if is_first():
      for step in steps:
        found[step] = sums.damage(self.path(step))
        if not found[step]:
          break
    sound = next((step for step, damage in found.items() if not damage), -1)
    sound = int(multihost_utils.broadcast_one_to_all(np.int32(sound)))
    said = "; ".join(f"{self.path(step)}: {damage}" for step, damage in found.items() if damage)
    if sound < 0:
      others = [step for step in self.steps() if step not in steps]
      raise Damaged(
        f"no sound checkpoint: {said or 'see host 0'}. "
        + (f"Others: {others}." if others else "Put the files back, or start in a new workdir.")
      )
    if said and not self._read_only:
      for step in (step for step, damage in found.items() if damage):
        aside = self.folder / f"{step}{DAMAGED}"
        shutil.rmtree(aside, ignore_errors=True)
        self.path(step).rename(aside)
    if said:
      warnings.warn(
        f"damaged checkpoint {said}. Step {sound} is sound and taken instead; what is damaged is kept as "
        f"STEP{DAMAGED}.",
        stacklevel=3,
      )
    return sound

  @contextlib.contextmanager
  def _writing(self, step: int):
    """Makes one line of what Orbax or the system says of a disk that takes no more, and leaves nothing half-written."""
    try:
      yield
    except Exception as error:
      if is_first():
        shutil.rmtree(self.folder / f"{step}{UNFINISHED}", ignore_errors=True)
      number = error.errno if isinstance(error, OSError) else _errno(error)
      if number is None:
        raise
      free = shutil.disk_usage(self.folder).free / 1e6
      raise OSError(
        number,
        (
          f"checkpoint {step} could not be written: {os.strerror(number)} ({free:,.0f} MB are free). Make room, then "
          f"start the same command again: it goes on from step {self.latest() or 0}"
        ),
        str(self.folder),
      ) from None

  def _remove_what_is_no_step(self) -> None:
    for path in self.folder.iterdir():
      if re.fullmatch(rf"\d+(\{UNFINISHED}|\{DELETED}|\.orbax-checkpoint-tmp.*)", path.name):
        shutil.rmtree(path, ignore_errors=True)

  def _check_shapes(self, step: int, like: Any) -> None:
    saved = self._arrays.metadata(self.path(step) / "state").item_metadata.tree
    saved = {_key(path): tuple(x.shape) for path, x in jax.tree_util.tree_leaves_with_path(saved)}
    asked = {_key(path): tuple(x.shape) for path, x in jax.tree_util.tree_leaves_with_path(like)}
    for name in sorted(saved.keys() | asked.keys()):
      if saved.get(name) != asked.get(name):
        raise ValueError(
          f"{self.path(step)}: array {name} has shape {saved.get(name, 'nowhere')} there and "
          f"{asked.get(name, 'nowhere')} in this run: config.model, config.optimizer or the parameters that are "
          "trained have changed. Start from the config.json beside it, or in a new workdir."
        )


def refuse_damaged(path: str | os.PathLike) -> None:
  """For whoever reads RUN/checkpoints/STEP without a Checkpoints.

  Raises:
    Damaged: its files are not those that were saved.
  """
  if damage := sums.damage(path):
    raise Damaged(f"{path}: {damage}. Take an older checkpoint.")


def is_first() -> bool:
  return jax.process_index() == 0


def _to_disk(path: pathlib.Path) -> None:
  """Waits until a file, or a folder's list of names, lies on the disk."""
  handle = os.open(path, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)


@contextlib.contextmanager
def _quiet():
  """Keeps Orbax from logging the traces of what it raises anyway, hundreds of lines of them.

  When one write fails, tensorstore's others still end, in threads of its own, and find Orbax's event loop closed. They
  say so through the hook for what nobody can catch, also after this: it stays changed then, until the run that cannot
  save has ended.
  """
  logger, hook = logging.getLogger("absl"), sys.unraisablehook
  level = logger.level
  late = lambda told: told.exc_type is RuntimeError and "Event loop is closed" in str(told.exc_value)
  sys.unraisablehook = lambda told: None if late(told) else hook(told)
  logger.setLevel(logging.CRITICAL)
  try:
    yield
    sys.unraisablehook = hook
  finally:
    logger.setLevel(level)


def _errno(error: Exception) -> int | None:
  """The system's error number in what tensorstore says; None without one."""
  found = re.search(r"os_error_code='(\d+)'", str(error))
  return int(found[1]) if found else None


def _key(path) -> str:
  """A path by its names alone: what is an attribute here is a dictionary's key in the checkpoint."""
  return "/".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path)


def _check_json(value: Any, where: str) -> None:
  if value is None or isinstance(value, (bool, int, str)):
    return
  if isinstance(value, float):
    if not math.isfinite(value):
      raise ValueError(f"{where}={value}: JSON has no such number; store None or a string.")
    return
  if isinstance(value, Mapping):
    for name, item in value.items():
      if not isinstance(name, str):
        raise ValueError(f"{where} has the key {name!r}: keys must be strings.")
      _check_json(item, f"{where}.{name}")
    return
  if isinstance(value, (list, tuple)):
    for number, item in enumerate(value):
      _check_json(item, f"{where}[{number}]")
    return
  raise ValueError(f"{where} is a {type(value).__name__}: a checkpoint's host part holds JSON, store plain values.")
