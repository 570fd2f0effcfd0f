"""One of several hosts that save a step repeatedly until a signal ends them:

python tests/signals_child.py NUMBER COUNT PORT WORKDIR
"""

import pathlib
import sys

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ragrl_jax import config as config_lib, settings
from ragrl_jax.parallel import hosts, signals
from ragrl_jax.store import workdir as run_lib

if __name__ == "__main__":
  number, count, port = map(int, sys.argv[1:4])
  config = config_lib.default_config()
  config.steps, config.checkpoint.keep = 1_000_000, 1000  # more than it can make before the signal
  jax.config.update("jax_num_cpu_devices", 1)
  with hosts.Joined(f"127.0.0.1:{port}", count, number, wait_s=120, heartbeat_s=60):
    with run_lib.opened(pathlib.Path(sys.argv[4]), settings.of(config)) as run:
      everywhere = NamedSharding(jax.make_mesh((count,), ("data",)), PartitionSpec())
      state, _ = run.restore(dict(x=jax.make_array_from_callback((3,), everywhere, lambda _: np.zeros(3, np.float32))))
      with signals.Signals() as received:
        for step in range((run.restored or 0) + 1, config.steps + 1):
          print(step, flush=True)
          if end := received.end():
            run.leave(step, state, {})
            raise end
