"""Judges the steps of episodes of an evaluation or a run:

  python launchers/faithfulness.py --config configs/veritas.py --config.judge.kind=llm … --episodes DIR [--out FILE]

Prints for each set, and on average over the sets, the share of faithful pairs: (results, thought), (thought, query) and
(thought, answer). The judges are those of config.judge and config.judges.TERM. (thought, answer) is judged by Sub-EM
by default (config.judges.think_answer.kind). --episodes is a folder of launchers/evaluate.py, a glob of such folders
('out/a/*', one per set), or a run's folder; the model must write its thoughts between <think> and </think>. FILE (JSON)
also gets the counts: all pairs, incomplete pairs (which count 0), pairs without a verdict, and episodes without a pair
(which are in no mean). With config.judge.cache set, the command continues after a kill.
"""

import glob
import itertools
import json
import pathlib

from absl import app, flags
from ml_collections import config_flags
from tqdm import tqdm

from ragrl_jax import judging
from ragrl_jax.cli import commands, generation
from ragrl_jax.evaluation import comparison
from ragrl_jax.evaluation.transcripts import played_rows
from ragrl_jax.recipes.veritas import measured
from ragrl_jax.store import compile_cache, jsonl

TERMS = ("information_think", "think_search", "think_answer")

CONFIG = config_flags.DEFINE_config_file("config", help_string=commands.CONFIG_HELP, lock_config=True)
EPISODES = flags.DEFINE_string("episodes", None, "Folder of an evaluation or of a run, or a glob of such folders.")
OUT = flags.DEFINE_string("out", "", "JSON file for all numbers.")
JUDGED = flags.DEFINE_multi_enum("terms", list(TERMS), list(TERMS), "Term to judge; may be given several times.")


def main(argv):
  """Runs `ragrl faithfulness`."""
  if len(argv) > 1:
    raise app.UsageError(f"unknown argument {argv[1]!r}: settings are given as --config.field=value")
  folders = sorted(folder for folder in glob.glob(EPISODES.value) if pathlib.Path(folder).is_dir())
  if not folders:
    raise FileNotFoundError(f"--episodes={EPISODES.value}: there is no such folder.")
  rows = itertools.chain(*[played_rows.read(folder) for folder in folders])
  compile_cache.keep()
  config = CONFIG.value
  by_term = {term: dict(config.judges.get(term, {})) for term in JUDGED.value}
  if "think_answer" in by_term and not by_term["think_answer"].get("kind"):
    by_term["think_answer"]["kind"] = "sub_em"
  judges = judging.of_steps(config.judge, by_term, JUDGED.value, dtype=config.model.dtype)
  if unjudged := [term for term in JUDGED.value if term not in judges]:
    raise app.UsageError(f"{unjudged[0]} has no judge: set config.judge.kind or config.judges.{unjudged[0]}.kind.")
  with tqdm(unit="pair") as bar:

    def progress(term: str, done: int, of: int) -> None:
      bar.set_description(term)
      bar.total = of
      bar.update(done - bar.n)

    sets = measured.measured(rows, {term: judges[term] for term in JUDGED.value}, progress=progress)
  average = measured.macro(sets)
  if OUT.value:
    described = {term: dict(judges[term].describe()) for term in JUDGED.value}
    with jsonl.whole(OUT.value) as part:
      part.write_text(json.dumps(dict(sets=sets, macro=average, judges=described), indent=1), encoding="utf-8")
  print(table(sets, average))
  every = [numbers for terms in sets.values() for numbers in terms.values()]
  unread = sum(numbers["unjudged"] for numbers in every)
  generation.settle(unread, unread + sum(numbers["pairs"] for numbers in every), "pairs")


def table(sets, average) -> str:
  """One line per set, one column per term: the share, and the number of pairs."""
  shown = lambda numbers: "–" if numbers["faithful"] is None else f"{numbers['faithful']:.3f} ({numbers['pairs']})"
  cells = [("", *average)]
  cells += [(name or comparison.NAMELESS, *map(shown, terms.values())) for name, terms in sets.items()]
  if len(sets) > 1:
    cells.append(("macro average", *("–" if value is None else f"{value:.3f}" for value in average.values())))
  widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
  return "\n".join(
    "   ".join([f"{row[0]:<{widths[0]}}", *(f"{x:>{w}}" for x, w in zip(row[1:], widths[1:]))]) for row in cells
  )


def start() -> None:
  """Reads the flags and runs `main`."""
  flags.mark_flags_as_required(["config", "episodes"])
  commands.run(main)
