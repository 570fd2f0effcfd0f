"""Makes the training data of VERITAS's reward model, and tests the model:

  python launchers/make_judge_data.py --config configs/veritas.py --config.judge.kind=llm … --episodes RUN --out DIR
  python launchers/make_judge_data.py --config configs/veritas.py --config.judge.path=MODEL --compare HELD_OUT

The first takes pairs from a run's logged episodes, (results, thought) unless --term names others, and lets the config's
judge label them. It writes DIR/train.jsonl.gz for launchers/sft.py --config configs/veritas.py:reward_model, and
DIR/held_out.jsonl.gz. The second prints how far the config's judge agrees with labels. A pair that the judge refuses is
asked once more at the end; then it has no verdict. If the share of such pairs is above --max_missing, the exit status
is 1. With config.judge.cache set, both continue after a kill; a kill costs the last 256 pairs at most.
"""

import json
import pathlib
import random

from absl import app, flags
from ml_collections import config_flags
from tqdm import tqdm

from ragrl_jax import judging
from ragrl_jax.cli import commands, generation
from ragrl_jax.data import readers, writers
from ragrl_jax.recipes.veritas import distil
from ragrl_jax.store import compile_cache
from ragrl_jax.store import episodes as episodes_lib

CONFIG = config_flags.DEFINE_config_file("config", help_string=commands.CONFIG_HELP, lock_config=True)
EPISODES = flags.DEFINE_string("episodes", "", "Folder of a run; reads its episodes/step_*.jsonl.")
COMPARE = flags.DEFINE_string("compare", "", "Labelled pairs, FILE.jsonl[.gz], in place of --episodes and --out.")
TERM = flags.DEFINE_enum(
  "term",
  "information_think",
  ["information_think", "think_search", "think_answer"],
  "Term whose pairs are taken; its judge (config.judges) labels them, or is compared.",
)
OUT = flags.DEFINE_string("out", "", "Folder of train.jsonl.gz and held_out.jsonl.gz.")
MAX_PAIRS = flags.DEFINE_integer("max_pairs", 27_000, "The most pairs to label, drawn at random.", lower_bound=1)
HELD_OUT = flags.DEFINE_integer("held_out", 3_000, "Pairs kept from training, or a few more.", lower_bound=1)


def main(argv):
  """Runs `ragrl make-judge-data`."""
  if len(argv) > 1:
    raise app.UsageError(f"unknown argument {argv[1]!r}: settings are given as --config.field=value")
  compile_cache.keep()
  config = CONFIG.value
  judges = judging.of_terms(config.judge, config.judges, [TERM.value], dtype=config.model.dtype)
  if (judge := judges.get(TERM.value)) is None:
    raise app.UsageError("config.judge.kind='none': name the judge that is to label, or to be compared.")
  if COMPARE.value:
    pairs = list(readers.read_examples(COMPARE.value))
    found = judged(judge, pairs)
    print(json.dumps(distil.agreement(pairs, found), indent=1))
    generation.settle(found.count(None), len(pairs), "pairs")
    return
  if not EPISODES.value or not OUT.value:
    raise app.UsageError("give --episodes and --out, or --compare.")
  logged = (row for path in episodes_lib.steps(EPISODES.value).values() for row in episodes_lib.read_episodes(path))
  pairs = distil.pairs((episodes_lib.episode_of(row) for row in logged), TERM.value)
  pairs = random.Random(config.seed).sample(pairs, min(len(pairs), MAX_PAIRS.value))
  labelled = distil.labelled(pairs, judged(judge, pairs))
  for name, part in zip(("train", "held_out"), distil.split(labelled, HELD_OUT.value, seed=config.seed), strict=True):
    path = pathlib.Path(OUT.value) / f"{name}.jsonl.gz"
    writers.write_examples(path, part, turns=distil.transcripts(part))
    print(f"{path}: {len(part)} pairs, {sum(pair.golds == ('1',) for pair in part)} of them 1")
  print(f"{len(pairs) - len(labelled)} pairs got no verdict")
  generation.settle(len(pairs) - len(labelled), len(pairs), "pairs")


def judged(judge, pairs) -> list[float | None]:
  """The judge's verdicts, with a progress bar."""
  with tqdm(total=len(pairs), unit="pair") as bar:
    return distil.verdicts(
      judge, [distil.asked(pair) for pair in pairs], progress=lambda done: bar.update(done - bar.n)
    )


def start() -> None:
  """Reads the flags and runs `main`."""
  flags.mark_flag_as_required("config")
  commands.run(main)
