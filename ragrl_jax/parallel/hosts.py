"""Functions for jobs on several hosts: joining the job, exchanging values, and each host's own devices.

All hosts run the same loop over the same numbers. Where hosts do different work (each plays its own prompts), they
share the results by `exchange`; after that all hosts have the same values again.
"""

import json
import os
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax._src import distributed  # the only place that has the coordinator's address
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, Sharding


class Stopped(SystemExit):
  """All hosts stop at the same step because of a signal. The exit code is 128 + the signal's number."""

  def __init__(self, signal: int):
    super().__init__(128 + signal)


class Ended(RuntimeError):
  """Another host ends the run after this step because of an error of its own."""


def _with_traceback(error: BaseException) -> int:
  traceback.print_exception(error)
  return 1


class Joined:
  """Joins this process to a job of several processes, for the length of a `with` block.

  A host that fails inside the block ends the job. It prints its error and exits at once, without waiting for the
  others. JAX then ends the other hosts: in a collective operation, or after `heartbeat_s`. The same happens if a host
  is killed.

  Args:
    coordinator: "address:port" of host 0, reachable by all hosts. If this, `count` and `number` are None, the process
      is alone, or, with `automatic`, JAX asks the platform (TPU VMs, Slurm, MPI).
    automatic: let JAX find coordinator, count and number.
    wait_s: seconds to wait for all hosts to join.
    heartbeat_s: a host without a heartbeat for this many seconds counts as dead.
    tell: prints the error that ends this process for the user; returns the exit status.

  Raises:
    ValueError: arguments that do not belong together.
    TimeoutError: some hosts did not join within `wait_s`.
  """

  def __init__(
    self,
    coordinator: str | None = None,
    count: int | None = None,
    number: int | None = None,
    *,
    automatic: bool = False,
    wait_s: int = 300,
    heartbeat_s: int = 100,
    tell: Callable[[BaseException], int] = _with_traceback,
  ):
    given = [x is not None for x in (coordinator, count, number)]
    if any(given) and (automatic or not all(given)):
      raise ValueError(
        f"coordinator={coordinator!r}, num_processes={count}, process_id={number}, distributed={automatic}: give the "
        "first three together, or distributed alone for machines that JAX can ask, or none on a single host."
      )
    if all(given) and not 0 <= number < count:
      raise ValueError(f"process_id={number} with num_processes={count}: it must be in 0 … {count - 1}.")
    if all(given) and not coordinator.rpartition(":")[2].isdecimal():
      raise ValueError(f"coordinator={coordinator!r}: it must be ADDRESS:PORT, a free port of process 0's host.")
    self._several, self._tell = automatic or all(given), tell
    self._settings = dict(
      coordinator_address=coordinator,
      num_processes=count,
      process_id=number,
      local_device_ids=_visible(),
      initialization_timeout=wait_s,
      heartbeat_timeout_seconds=heartbeat_s,
    )

  def __enter__(self) -> "Joined":
    if not self._several:
      return self
    jax.config.update("jax_enable_preemption_service", False)  # it takes SIGTERM, also where no `Signals` wait for it
    try:
      jax.distributed.initialize(**self._settings)
    except ValueError as error:
      raise ValueError(
        f"--distributed: JAX finds no TPU slice, Slurm job or MPI job around this process ({error}) Start the command "
        "in one, or give --coordinator, --num_processes and --process_id."
      ) from error
    except jax.errors.JaxRuntimeError as error:
      found = distributed.global_state  # with what JAX has asked the platform
      raise TimeoutError(
        f"not all of the {found.num_processes} hosts joined at {found.coordinator_address} within "
        f"{self._settings['initialization_timeout']} s: start the same command on every host, with its own "
        f"--process_id if there is one. JAX says: {error}"
      ) from error
    return self

  def __exit__(self, kind, error, trace) -> None:
    if not self._several:
      return
    if error is None or isinstance(error, Stopped):
      jax.distributed.shutdown()
      return
    # A normal exit of Python would wait at JAX's shutdown barrier for hosts that wait for this one.
    status = self._tell(error)
    print(
      f"host {number()} of {count()} ends with the error above, and the job with it: start the same command on "
      "all hosts again, and it goes on from the last checkpoint.",
      file=sys.stderr,
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _visible() -> list[int] | None:
  """The GPUs of this process: [] for all, where Slurm or MPI starts one process per machine; None: JAX chooses.

  JAX would choose a single one there, since it expects a process for each GPU. Elsewhere it takes all.
  """
  told = os.environ.get
  alone = told("SLURM_NTASKS", "") == told("SLURM_STEP_NUM_NODES") or told("OMPI_COMM_WORLD_LOCAL_SIZE") == "1"
  return [] if alone and not told("JAX_LOCAL_DEVICE_IDS") else None


def count() -> int:
  """Number of hosts in this job."""
  return jax.process_count()


def number() -> int:
  """Number of this host, from 0."""
  return jax.process_index()


def is_first() -> bool:
  """Whether this is host 0, which alone writes metrics, logs and pages."""
  return jax.process_index() == 0


def exchange(value: Any) -> list[Any]:
  """Gathers one JSON value from every host, in order of the hosts; as JSON decodes it, floats bit for bit.

  All hosts must call it, in the same order among their collective operations.
  """
  return [json.loads(said) for said in exchange_bytes(json.dumps(value).encode())]


def exchange_bytes(value: bytes) -> list[bytes]:
  """`exchange` for bytes: at least one, and less than 2 GiB."""
  if count() == 1:
    return [value]
  mine = np.frombuffer(value, np.uint8)
  sizes = multihost_utils.process_allgather(np.asarray([mine.size], np.int32))[:, 0]
  room = 1 << int(sizes.max() - 1).bit_length()  # powers of two: few shapes, so few compilations
  said = multihost_utils.process_allgather(np.pad(mine, (0, room - mine.size)))
  return [row[:size].tobytes() for row, size in zip(said, sizes)]


def refuse_different(what: str, value: Any) -> None:
  """Raises a ValueError if hosts have different JSON values of `what`: all hosts must do the same with it."""
  values = exchange(value)
  if different := [number for number, other in enumerate(values) if other != values[0]]:
    raise ValueError(
      f"{what} is not the same on hosts 0 and {different[0]}: all hosts run the same command, with the same files."
    )


def count_of(mesh: Mesh | None) -> int:
  """Number of hosts whose devices are in the mesh; 1 without a mesh."""
  return 1 if mesh is None else len({device.process_index for device in mesh.devices.flat})


def address() -> str:
  """This host's address for the others: the coordinator's where it runs, else that of the interface towards it."""
  where, _, port = (distributed.global_state.coordinator_address or "").rpartition(":")
  where = where.strip("[]")  # the brackets of an IPv6 address
  if distributed.global_state.process_id == 0:  # TPUs number hosts themselves, so it may not run on host 0
    return where
  family, *_, to = socket.getaddrinfo(where, int(port), type=socket.SOCK_DGRAM)[0]
  with socket.socket(family, socket.SOCK_DGRAM) as way:
    way.connect(to)  # sends nothing, only chooses the interface
    return way.getsockname()[0]


def put(tree: Any, at: Sharding | None) -> Any:
  """A tree of host arrays on devices. Every host has the whole arrays; None is the default device."""
  if at is None or at.is_fully_addressable:
    return jax.device_put(tree, at)
  one = lambda x: x if isinstance(x, jax.Array) else jax.make_array_from_callback(x.shape, at, lambda part: x[part])
  return jax.tree.map(one, tree)


def own(tree: Any, mesh: Mesh) -> Any:
  """This host's part of arrays, as arrays over a smaller mesh of this host or of a few hosts.

  Args:
    tree: arrays over a mesh of all hosts. They must be complete on the smaller mesh's devices.
    mesh: the smaller mesh. It has its devices in the same order, and splits the arrays as the larger mesh does.
  """

  def one(x):
    here = NamedSharding(mesh, x.sharding.spec)
    return jax.make_array_from_single_device_arrays(x.shape, here, [part.data for part in x.addressable_shards])

  return jax.tree.map(one, tree)
