"""Prints a paper's tables with our runs beside the published numbers:

  ragrl tables --paper arena --runs out/arena/test --runs 'out/arena/baselines/*'

Each --runs is a folder that ragrl evaluate or ragrl score wrote, a file of verdicts on such a
folder's episodes (ragrl faithfulness --out), or a glob of them.
The stored settings of a run determine its row and columns, not the name of its folder. Below a table are the settings
of each run, and the commands that fill its empty cells. Without --runs all commands are printed.
"""

import pathlib
import sys

from absl import flags

from ragrl_jax.evaluation import answer_files, records, step_verdicts
from ragrl_jax.evaluation.tables import filling, measures, papers, writing
from ragrl_jax.store import jsonl

PAPER = flags.DEFINE_enum("paper", None, list(papers.PAPERS), "The paper.", required=True)
RUNS = flags.DEFINE_multi_string(
  "runs", [], "Folder of an evaluation, a file of `ragrl faithfulness`, or a glob; several times."
)
TABLE = flags.DEFINE_multi_string("table", [], "Only tables whose name begins with this, such as 'Table 3'.")
FORMAT = flags.DEFINE_enum("format", "markdown", list(writing.FORMATS), "Output format.")
OUT = flags.DEFINE_string("out", None, "File to write; without it the tables are printed.")
ANY_MODEL = flags.DEFINE_bool("any_model", False, "Let runs of other models fill a row; a note names the model.")


def main():
  paper = papers.PAPERS[PAPER.value]
  paths = [pathlib.Path(path) for path in folders(RUNS.value)]
  evaluations = [records.read(path) for path in paths if not path.is_file()]
  evaluations = step_verdicts.joined(evaluations, filter(pathlib.Path.is_file, paths), **measures.STEPS)
  tables_filled = filling.fill(paper, evaluations, any_model=ANY_MODEL.value)
  if TABLE.value:
    names = [one.table.name for one in tables_filled]
    tables_filled = [one for one in tables_filled if one.table.name.startswith(tuple(TABLE.value))]
    if not tables_filled:
      raise ValueError(f"--table={','.join(TABLE.value)}: {paper.name} has {', '.join(names)}.")
  text = writing.FORMATS[FORMAT.value](paper, tables_filled)
  if OUT.value is None:
    print(text, end="")
    return
  jsonl.write_text(pathlib.Path(OUT.value), text)
  print(OUT.value)


def folders(patterns: list[str]) -> list[str]:
  """The folders and files that the patterns name, and the seeds' folders in them, each once, in order.

  A pattern's other matches are left out, and printed: trained runs, labelled pairs and sheets lie beside evaluations.

  Raises:
    FileNotFoundError: a pattern matches no folder.
  """
  result: dict[str, None] = {}
  for pattern in patterns:
    if not (named := answer_files.named(pattern)):
      raise FileNotFoundError(f"--runs={pattern}: there is no such folder.")
    parts = [part for folder in named for part in answer_files.parts(folder)]
    finished = [part for part in parts if (part / answer_files.METRICS).is_file() or part.suffix == ".json"]
    if finished and len(parts) > len(finished):
      rest = ", ".join(str(part) for part in parts if part not in finished)
      print(f"--runs={pattern}: no evaluations, left out: {rest}", file=sys.stderr)
    result |= dict.fromkeys(map(str, finished or parts))
  return list(result)
