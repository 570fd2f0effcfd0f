"""Fine-tunes on transcripts: python launchers/sft.py --config CONFIG --workdir OUT --config.data.train=FILE.jsonl[.gz]

Each row is a question with `turns`: [["model" | "environment", text], …]. The result is OUT/model, for
config.model.path. After a kill, the same command continues from the last checkpoint. On several hosts, run the same
command on each, with the flags of launchers/train.py.
"""

from absl import app, flags, logging
from ml_collections import config_flags
from tqdm import tqdm

from ragrl_jax import sft
from ragrl_jax.cli import commands, host_flags
from ragrl_jax.parallel import hosts
from ragrl_jax.run import player
from ragrl_jax.store import compile_cache, heaps

CONFIG = config_flags.DEFINE_config_file("config", help_string=commands.CONFIG_HELP, lock_config=True)
WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run: config, metrics, checkpoints, model.")


def main(argv):
  """Runs `ragrl sft`."""
  if len(argv) > 1:
    raise app.UsageError(f"unknown argument {argv[1]!r}: settings are given as --config.field=value")
  logging.set_verbosity(logging.WARNING)
  heaps.limit()
  compile_cache.keep()
  commands.ready(CONFIG.value, "workdir", WORKDIR.value, training=False)  # no episodes that rows must hold
  with host_flags.joined():
    run(CONFIG.value)


def run(config):
  """Fine-tunes, with a progress bar, and prints the folder of the result."""
  player.mesh(config)  # refuses an invalid mesh before anything is shown
  config = sft.planned(config)
  with tqdm(total=config.steps, unit="step", disable=not hosts.is_first()) as bar:
    for metrics in sft.sft(config, WORKDIR.value, say=tqdm.write, **host_flags.going_on()):
      bar.update(metrics["step"] - bar.n)
      if "grad_norm" in metrics:  # not in a step without a trained token
        bar.set_postfix_str(f"loss {metrics['loss']:.3f} grad norm {metrics['grad_norm']:.2f}")
  if hosts.is_first():
    print(f"{WORKDIR.value}/model")


def start() -> None:
  """Reads the flags and runs `main`."""
  flags.mark_flags_as_required(["config", "workdir"])
  commands.run(main)
