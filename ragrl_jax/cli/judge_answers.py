"""Asks a judge about the answers of finished evaluations with any recipe:

  ragrl judge --config arena:judge --config.judge.model=… --results OUT [--results …]

The judge is config.judge. Its prompt (config.judge.prompt) must compare answers with the right ones: answer or
correctness. Prints the judge's accuracy and exact match by set. Each folder of ragrl evaluate or
ragrl score gets judged.jsonl (one row per answer) and judged.json. `ragrl compare --measures
judged`, `ragrl quadrants --measure judged` and the judge's columns of `ragrl tables` read them. With config.judge.cache
set, the command continues after a kill.
"""

from absl import flags
from tqdm import tqdm

from ragrl_jax import judging, settings
from ragrl_jax.cli import commands, generation
from ragrl_jax.evaluation import answer_files, answer_verdicts
from ragrl_jax.judging import judge_api
from ragrl_jax.store import compile_cache, folders as folders_lib, jsonl

CONFIG = commands.config_flag()
RESULTS = flags.DEFINE_multi_string(
  "results", None, "Folder of predictions.jsonl, or a glob of such folders.", required=True
)


def main():
  named = [folder for pattern in RESULTS.value for folder in answer_files.named(pattern)]
  folders = [part for name in named for part in answer_files.parts(name) if (part / answer_files.PREDICTIONS).is_file()]
  if not folders:
    raise FileNotFoundError(f"--results={','.join(RESULTS.value)}: no {answer_files.PREDICTIONS} there.")
  for folder in folders:
    folders_lib.refuse_unwritable(folder, "--results")
  rows_of = {folder: answer_files.rows(folder) for folder in folders}
  config = settings.of(CONFIG.value)
  judging.check_of_answers(config.judge)
  compile_cache.keep()
  judge = judging.load(config.judge, dtype=config.model.dtype)
  assert judge is not None
  unread = total = 0
  for folder, rows in rows_of.items():
    with tqdm(desc=f"judge {folder.name}", unit="answer") as bar:
      ask = lambda pairs, bar=bar: judge_api.verdicts(judge, pairs, progress=lambda done: bar.update(done - bar.n))
      verdict_rows = answer_verdicts.judged(rows, ask)
    sets = answer_verdicts.totals(rows, verdict_rows)
    jsonl.write(folder / answer_verdicts.FILE, verdict_rows)
    answer_files.write_json(folder / answer_verdicts.SUMMARY, dict(judge=dict(judge.describe()), sets=sets))
    print(f"{folder}\n{answer_verdicts.text(sets)}\n")
    unread += sum(row["verdict"] is None for row in verdict_rows)
    total += len(verdict_rows)
  generation.settle(unread, total, "answers", again=generation.of_judges(config.judge, {}))
