"""Searches for a file of queries, writes the results as TREC's run file, and scores it with qrels, as trec_eval does.

    ragrl trec --index INDEX --queries SET/queries.jsonl --qrels SET/qrels/test.tsv --run run.txt
    ragrl trec --run run.txt --qrels qrels.txt [--measures nDCG@10,R@100,AP]

With qrels, only their queries are searched. Queries are JSON lines or Parquet with _id (id) and text, or lines of an
id, a tab and the text. Qrels are TREC's four columns, BEIR's three columns with a header, or rows with query-id,
corpus-id and score. If they judge no passages like "d#0", which `ragrl index` cuts from documents, the run has each
found document once.
"""

import json

from ragrl_jax.cli import commands
from ragrl_jax.core.metrics import retrieval as metrics
from ragrl_jax.data import writers
from ragrl_jax.retrieval import load_index, trec_files
from ragrl_jax.structs import document_of


def main() -> int:
  """Runs `ragrl trec`."""
  parser = commands.Parser(__doc__)
  parser.add_argument("--run", required=True, help="the run file: written with --index, else read")
  parser.add_argument("--index", default="", help="folder of an index, or the address of a retriever or a database")
  parser.add_argument("--queries", default="", help="the queries, with --index")
  parser.add_argument("--qrels", default="", help="the judgements; without them nothing is scored")
  parser.add_argument("--top_k", type=commands.whole_number(1), default=100, help="passages per query")
  parser.add_argument(
    "--measures", default=",".join(metrics.MEASURES), help="separated by commas, with the names of ir_measures"
  )
  arguments = parser.parse_args()
  if bool(arguments.index) != bool(arguments.queries):
    raise ValueError("--index and --queries: give both to search, or none to read the file of --run.")
  if not arguments.index and not arguments.qrels:
    raise ValueError("--qrels is missing: a run file without qrels cannot be scored.")
  if arguments.index:
    writers.refuse_inputs([arguments.run], filter(None, (arguments.queries, arguments.qrels)), flag="--run")
  judgements = trec_files.read_qrels(arguments.qrels) if arguments.qrels else None
  names = arguments.measures.split(",")
  metrics.means({}, {}, names)  # refuses an unknown measure before the search
  if arguments.index:
    _search(arguments, judgements)
  if judgements is not None:
    scores = metrics.means(trec_files.read_run(arguments.run), judgements, names)
    print(json.dumps(dict(run=arguments.run, queries=len(judgements), **scores), indent=1))
  return 0


def _search(arguments, judgements) -> None:
  queries = trec_files.read_queries(arguments.queries)
  if judgements is not None:
    if missing := judgements.keys() - queries.keys():
      raise ValueError(
        f"{arguments.qrels} judges {len(missing)} queries that {arguments.queries} lacks, such as {min(missing)!r}."
      )
    queries = {name: text for name, text in queries.items() if name in judgements}
  found = commands.searched(load_index(arguments.index), list(queries.values()), arguments.top_k)
  judged = {name for grades in (judgements or {}).values() for name in grades}
  if judged and all(document_of(name)[1] is None for name in judged):
    found = [trec_files.of_documents(passages) for passages in found]
  trec_files.write_run(arguments.run, dict(zip(queries, found, strict=True)))
