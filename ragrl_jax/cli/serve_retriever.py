"""Serves a retriever over HTTP: POST /retrieve as in Search-R1, POST /v1/embeddings, GET /health and /metrics.

    ragrl serve-index --index DIR --port 8000

By default only this machine can connect. --host 0.0.0.0 opens the server to every machine that can reach this one. With
--key_variable, each request must send the token of that environment variable. SIGHUP reloads the index without losing
a request.
"""

import functools
import os

from ragrl_jax.cli import commands
from ragrl_jax.retrieval import load_index, server
from ragrl_jax.store import compile_cache

LIMITS = {
  "max_bytes": "most bytes in a request",
  "max_queries": "most queries, or texts to embed, in a request",
  "max_topk": "most passages per query",
  "default_topk": "passages per query if a request does not set it",
  "max_waiting": "most texts that may wait; further requests get status 429",
  "deadline_s": "seconds after which a request gets status 504",
}


def main() -> None:
  parser = commands.Parser(__doc__)
  parser.add_argument("--index", required=True, help="folder of an index, a FUSED.json, or an address")
  parser.add_argument("--host", default="127.0.0.1")
  parser.add_argument("--port", type=commands.whole_number(0, 65535), default=8000)
  parser.add_argument("--key_variable", default="", help="environment variable with the token that requests must send")
  parser.add_argument("--processes", type=int, default=1, help="number of server processes, each with the whole index")
  parser.add_argument("--encoder", default=None, help="folder or Hugging Face name of the encoder, if it has moved")
  parser.add_argument("--options", default=None, help="FAISS search parameters; by default those of the build")
  parser.add_argument("--search", default="faiss", choices=("faiss", "device"), help="device: exact, on accelerators")
  parser.add_argument(
    "--threads", type=commands.whole_number(1), help="threads of FAISS per search; all cores by default"
  )
  limits = server.Limits()
  for name, meaning in LIMITS.items():
    default = getattr(limits, name)
    kind = commands.whole_number(1) if isinstance(default, int) else float
    parser.add_argument(f"--{name}", type=kind, default=default, help=meaning)
  given = parser.parse_args()
  if given.processes < 1 or (given.processes > 1 and given.search == "device"):
    raise ValueError(
      f"--processes {given.processes} --search {given.search}: at least one process, and only one may use accelerators."
    )
  key = os.environ.get(given.key_variable, "") if given.key_variable else ""
  if given.key_variable and not key:
    raise ValueError(f"the environment variable {given.key_variable!r} holds no token (--key_variable).")
  local = dict(encoder=given.encoder, search=given.search, options=given.options, threads=given.threads)
  load, say = functools.partial(_load, given.index, local), functools.partial(print, flush=True)
  limits, processes = server.Limits(**{name: getattr(given, name) for name in LIMITS}), given.processes
  server.serve(load, host=given.host, port=given.port, limits=limits, key=key, processes=processes, say=say)


_keep = functools.cache(compile_cache.keep)  # once in each process


def _load(index: str, settings: dict):
  _keep()
  return load_index(index, **settings)
