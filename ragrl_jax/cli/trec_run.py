"""Searches for a file of queries, writes the results as TREC's run file, and scores it with qrels, as trec_eval does.

    ragrl trec --index INDEX --queries SET/queries.jsonl --qrels SET/qrels/test.tsv --run run.txt
    ragrl trec --run run.txt --qrels qrels.txt [--measures nDCG@10,R@100,AP]

With qrels, only their queries are searched. Queries are JSON lines or Parquet with _id (id) and text, or lines of an
id, a tab and the text. Qrels are TREC's four columns, BEIR's three columns with a header, or rows with query-id,
corpus-id and score.
"""

import json

from tqdm import tqdm

from ragrl_jax.cli import commands
from ragrl_jax.core.metrics import retrieval as metrics
from ragrl_jax.data import writers
from ragrl_jax.retrieval import load_index, trec_files

BATCH = 256  # queries searched together


def main() -> int:
  """Runs `ragrl trec`."""
  parser = commands.Parser(__doc__)
  parser.add_argument("--run", required=True, help="the run file: written with --index, else read")
  parser.add_argument("--index", default="", help="folder of an index, or the address of a retriever or a database")
  parser.add_argument("--queries", default="", help="the queries, with --index")
  parser.add_argument("--qrels", default="", help="the judgements; without them nothing is scored")
  parser.add_argument("--top_k", type=int, default=100, help="passages per query")
  parser.add_argument(
    "--measures", default=",".join(metrics.MEASURES), help="separated by commas, with the names of ir_measures"
  )
  given = parser.parse_args()
  if bool(given.index) != bool(given.queries):
    raise ValueError("--index and --queries: give both to search, or none to read the file of --run.")
  if not given.index and not given.qrels:
    raise ValueError("--qrels is missing: a run file without qrels cannot be scored.")
  if given.index:
    writers.refuse_inputs([given.run], filter(None, (given.queries, given.qrels)), flag="--run")
  judgements = trec_files.read_qrels(given.qrels) if given.qrels else None
  names = given.measures.split(",")
  metrics.means({}, {}, names)  # refuses an unknown measure before the search
  if given.index:
    _search(given, judgements)
  if judgements is not None:
    found = metrics.means(trec_files.read_run(given.run), judgements, names)
    print(json.dumps(dict(run=given.run, queries=len(judgements), **found), indent=1))
  return 0


def _search(given, judgements) -> None:
  queries = trec_files.read_queries(given.queries)
  if judgements is not None:
    if missing := judgements.keys() - queries.keys():
      raise ValueError(
        f"{given.qrels} judges {len(missing)} queries that {given.queries} lacks, such as {min(missing)!r}."
      )
    queries = {name: text for name, text in queries.items() if name in judgements}
  index, names, answers = load_index(given.index), list(queries), {}
  with tqdm(total=len(names), unit=" queries") as bar:
    for start in range(0, len(names), BATCH):
      some = names[start : start + BATCH]
      answers.update(zip(some, index.search([queries[name] for name in some], given.top_k), strict=True))
      bar.update(len(some))
  trec_files.write_run(given.run, answers)
