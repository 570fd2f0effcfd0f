r"""Seconds to fingerprint weights: every value of a folder's tensors, and of arrays on the device.

Run:    python benchmarks/fingerprint.py [--gigabytes 3] [--folder WHERE_THERE_IS_ROOM]

Writes a folder of random bfloat16 tensors, and reads it twice: the second time from the cache of the operating system.
Prints GB/s, and the seconds for 7.6 billion parameters of 16 bits (15.2 GB) at this pace. The aim is 10 s.
"""

import argparse
import json
import tempfile
import time

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from ragrl_jax.models import tensors

OF_7B = 15.2  # GB


def main() -> None:
  """Measures, and prints one JSON object."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--gigabytes", type=float, default=3.0)
  parser.add_argument("--folder", default=None)
  args = parser.parse_args()
  shape, rng = (8192, 16384), np.random.default_rng(0)  # 268 MB each
  count = max(1, round(args.gigabytes * 1e9 / (2 * shape[0] * shape[1])))
  block = rng.integers(0, 2**16, shape, dtype=np.uint16).view(ml_dtypes.bfloat16)
  with tempfile.TemporaryDirectory(dir=args.folder) as folder:
    entries = [(f"layer.{i}", shape, lambda i=i: np.roll(block, i, axis=0)) for i in range(count)]
    tensors.write(folder, entries, block.dtype, shard_bytes=2_000_000_000)
    files, total = tensors.TensorFolder(folder), count * block.nbytes / 1e9
    held = {f"layer.{i}": jnp.array(files.open(f"layer.{i}", shape), copy=True) for i in range(count)}
    jax.block_until_ready(held)
    result = dict(gigabytes=round(total, 2))
    for name, run in dict(
      folder=files.fingerprint, folder_again=files.fingerprint, arrays=lambda: tensors.fingerprint(held)
    ).items():
      start = time.perf_counter()
      run()
      pace = total / (time.perf_counter() - start)
      result |= {f"{name}_gb_a_second": round(pace, 2), f"{name}_7b_seconds": round(OF_7B / pace, 1)}
  print(json.dumps(result))


if __name__ == "__main__":
  main()
