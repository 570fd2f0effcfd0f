"""Makes the training data of VERITAS's reward model, and tests the model:

  ragrl make-judge-data --config veritas --config.judge.kind=llm … --episodes RUN --out DIR
  ragrl make-judge-data --config veritas --config.judge.path=MODEL --compare HELD_OUT --out DIR
  ragrl make-judge-data --config veritas --episodes RUN --sheet SHEET.csv --max_pairs 100

The first takes pairs from the episodes of a run or an evaluation, (results, thought) by default (--term), and lets the
config's judge label them. It writes DIR/train.jsonl.gz for ragrl sft --config veritas:reward_model,
DIR/held_out.jsonl.gz, and DIR/labels.json, which says whose labels these are. The second prints the agreement of the
config's judge with labels, those of HELD_OUT or of a sheet (.csv); with --out, ragrl tables reads it from DIR.
Pairs without a verdict are asked once more at the end. If more than a share of --max_missing still has none, the exit
status is 1. With config.judge.cache set, both continue after a kill, which loses at most the last 256 pairs. The third
writes the first --max_pairs pairs of the first command, or of --compare HELD_OUT, for people to label.
ragrl compare --verdicts compares these sheets with each other and with judges.
"""

import json
import pathlib
import random

from absl import app, flags
from tqdm import tqdm

from ragrl_jax import judging, settings
from ragrl_jax.cli import commands, generation
from ragrl_jax.data import readers, writers
from ragrl_jax.evaluation import played_rows, raters
from ragrl_jax.judging import judge_api
from ragrl_jax.recipes import steps
from ragrl_jax.recipes.veritas import distil
from ragrl_jax.store import compile_cache, episodes as episodes_lib, folders

CONFIG = commands.config_flag()
EPISODES = flags.DEFINE_string(
  "episodes", "", "Folder of a run, whose episodes/step_*.jsonl are read, or of an evaluation, with episodes.jsonl."
)
SHEET = flags.DEFINE_string("sheet", "", "CSV of pairs for people to label, instead of --out.")
COMPARE = flags.DEFINE_string(
  "compare", "", "Labelled pairs, FILE.jsonl[.gz] or a sheet FILE.csv, instead of --episodes."
)
TERM = flags.DEFINE_enum(
  "term",
  "information_think",
  list(steps.TERMS),
  "Term whose pairs are taken; its judge (config.judges) labels them, or is compared.",
)
OUT = flags.DEFINE_string("out", "", "Folder of the labelled pairs, or of the judge's agreement with them.")
MAX_PAIRS = flags.DEFINE_integer("max_pairs", 27_000, "Most pairs to label, drawn at random.", lower_bound=1)
HELD_OUT = flags.DEFINE_integer("held_out", 3_000, "Pairs kept from training, or a few more.", lower_bound=1)


def main():
  compile_cache.keep()
  config = settings.of(CONFIG.value)
  if SHEET.value:
    if not EPISODES.value and not COMPARE.value:
      raise app.UsageError("give --episodes or --compare: the pairs of the sheet come from them.")
    pairs = list(readers.read_examples(COMPARE.value))[: MAX_PAIRS.value] if COMPARE.value else drawn(config)
    raters.write_sheet(SHEET.value, ((pair.id, distil.asked(pair)) for pair in pairs))
    print(f"{SHEET.value}: {len(pairs)} pairs; put 1 or 0 into the column label")
    return
  if not COMPARE.value and not (EPISODES.value and OUT.value):
    raise app.UsageError("give --episodes and --out, or --compare.")
  if OUT.value:
    folders.refuse_unwritable(OUT.value)
  parts = [], []
  if COMPARE.value:
    if OUT.value:
      folders.refuse_others(OUT.value, folders.SCORES)
    by_hand = COMPARE.value.endswith(".csv")
    pairs = raters.labelled_by_hand(COMPARE.value) if by_hand else list(readers.read_examples(COMPARE.value))
    if (term := raters.labelled_by(COMPARE.value).get("term", TERM.value)) != TERM.value:
      raise ValueError(f"--compare={COMPARE.value}: its labels are of another term: give --term={term}.")
  else:
    pairs = drawn(config)
    parts = distil.split(pairs, HELD_OUT.value, seed=config.seed)  # refuses too many before the judge is paid
  judges = judging.of_steps(config.judge, config.judges, [TERM.value], dtype=config.model.dtype)
  if (judge := judges.get(TERM.value)) is None:
    raise app.UsageError("config.judge.kind='none': choose the judge that labels the pairs, or is compared.")
  again = generation.of_judges(config.judge, config.judges)
  if COMPARE.value:
    verdicts = judged(judge, pairs)
    print(json.dumps(distil.agreement(pairs, verdicts), indent=1))
    if OUT.value:
      its = judging.chosen(config.judge, config.judges, [TERM.value])[TERM.value]
      of = dict(recipe="veritas", preset="reward_model")
      raters.write_verdicts(OUT.value, COMPARE.value, pairs, verdicts, judge.describe(), its.path, **of)
    generation.settle(verdicts.count(None), len(pairs), "pairs", again=again)
    return
  verdict_of = dict(zip((pair.id for pair in pairs), judged(judge, pairs), strict=True))
  for name, part in zip(("train", "held_out"), parts, strict=True):
    path = pathlib.Path(OUT.value) / f"{name}.jsonl.gz"
    part = distil.labelled(part, [verdict_of[pair.id] for pair in part])
    writers.write_examples(path, part, turns=distil.transcripts(part))
    print(f"{path}: {len(part)} pairs, {sum(pair.golds == ('1',) for pair in part)} of them 1")
  raters.write_labels(OUT.value, dict(judge.describe(), by="judge", term=TERM.value, max_pairs=MAX_PAIRS.value))
  missing = list(verdict_of.values()).count(None)
  print(f"{missing} pairs got no verdict")
  generation.settle(missing, len(pairs), "pairs", again=again)


def drawn(config) -> list:
  """The first --max_pairs of the episodes' pairs, shuffled by config.seed. A larger number includes a smaller one.

  Raises:
    ValueError: there is no pair.
  """
  pairs = distil.pairs(map(episodes_lib.episode_of, played_rows.read(EPISODES.value)), TERM.value)
  if not pairs:
    raise ValueError(f"--episodes={EPISODES.value}: its episodes have no pair of the term {TERM.value}.")
  random.Random(config.seed).shuffle(pairs)
  return pairs[: MAX_PAIRS.value]


def judged(judge, pairs) -> list[float | None]:
  """The judge's verdicts, with a progress bar."""
  with tqdm(total=len(pairs), unit="pair") as bar:
    return judge_api.verdicts(
      judge, [distil.asked(pair) for pair in pairs], progress=lambda done: bar.update(done - bar.n)
    )
