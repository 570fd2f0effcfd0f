"""Trains: ragrl train --config arena[:variant] --workdir OUT [--config.any.field=value]

On several hosts, run the same command on each. Use --distributed if JAX can find the hosts by itself (TPU VMs, Slurm),
else --coordinator=HOST0:PORT --num_processes=N --process_id=0 … N-1. All hosts must be able to write to OUT.
"""

from absl import flags
from tqdm import tqdm

from ragrl_jax.cli import commands, host_flags
from ragrl_jax.jobs import from_python
from ragrl_jax.parallel import hosts
from ragrl_jax.run import prepared
from ragrl_jax.store import compile_cache, malloc

CONFIG = commands.config_flag()
WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of the run: config, metrics, checkpoints, episodes, report.", required=True
)


def main():
  from_python.refuse_tuned(flags.FLAGS["config"].config_filename)
  malloc.limit()
  compile_cache.keep()
  settings = commands.ready(CONFIG.value, "workdir", WORKDIR.value)
  with host_flags.joined():
    run = from_python.trained(
      prepared.prepare(settings, WORKDIR.value), WORKDIR.value, say=tqdm.write, **host_flags.going_on()
    )
  if hosts.is_first():
    print(f"The run's page: {run.page}")
