"""Checkpoints: arrays by Orbax, everything of the host as JSON beside them. Nothing is ever unpickled.

    folder/<step>/state/   the arrays (params, optimiser, step, rng), each device's part written by its host
    folder/<step>/host/    one JSON object: data cursor, curriculum, config, episodes sampled but not yet trained on

A step's folder gets its name only when everything in it lies on the disk, so that a kill at any moment leaves either
the whole checkpoint or an unfinished folder, which nobody takes for one and the next run removes. In the same way an
old step's folder loses its name before anything in it is deleted.
"""

import math
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp

DELETED = "deleted"  # where old steps are renamed to, so that none is ever half there


class Checkpoints:
  """The checkpoints of one run, the newest `keep` of them."""

  def __init__(self, folder: str | pathlib.Path, keep: int, *, read_only: bool = False):
    """Opens the folder, makes it if need be, and has what a killed run left unfinished removed before the next save.

    Args:
      folder: of one run's checkpoints, seen by all its hosts.
      keep: how many stay.
      read_only: for whoever only looks, perhaps while the run goes on: nothing is made or removed.

    Raises:
      ValueError: keep below 1.
      FileNotFoundError: read_only, and there is no such folder.
    """
    if keep < 1:
      raise ValueError(f"keep={keep}: at least one checkpoint has to be kept (config.checkpoint.keep).")
    self.folder = pathlib.Path(folder).absolute()
    self._read_only = read_only
    if read_only and not self.folder.is_dir():
      raise FileNotFoundError(f"no folder {self.folder}: give a run's checkpoints/.")
    writing = dict(max_to_keep=keep, create=True, cleanup_tmp_directories=True, todelete_subdir=DELETED)
    self._manager = ocp.CheckpointManager(
      self.folder, item_handlers=dict(state=ocp.StandardCheckpointHandler(), host=ocp.JsonCheckpointHandler()),
      options=ocp.CheckpointManagerOptions(
        enable_async_checkpointing=False, **(dict(read_only=True, create=False) if read_only else writing)))

  def save(self, step: int, state: Any, host: Mapping[str, Any]) -> pathlib.Path:
    """Writes both; returns where when all of it lies on the disk. Older checkpoints than the newest `keep` go.

    Args:
      step: its name; saving a step that is already there is an error.
      state: a pytree of arrays (a TrainState).
      host: what JSON can hold, and nothing else: floats come back bit for bit, tuples as lists.

    Raises:
      ValueError: read-only, or the step exists, or `host` holds what JSON cannot (the message says where).
    """
    if self._read_only:
      raise ValueError(f"{self.folder} was opened read-only: nothing is saved there.")
    _check_json(host, "host")
    if step in self._manager.all_steps():
      raise ValueError(f"checkpoint {self.path(step)} exists: a step is saved once; remove it or use another workdir.")
    self._manager.save(step, args=ocp.args.Composite(
      state=ocp.args.StandardSave(state), host=ocp.args.JsonSave(dict(host))))
    self._manager.wait_until_finished()
    if jax.process_index() == 0:
      shutil.rmtree(self.folder / DELETED, ignore_errors=True)
    return self.path(step)

  def restore(self, like: Any, step: int | None = None) -> tuple[Any, dict[str, Any]]:
    """(state, host) of a step, the newest if None.

    Args:
      like: a pytree of arrays or ShapeDtypeStructs: the structure, and with it the shapes, dtypes and shardings the
        state is restored to. Another mesh than the one it was saved from will do.
      step: which.

    Raises:
      FileNotFoundError: no such checkpoint.
      ValueError: the checkpoint holds another model: the message names the first array that differs.
    """
    wanted = self.latest() if step is None else step
    if wanted is None or wanted not in self._manager.all_steps():
      raise FileNotFoundError(
        f"no checkpoint {'at all' if wanted is None else wanted} in {self.folder}; there are {self.steps() or 'none'}.")
    self._check_shapes(wanted, like)
    shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None))
    found = self._manager.restore(wanted, args=ocp.args.Composite(
      state=ocp.args.StandardRestore(jax.tree.map(shape, like)), host=ocp.args.JsonRestore()))
    return found["state"], found["host"]

  def host(self, step: int | None = None) -> dict[str, Any]:
    """Only the JSON part: what a report or a restart wants to know before any array is read."""
    wanted = self.latest() if step is None else step
    if wanted is None or wanted not in self._manager.all_steps():
      raise FileNotFoundError(f"no checkpoint {wanted} in {self.folder}; there are {self.steps() or 'none'}.")
    return self._manager.restore(wanted, args=ocp.args.Composite(host=ocp.args.JsonRestore()))["host"]

  def latest(self) -> int | None:
    """The newest complete checkpoint's step, None if there is none."""
    return self._manager.latest_step()

  def steps(self) -> list[int]:
    """Steps of all complete checkpoints, oldest first."""
    return sorted(self._manager.all_steps())

  def path(self, step: int) -> pathlib.Path:
    return self.folder / str(step)

  def close(self) -> None:
    self._manager.close()

  def _check_shapes(self, step: int, like: Any) -> None:
    saved = self._manager.item_metadata(step)["state"].tree
    saved = {_key(path): tuple(x.shape) for path, x in jax.tree_util.tree_leaves_with_path(saved)}
    asked = {_key(path): tuple(x.shape) for path, x in jax.tree_util.tree_leaves_with_path(like)}
    for name in sorted(saved.keys() | asked.keys()):
      if saved.get(name) != asked.get(name):
        raise ValueError(
          f"{self.path(step)}: array {name} has shape {saved.get(name, 'nowhere')} there and "
          f"{asked.get(name, 'nowhere')} in this run: config.model, config.optimizer or the parameters that are "
          "trained have changed. Start from the config.json beside it, or in a new workdir.")


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
