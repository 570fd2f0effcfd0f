"""Judges the steps of episodes of an evaluation or a run:

  ragrl faithfulness --config veritas --config.judge.kind=llm … --episodes DIR [--out FILE]

Prints for each system and set, and on average over the sets, the share of faithful pairs: (results, thought), (thought,
query) and (thought, answer). The judges are those of config.judge and config.judges.TERM. (thought, answer) is judged
by Sub-EM by default (config.judges.think_answer.kind). --episodes is a folder of ragrl evaluate, a glob of such
folders ('out/a/*', one per set), or a run's folder; the model must write its thoughts between <think> and </think>.
The folders' recorded settings tell systems apart. FILE (JSON) also gets the counts: all pairs, incomplete pairs (which
count 0), pairs without a verdict (in no mean, as the rest of their episodes), and episodes without a pair (in no mean);
and the verdicts, from which ragrl tables computes the agreement of judges. With config.judge.cache set, the
command continues after a kill.
"""

import itertools
import json

from absl import app, flags
from tqdm import tqdm

from ragrl_jax import judging, settings
from ragrl_jax.cli import commands, generation
from ragrl_jax.core.text import aligned
from ragrl_jax.data import writers
from ragrl_jax.evaluation import answer_files, comparison, played_rows
from ragrl_jax.recipes import steps
from ragrl_jax.recipes.veritas import measured
from ragrl_jax.store import compile_cache, jsonl

CONFIG = commands.config_flag()
EPISODES = flags.DEFINE_string(
  "episodes", None, "Folder of an evaluation or of a run, or a glob of such folders.", required=True
)
OUT = flags.DEFINE_string("out", "", "JSON file for all numbers.")
JUDGED = flags.DEFINE_multi_enum(
  "terms", list(steps.TERMS), list(steps.TERMS), "Term to judge; may be given several times."
)


def main():
  folders = [part for folder in answer_files.named(EPISODES.value) for part in answer_files.parts(folder)]
  if not (folders := [folder for folder in folders if folder.is_dir()]):
    raise FileNotFoundError(f"--episodes={EPISODES.value}: there is no such folder.")
  if OUT.value:
    writers.refuse_inputs([OUT.value], [])
  groups = played_rows.systems(folders)
  compile_cache.keep()
  config = settings.of(CONFIG.value)
  by_term = {term: dict(config.judges.get(term, {})) for term in JUDGED.value}
  if "think_answer" in by_term and not by_term["think_answer"].get("kind"):
    by_term["think_answer"]["kind"] = "sub_em"
  judges = judging.of_steps(config.judge, by_term, JUDGED.value, dtype=config.model.dtype)
  if unjudged := [term for term in JUDGED.value if term not in judges]:
    raise app.UsageError(f"{unjudged[0]} has no judge: set config.judge.kind or config.judges.{unjudged[0]}.kind.")
  judges = {term: judges[term] for term in JUDGED.value}
  systems = [_system(group, judges) for group in groups]
  if OUT.value:
    described = {term: dict(judge.describe()) for term, judge in judges.items()}
    jsonl.write_text(OUT.value, json.dumps(dict(judges=described, systems=systems), indent=1))
  for one in systems:
    if len(systems) > 1:
      print(f"{', '.join(one['folders'])}:")
    print(table(one["sets"], one["macro"]))
  all_numbers = [numbers for one in systems for terms in one["sets"].values() for numbers in terms.values()]
  judged, unread = (sum(one[count] for one in all_numbers) for count in ("judged", "unjudged"))
  print(f"{judged} pairs judged, {unread} without a verdict")
  generation.settle(unread, judged + unread, "pairs", again=generation.of_judges(config.judge, by_term))


def _system(folders, judges) -> dict:
  """The result for the folders of one system: their digests, and the measures by set."""
  with tqdm(unit="pair") as bar:

    def progress(term: str, done: int, of: int) -> None:
      bar.set_description(term)
      bar.total = of
      bar.update(done - bar.n)

    rows = itertools.chain(*[played_rows.read(folder) for folder in folders])
    sets = measured.measured(rows, judges, progress=progress)
  digests = {str(folder): played_rows.digest(folder) for folder in folders}
  return dict(folders=digests, sets=sets, macro=measured.macro(sets))


def table(sets, average) -> str:
  """One line per set, one column per term: the share, and the number of pairs, also of those without a verdict."""

  def shown(numbers) -> str:
    more = f"; {numbers['unjudged']} unjudged" if numbers["unjudged"] else ""
    share = "–" if numbers["faithful"] is None else f"{numbers['faithful']:.3f}"
    return f"{share} ({numbers['pairs']}{more})" if numbers["pairs"] or more else share

  cells = [("", *average)]
  cells += [(name or comparison.NAMELESS, *map(shown, terms.values())) for name, terms in sets.items()]
  if len(sets) > 1:
    cells.append(("macro average", *("–" if value is None else f"{value:.3f}" for value in average.values())))
  return aligned.columns(cells, left=1)
