"""Searches for a file of queries, writes the results as TREC's run file, and scores it with qrels, as trec_eval does.

    ragrl trec --index INDEX --queries SET/queries.jsonl --qrels SET/qrels/test.tsv --run run.txt
    ragrl trec --run run.txt --qrels qrels.txt [--measures nDCG@10,R@100,AP]

With qrels, only their queries are searched. Queries are JSON lines or Parquet with _id (id) and text, or lines of an
id, a tab and the text. Qrels are TREC's four columns, BEIR's three columns with a header, or rows with query-id,
corpus-id and score. If they judge no passages like "d#0", which `ragrl index` cuts from documents, the run has each
found document once.
"""

import json
import logging

from ragrl_jax.cli import commands
from ragrl_jax.core.metrics import retrieval as metrics
from ragrl_jax.data import writers
from ragrl_jax.retrieval import load_index, trec_files
from ragrl_jax.structs import document_of


def main() -> None:
  parser = commands.Parser(__doc__)
  parser.add_argument("--run", required=True, help="the run file: written with --index, else read")
  parser.add_argument("--index", default="", help="folder of an index, or the address of a retriever or a database")
  parser.add_argument("--queries", default="", help="the queries, with --index")
  parser.add_argument("--qrels", default="", help="the judgements; without them nothing is scored")
  parser.add_argument("--top_k", type=commands.whole_number(1), help="passages per query, with --index; 100 by default")
  measures = ",".join(metrics.MEASURES)
  parser.add_argument("--measures", help=f"with --qrels: separated by commas, as in ir_measures; {measures} by default")
  arguments = parser.parse_args()
  if bool(arguments.index) != bool(arguments.queries):
    raise ValueError("--index and --queries: give both to search, or none to read the file of --run.")
  if not arguments.index and not arguments.qrels:
    raise ValueError("--qrels is missing: a run file without qrels cannot be scored.")
  for flag, needed in (("top_k", "index"), ("measures", "qrels")):
    if getattr(arguments, flag) is not None and not getattr(arguments, needed):
      raise ValueError(f"--{flag} has no effect without --{needed}: give both, or leave it out.")
  if arguments.index:
    writers.refuse_inputs([arguments.run], filter(None, (arguments.queries, arguments.qrels)), flag="--run")
  judgements = trec_files.read_qrels(arguments.qrels) if arguments.qrels else None
  names = (measures if arguments.measures is None else arguments.measures).split(",")
  metrics.means({}, {}, names)  # refuses an unknown measure before the search
  if arguments.index:
    _search(arguments, judgements)
  if judgements is not None:
    run = trec_files.read_run(arguments.run)
    if not any(run.get(query, {}).keys() & judged for query, judged in judgements.items()):
      logging.warning(
        "%s: no judged passage is in %s: do corpus and qrels have the same ids?", arguments.qrels, arguments.run
      )
    scores = metrics.means(run, judgements, names)
    print(json.dumps(dict(run=arguments.run, queries=len(judgements), **scores), indent=1))


def _search(arguments, judgements) -> None:
  queries = trec_files.read_queries(arguments.queries)
  if judgements is not None:
    if missing := judgements.keys() - queries.keys():
      raise ValueError(
        f"{arguments.qrels} judges {len(missing)} queries that {arguments.queries} lacks, such as {min(missing)!r}."
      )
    queries = {name: text for name, text in queries.items() if name in judgements}
  index, texts = load_index(arguments.index), [*queries.values()]
  for name in (*queries, *(passage.id for text in texts[:1] for passage in index.search([text], 1)[0])):
    trec_files.word(name)  # refuses one that the file cannot hold before all are searched
  found = commands.searched(index, texts, arguments.top_k or 100)
  judged = {name for grades in (judgements or {}).values() for name in grades}
  if judged and all(document_of(name)[1] is None for name in judged):
    found = [trec_files.of_documents(passages) for passages in found]
  trec_files.write_run(arguments.run, dict(zip(queries, found, strict=True)))
