"""A retriever behind HTTP, for runs on other processes or machines: POST /retrieve as Search-R1's, GET /health.

    python launchers/serve_retriever.py --index DIR --port 8000

Only this machine is answered; --host 0.0.0.0 opens it to every machine that can reach this one (there is no password).
"""

import argparse

import commands

from ragrl_jax.retrieval import load_index, server
from ragrl_jax.store import compiled


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--index", required=True, help="a folder of build_index, or a recording FILE.jsonl")
  parser.add_argument("--host", default="127.0.0.1")
  parser.add_argument("--port", type=int, default=8000)
  parser.add_argument("--encoder", default=None, help="the encoder's folder, where it has moved")
  parser.add_argument("--options", default=None, help="FAISS search parameters, where not those it was built with")
  parser.add_argument("--search", default="faiss", choices=("faiss", "device"), help="device: exact, on accelerators")
  parser.add_argument("--threads", type=int, default=None, help="FAISS's, a search; all cores by default")
  limits = server.Limits()
  parser.add_argument("--max_bytes", type=int, default=limits.max_bytes, help="of a request")
  parser.add_argument("--max_queries", type=int, default=limits.max_queries, help="in a request")
  parser.add_argument("--max_topk", type=int, default=limits.max_topk, help="passages a query")
  parser.add_argument("--default_topk", type=int, default=limits.default_topk, help="where a request names none")
  given = parser.parse_args()
  compiled.keep()
  local = dict(encoder=given.encoder, search=given.search, options=given.options, threads=given.threads)
  retriever = load_index(given.index, **local)
  print(f"http://{given.host}:{given.port} serves {retriever.describe()}", flush=True)
  limits = server.Limits(given.max_bytes, given.max_queries, given.max_topk, given.default_topk)
  server.serve(retriever, host=given.host, port=given.port, limits=limits)
  return 0


if __name__ == "__main__":
  commands.call(main)
