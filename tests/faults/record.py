"""Reads a run's folder from outside: its steps, its checkpoints, and whether two runs made the same."""

import hashlib
import json
import pathlib
import random

import tiny_world

_hash = lambda held: hashlib.sha256(held).hexdigest()


def steps_made(workdir: pathlib.Path) -> int:
  """The step of the last complete row of metrics.jsonl."""
  path = workdir / "metrics.jsonl"
  rows = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
  return json.loads(rows[-1])["step"] if rows else 0


def mark(workdir: pathlib.Path, step: int) -> tuple[int, int]:
  """Identifies this checkpoint; a later checkpoint of the same step has another mark."""
  return step, (workdir / "checkpoints" / str(step)).stat().st_ino


def damage(workdir: pathlib.Path, how: str, rng: random.Random) -> tuple[int, int]:
  """Flips a "bit" in the newest checkpoint's files, or makes one "cut" or "lost". Returns the checkpoint's mark."""
  step = tiny_world.checkpoints(workdir)[-1]
  files = sorted(path for path in (workdir / "checkpoints" / str(step)).rglob("*") if path.is_file())
  files = [path for path in files if path.stat().st_size]
  path = rng.choices(files, [file.stat().st_size for file in files])[0]  # every byte is equally likely
  held = bytearray(path.read_bytes())
  place = rng.randrange(len(held))
  if how == "bit":
    held[place] ^= 1 << rng.randrange(8)
  path.write_bytes(held[:place] if how == "cut" else held)
  if how == "lost":
    path.unlink()
  return mark(workdir, step)


def made(workdir: pathlib.Path) -> dict[str, str]:
  """{name: SHA-256} of everything that a run with the same config must reproduce to the bit."""
  _, arrays = tiny_world.arrays(workdir)
  found = {f"array {name}": _hash(str((x.dtype, x.shape)).encode() + x.tobytes()) for name, x in arrays.items()}
  found["model/model.safetensors"] = _hash((workdir / "model" / "model.safetensors").read_bytes())
  for row in tiny_world.untimed(map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())):
    found[f"metrics of step {row['step']}"] = _hash(json.dumps(row, sort_keys=True).encode())
  for path in sorted((workdir / "episodes").iterdir()):
    found[f"episodes/{path.name}"] = _hash(path.read_bytes())
  return found


def difference(one: dict[str, str], other: dict[str, str]) -> str:
  """The first thing that differs between the two, or ""."""
  return next((name for name in [*one, *other] if one.get(name) != other.get(name)), "")
