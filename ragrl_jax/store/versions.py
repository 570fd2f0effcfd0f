"""Records the code and the devices of a training run: a line of versions.jsonl for every start."""

import functools
import importlib.metadata
import json
import pathlib
import platform
import subprocess
import time
from typing import Any

import jax

import ragrl_jax
from ragrl_jax.parallel import cores
from ragrl_jax.store import jsonl

FILE = "versions.jsonl"
PACKAGES = ("flax", "optax", "orbax-checkpoint", "transformers")  # beside JAX, what computes or reads a run's files


def record(workdir: pathlib.Path, restored: int | None) -> None:
  """Appends a line about this start; a new run begins with an empty file.

  Args:
    restored: the step that was restored; None for a new run.
  """
  path = workdir / FILE
  jsonl.repair(path, keep=lambda row: restored is not None)
  row = dict(step=restored or 0, time=round(time.time(), 3), **_present())
  with open(path, "a", encoding="utf-8", newline="\n") as file:
    file.write(jsonl.line(row))


def changed(workdir: pathlib.Path) -> str:
  """What is other than at the run's last start, in words: "jax was 0.10.2, is 0.12.0"; "" if nothing is known to be."""
  last = (read(workdir) or [{}])[-1]
  pairs = {name: (last.get(name), value) for name, value in _present().items()}
  return "; ".join(f"{name} was {was}, is {now}" for name, (was, now) in pairs.items() if was and was != now)


def _present() -> dict[str, Any]:
  """What a line records of the process."""
  packages = {name: importlib.metadata.version(name) for name in PACKAGES}
  threads = cores.threads() if jax.default_backend() == "cpu" else None  # a CPU splits its sums by them
  machine = dict(python=platform.python_version(), devices=devices(), threads=threads)
  return library() | dict(jax=jax.__version__, **packages, **machine)


def devices() -> str:
  """The devices of all hosts, such as "8 x TPU v6e"."""
  all_devices = jax.devices()
  return f"{len(all_devices)} x {all_devices[0].device_kind}"


def read(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """The lines of a run; [] before the first start."""
  path = workdir / FILE
  return list(jsonl.read(path, torn_end=True)) if path.exists() else []


def library() -> dict[str, str | None]:
  """{"ragrl_jax": its version, "commit": its commit, with "-dirty" if the checkout has changes; None if unknown}."""
  return {"ragrl_jax": ragrl_jax.__version__, "commit": _checkout() or _installed()}


@functools.cache  # git takes a while, and a resumed run asks twice
def _checkout() -> str | None:
  root = pathlib.Path(ragrl_jax.__file__).resolve().parents[1]
  if not (root / ".git").exists():  # an installed package may lie in the checkout of another project
    return None
  command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
  try:
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip() or None
  except (OSError, subprocess.SubprocessError):  # git is missing, or refuses the folder
    return None


def _installed() -> str | None:
  """The commit of `pip install git+…`, which pip records; None after another installation."""
  try:
    noted = importlib.metadata.distribution("ragrl_jax").read_text("direct_url.json")
  except importlib.metadata.PackageNotFoundError:
    return None
  return (json.loads(noted).get("vcs_info") or {}).get("commit_id") if noted else None
