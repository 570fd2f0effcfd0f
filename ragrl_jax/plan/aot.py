"""Compiles programs ahead of time for devices that this machine lacks. Reads the traffic from the compiled text.

libtpu (the extra `tpu`) contains the whole compiler and needs no TPU. It lowers kernels, and refuses programs that do
not fit into memory. GPUs: see `plan/gpus.py`.
"""

import dataclasses
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies

from ragrl_jax.plan import gpus

COLLECTIVES = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
# libtpu reads these when it is loaded: no request to a metadata server, no lock between processes, no log files.
SETTINGS = dict(
  TPU_SKIP_MDS_QUERY="1",
  ALLOW_MULTIPLE_LIBTPU_LOAD="1",
  TPU_LOG_DIR="disabled",
  TPU_ACCELERATOR_TYPE="v5litepod-8",
  TPU_WORKER_HOSTNAMES="localhost",
)
BITS = dict(pred=8, s4=4, u4=4, bf16=16)  # bits of an element; other types have the number in their name


def devices(topology: str, slices: int = 1) -> list[jax.Device]:
  """Devices of a topology, such as "v5e:2x4", "v5p:4x4x4" or "h200:2x8", to make a mesh of and compile for.

  Raises:
    gpus.CompilerMissing: the compiler is not installed.
    ValueError: the compiler does not know the topology.
  """
  if gpus.is_gpu(topology):
    if slices != 1:
      raise ValueError(f"{slices} slices of {topology!r}: GPUs have no slices; h200:2x8 is two hosts of eight GPUs.")
    return gpus.devices(topology)
  for name, value in SETTINGS.items():
    os.environ.setdefault(name, value)
  try:
    description = topologies.get_topology_desc(
      platform="tpu", topology_name=topology, **({} if slices == 1 else dict(num_slices=slices))
    )
  except jax.errors.JaxRuntimeError as error:
    raise ValueError(
      f"topology {topology!r} with {slices} slices: libtpu does not know it. Names look like v5e:2x4, v6e:16x16 "
      "or v5p:4x4x4."
    ) from error
  except (ImportError, FileNotFoundError, RuntimeError) as error:
    raise gpus.CompilerMissing("compiling for TPUs needs libtpu: pip install 'ragrl_jax[tpu]'.") from error
  return list(description.devices)


def refused(error: jax.errors.JaxRuntimeError) -> str:
  """Why the compiler refuses a program that does not fit into memory, in one line. Raises any other error again."""
  if "RESOURCE_EXHAUSTED" not in str(error):
    raise error
  return " ".join(str(error).split())[:400]


def of_hosts(topology: str, hosts: int = 1) -> str:
  """The topology of `hosts` hosts of this topology: "v5e:2x2", "v5p:2x2x1", "h200:8". A TPU host is one of libtpu's.

  Args:
    hosts: number of hosts; a power of two on TPUs. Their chips form a block that is as compact as possible.
  """
  kind, _, sizes = topology.partition(":")
  if gpus.is_gpu(topology):
    return f"{kind}:{f'{hosts}x' * (hosts > 1)}{gpus.hosts(topology)[1]}"
  shape = [2, 2] + [1] * (sizes.count("x") - 1)
  while math.prod(shape) < 4 * hosts:
    shape[max(place for place, size in enumerate(shape) if size == min(shape))] *= 2  # 2x2, 2x4, 4x4; 2x2x1, 2x2x2
  return f"{kind}:{'x'.join(map(str, shape))}"


@dataclasses.dataclass(frozen=True)
class Collective:
  """One instruction that moves data between devices.

  Attributes:
    kind: one of COLLECTIVES.
    size: number of elements of its largest array, on one device.
    bytes: bytes of its arguments or of its results, whichever are more; one instruction may move several arrays.
    times: number of executions per call of the program, iterations of loops included. Both branches of a condition
      count.
    loops: number of loops that contain it.
    groups: the text that lists the groups of devices that exchange data; see `plan/aot.py`.
  """

  kind: str
  size: int
  bytes: int
  times: int
  loops: int
  groups: str = dataclasses.field(default="", compare=False)


def collectives(text: str) -> list[Collective]:
  """All collectives of a compiled program, from `Compiled.as_text()`. A loop without a known count counts once."""
  bodies, entry = computations(text)
  fused = {name for lines in bodies.values() for line in lines if " fusion(" in line for name in called(line)}
  result = {}
  for place, (name, line, times, loops) in enumerate(walk(bodies, entry)):
    if match := re.search(rf"= (.*?) ({'|'.join(COLLECTIVES)})(-start)?\(", line):
      kind, (size, size_sent) = match[2], _moved(match, line)
      # On TPUs a collective that overlaps several fusions is listed in each of them, with the same channel. If it
      # overlaps a whole loop, it is listed in the loop too, but starts once.
      channel = re.search(r"channel_id=(\d+)", line) if name in fused else None
      key = (kind, channel[1]) if channel else place
      item = Collective(kind, size, size_sent, times, loops, group_text(line))
      result[key] = min(item, result.get(key, item), key=lambda c: c.times)
  return list(result.values())


def measured(compiled: Any, traffic: Iterable[Collective]) -> dict[str, Any]:
  """The fields of a `Program` about memory and traffic; `traffic` are the collectives of the compiled program."""
  memory, kinds, bytes_of = compiled.memory_analysis(), {}, 0
  for collective in traffic:
    kinds[collective.kind] = kinds.get(collective.kind, 0) + collective.times
    bytes_of += collective.bytes * collective.times
  return dict(
    temporaries=memory.temp_size_in_bytes, peak=memory.peak_memory_in_bytes, sent=float(bytes_of), collectives=kinds
  )


def between_slices(text: str) -> int:
  """Bytes that a chip sends or receives (the larger number) over the data centre's network in a call, with loops.

  libtpu splits a collective over several slices into one within each slice, and a `send` and `recv` between slices.
  """
  bodies, entry = computations(text)
  bytes_sent = dict.fromkeys(("send", "recv"), 0)
  for _, line, times, _ in walk(bodies, entry):
    if "xla_megascale" in line and (match := re.search(r"= \((\w+\[[\d,]*\]).*? (send|recv)\(", line)):
      [(size, width)] = arrays(match[1])
      bytes_sent[match[2]] += size * width // 8 * times
  return max(bytes_sent.values())


def _moved(match: re.Match, line: str) -> tuple[int, int]:
  """(elements of the largest array, bytes of all arguments or of all results) of a collective.

  An instruction's type lists its results: `(f32[8], f32[4])` are two. The type of one that starts lists arguments and
  results: `((f32[1], f32[2]), (f32[8], f32[16]))`, or `(f32[1], f32[8], u32[])` with a number for the compiler's own
  use. An all-reduce that starts lists its results only.
  """
  types, kind, starts = match.groups()
  arrays_listed = arrays(types)
  both = bool(starts) and kind != "all-reduce" and len(arrays_listed) > 1
  if both:
    arrays_listed = [array for array in arrays_listed if array[0] > 1] or arrays_listed
  half = len(arrays_listed) // 2 if both else 0
  # The type of a reduce-scatter that does not start lists its results, which are smaller than its arguments.
  times = max(map(len, parse_groups(line)), default=1) if kind == "reduce-scatter" and not both else 1
  size_of = lambda side: sum(size * width // 8 for size, width in side)
  return max(arrays_listed)[0] * times, max(size_of(arrays_listed[:half]), size_of(arrays_listed[half:])) * times


def walk(bodies: Mapping[str, list[str]], name: str, times: int = 1, loops: int = 0) -> Iterator[tuple]:
  """(computation, line, executions per call, number of loops) of all lines that `name` runs, also inside fusions."""
  for line in bodies[name]:
    yield name, line, times, loops
    if re.search(r"\bwhile\(", line):
      yield from walk(bodies, re.search(r"body=%?([\w.\-]+)", line)[1], times * (trips(bodies, line) or 1), loops + 1)
    else:
      for other in called(line):
        yield from walk(bodies, other, times, loops)


def trips(bodies: Mapping[str, list[str]], line: str) -> int | None:
  """Number of iterations of a loop: its known trip count, or from a condition `i < constant`; None without either."""
  if match := re.search(r"known_trip_count\W+n\W+(\d+)", line):
    return int(match[1])
  condition = "\n".join(bodies[re.search(r"condition=%?([\w.\-]+)", line)[1]])
  root = re.search(r"ROOT .*compare\(%?[\w.\-]+, %?([\w.\-]+)\), direction=LT", condition)
  bound = root and re.search(rf"%?{re.escape(root[1])} = s32\[\]\S* constant\((\d+)\)", condition)
  return int(bound[1]) if bound else None


def called(line: str) -> list[str]:
  """Names of the computations that an instruction runs: both branches of a condition, but no body of a loop."""
  result = re.findall(r"(?:calls|true_computation|false_computation|to_apply)=%?([\w.\-]+)", line)
  return result + re.findall(r"%?([\w.\-]+)", " ".join(re.findall(r"branch_computations=\{(.*?)\}", line)))


def computations(text: str) -> tuple[dict[str, list[str]], str]:
  """(lines of each computation, name of the entry computation)."""
  bodies, name, entry = {}, "", ""
  for line in text.splitlines():
    if match := re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{$", line):
      name = match[2]
      bodies[name] = []
      entry = name if match[1] else entry
    elif name:
      bodies[name].append(line)
  return bodies, entry


def arrays(types: str) -> list[tuple[int, int]]:
  """(number of elements, bits per element) of every array in a type."""
  return [
    (math.prod(int(n) for n in sizes.split(",") if n), BITS.get(kind) or int(re.search(r"\d+", kind)[0]))
    for kind, sizes in re.findall(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,]*)\]", types)
  ]


def on_chip(tree: Any) -> int:
  """Bytes on one chip of a tree of arrays or ShapeDtypeStructs with shardings."""
  return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


# There are three forms. These are the same groups of four devices: {{0,2},{1,3}} lists them. [2,2]<=[2,2]T(1,0) puts
# the numbers 0 to 3 into two rows and two columns, and transposes them. mesh['a'=2,'b'=2] {'a'} names a mesh's axis.
# The mesh's devices are numbered row by row, or as device_ids=([2,2]T(1,0)) says.
MESH = re.compile(r"mesh\[(.*?)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? ?\{(.*?)\}")
FORMS = re.compile(
  r"(?:replica_groups|source_target_pairs)="
  rf"(\{{\{{.*?\}}\}}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?|{MESH.pattern})"
)
LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=(?!\{\}).{,160}")


def group_text(line: str) -> str:
  """The part of an instruction that lists its groups of devices; "" if all devices are one group."""
  match = FORMS.search(line) or LISTED.search(line)
  return match[0] if match else ""


def parse_groups(line: str) -> list[list[int]]:
  """The groups of devices of a collective, as positions in the mesh; empty if the text does not list them.

  Raises:
    ValueError: the text has an unknown form.
  """
  match = FORMS.search(line)
  if not match:
    if listed := LISTED.search(line):
      raise ValueError(f"cannot read the groups of a collective: {listed[0]}. Add the form to plan/aot.py.")
    return []
  if match[1].startswith("{"):
    return [_numbers(group) for group in re.findall(r"\{([\d,]+)\}", match[1])]
  if match[1].startswith("["):
    shape, _, rest = match[1].partition("<=")
    sizes, _, order = rest.partition("T")
    places = np.arange(math.prod(_numbers(sizes))).reshape(_numbers(sizes))
    return places.transpose(_numbers(order) or None).reshape(_numbers(shape)).tolist()
  return _of_mesh(match[1])


def _numbers(part: str) -> list[int]:
  return [int(number) for number in re.findall(r"\d+", part)]


def _of_mesh(form: str) -> list[list[int]]:
  """The groups along axes of a mesh."""
  match = MESH.fullmatch(form)
  assert match is not None
  mesh, rows, turned, axes = match.groups()
  sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh)}
  names = re.findall(r"'([^']+)'", axes)
  if ":" in axes or "device" in mesh or not set(names) <= set(sizes):
    raise ValueError(f"cannot read the groups of a collective: {form}. Add the form to plan/aot.py.")
  order = [list(sizes).index(name) for name in (*(name for name in sizes if name not in names), *names)]
  places = np.arange(math.prod(sizes.values()))
  if rows:
    places = places.reshape(_numbers(rows)).transpose(_numbers(turned or "") or None)
  places = places.reshape(list(sizes.values())).transpose(order)
  return places.reshape(-1, math.prod(sizes[name] for name in names)).tolist()


def between_hosts(kind: str, size: float, line: str, each: int, devices: int) -> float:
  """Bytes that a GPU sends over the network in one execution of a collective; 0 if it stays within hosts.

  The GPUs of a host share the traffic: each receives a part by its own adapter, and passes it on by NVLink. If h hosts
  with g GPUs each gather an array of n bytes, a GPU receives n · (h - 1) / h / g over the network.

  Args:
    kind: one of `aot.COLLECTIVES`.
    size: bytes of the gathered, scattered, summed or exchanged array on one GPU.
    line: the text that lists the groups of devices.
    each: number of GPUs per host. The mesh's devices are in the order of the hosts.
    devices: number of GPUs of the mesh, which are one group if the text lists none.
  """
  most = 0.0
  for group in parse_groups(line) or [list(range(devices))]:
    members = [place // each for place in group]
    hosts = len(set(members))
    if hosts == 1:
      continue
    share = (hosts - 1) / hosts / max(map(members.count, members))
    parts = {
      "all-reduce": 2 * share,  # scattered, then gathered
      "all-to-all": (hosts - 1) / hosts,  # every GPU has its own data for every other
      "collective-permute": 1.0,
    }
    most = max(most, size * parts.get(kind, share))
  return most
