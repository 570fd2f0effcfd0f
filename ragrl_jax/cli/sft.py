"""Fine-tunes on transcripts: ragrl sft --config CONFIG --workdir OUT --config.data.train=FILE.jsonl[.gz]

Each row is a question with `turns`: [["model" | "environment", text], …]. The result is OUT/model, for
config.model.path. After a kill, the same command continues from the last checkpoint. On several hosts, run the same
command on each, with the flags of ragrl train.
"""

from absl import flags
from tqdm import tqdm

from ragrl_jax.cli import commands, host_flags
from ragrl_jax.jobs import from_python, sft
from ragrl_jax.parallel import hosts
from ragrl_jax.store import compile_cache, malloc

CONFIG = commands.config_flag()
WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run: config, metrics, checkpoints, model.", required=True)


def main():
  malloc.limit()
  compile_cache.keep()
  settings = commands.ready(CONFIG.value, "workdir", WORKDIR.value, training=False)  # no episodes that rows must hold
  with host_flags.joined():
    prepared = sft.prepare(settings, WORKDIR.value)
    from_python.tuned(prepared, WORKDIR.value, say=tqdm.write, **host_flags.going_on())
  if hosts.is_first():
    print(f"{WORKDIR.value}/model")
