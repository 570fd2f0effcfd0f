"""Trains: ragrl train --config arena[:variant] --workdir OUT [--config.any.field=value]

On several hosts, run the same command on each. Use --distributed if JAX can find the hosts by itself (TPU VMs, Slurm),
else --coordinator=HOST0:PORT --num_processes=N --process_id=0 … N-1. All hosts must be able to write to OUT.
"""

from absl import app, flags, logging
from tqdm import tqdm

from ragrl_jax.cli import commands, host_flags
from ragrl_jax.jobs import evaluate, train
from ragrl_jax.parallel import hosts
from ragrl_jax.report import page as page_lib
from ragrl_jax.run import progress
from ragrl_jax.run.prepared import Prepared, prepare
from ragrl_jax.store import compile_cache, malloc

CONFIG = commands.config_flag()
WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of the run: config, metrics, checkpoints, episodes, report.", required=True
)


def main():
  """Runs `ragrl train`."""
  variant = flags.FLAGS["config"].config_filename.partition(":")[2]
  if tuned := {"sft", "reward_model"}.intersection(variant.split(",")):
    raise app.UsageError(
      f"the variant {tuned.pop()!r} of --config has the settings of `ragrl sft`, which fine-tunes. `ragrl train` "
      "learns from rewards: leave it out."
    )
  logging.set_verbosity(logging.WARNING)
  malloc.limit()
  compile_cache.keep()
  settings = commands.ready(CONFIG.value, "workdir", WORKDIR.value)
  with host_flags.joined():
    run(prepare(settings, WORKDIR.value))


def run(prepared: Prepared):
  """Trains, with a progress bar and each warning once, and writes the run's page."""
  config = prepared.settings
  measure = evaluate.evaluator(prepared, workdir=WORKDIR.value) if config.data.evaluate else None
  said: set[str] = set()  # a warning is in the metrics of every step, but is printed once
  with tqdm(total=config.steps, unit="step", disable=not hosts.is_first()) as bar:
    for metrics in train.train(prepared, WORKDIR.value, evaluate=measure, say=tqdm.write, **host_flags.going_on()):
      bar.update(metrics["step"] - bar.n)
      bar.set_postfix_str(progress.headline(metrics))
      for name, text in metrics.items():
        if name.startswith("warning/") and name not in said and hosts.is_first():
          said.add(name)
          tqdm.write(f"step {metrics['step']}: {text}")
  if hosts.is_first():
    print(f"The run's page: {page_lib.write_report(WORKDIR.value)}")
