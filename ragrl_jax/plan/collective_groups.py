"""Finds the groups of devices of a compiled collective, and the bytes that it sends between hosts of GPUs."""

import math
import re

import numpy as np

# There are three forms. These are the same groups of four devices: {{0,2},{1,3}} lists them. [2,2]<=[2,2]T(1,0) puts
# the numbers 0 to 3 into two rows and two columns, and transposes them. mesh['a'=2,'b'=2] {'a'} names a mesh's axis.
# The mesh's devices are numbered row by row, or as device_ids=([2,2]T(1,0)) says.
MESH = re.compile(r"mesh\[(.*?)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? ?\{(.*?)\}")
FORMS = re.compile(
  r"(?:replica_groups|source_target_pairs)="
  rf"(\{{\{{.*?\}}\}}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?|{MESH.pattern})"
)
LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=(?!\{\}).{,160}")


def text(line: str) -> str:
  """The part of an instruction that lists its groups of devices; "" if all devices are one group."""
  found = FORMS.search(line) or LISTED.search(line)
  return found[0] if found else ""


def parse(line: str) -> list[list[int]]:
  """The groups of devices of a collective, as positions in the mesh; empty if the text does not list them.

  Raises:
    ValueError: the text has an unknown form.
  """
  found = FORMS.search(line)
  if not found:
    if listed := LISTED.search(line):
      raise ValueError(
        f"cannot read the groups of a collective: {listed[0]}. Add the form to plan/collective_groups.py."
      )
    return []
  if found[1].startswith("{"):
    return [_numbers(group) for group in re.findall(r"\{([\d,]+)\}", found[1])]
  if found[1].startswith("["):
    shape, _, rest = found[1].partition("<=")
    sizes, _, order = rest.partition("T")
    places = np.arange(math.prod(_numbers(sizes))).reshape(_numbers(sizes))
    return places.transpose(_numbers(order) or None).reshape(_numbers(shape)).tolist()
  return _of_mesh(found[1])


def _numbers(part: str) -> list[int]:
  return [int(number) for number in re.findall(r"\d+", part)]


def _of_mesh(form: str) -> list[list[int]]:
  """The groups along axes of a mesh."""
  found = MESH.fullmatch(form)
  assert found is not None
  mesh, rows, turned, axes = found.groups()
  sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh)}
  chosen = re.findall(r"'([^']+)'", axes)
  if ":" in axes or "device" in mesh or not set(chosen) <= set(sizes):
    raise ValueError(f"cannot read the groups of a collective: {form}. Add the form to plan/collective_groups.py.")
  order = [list(sizes).index(name) for name in (*(name for name in sizes if name not in chosen), *chosen)]
  places = np.arange(math.prod(sizes.values()))
  if rows:
    places = places.reshape(_numbers(rows)).transpose(_numbers(turned or "") or None)
  places = places.reshape(list(sizes.values())).transpose(order)
  return places.reshape(-1, math.prod(sizes[name] for name in chosen)).tolist()


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
  for group in parse(line) or [list(range(devices))]:
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
