r"""Builds an index from a corpus. After a kill, the same command continues where it stopped.

    ragrl index --corpus FOLDER --encoder bm25|hashing|MODEL --out DIR
    ragrl index --corpus FOLDER --encoder bm25|MODEL --out milvus:http://HOST:19530/COLLECTION
    ragrl index --corpus wiki.jsonl.gz --encoder e5-base-v2/ --factory IVF4096,PQ96 \
        --options nprobe=64 --dtype float16 --out wiki_e5
"""

import argparse
import json
import os
import re

from ragrl_jax.cli import commands
from ragrl_jax.retrieval import build_index, databases, is_served, load_index, vectors
from ragrl_jax.retrieval.documents import Chunks
from ragrl_jax.store import compile_cache


def main() -> None:
  parser = commands.Parser(__doc__)
  about = "documents or rows, in files or a folder (docs/howto/corpus.md)"
  parser.add_argument("--corpus", required=True, action=commands.Once, help=about)
  parser.add_argument("--encoder", required=True, help="bm25, hashing, or a model's folder or Hugging Face name")
  parser.add_argument("--out", required=True, help="folder, or a database's address (docs/retrieval.md)")
  parser.add_argument("--key_variable", default="", help="environment variable with the database's token")
  parser.add_argument("--factory", default="Flat", help="FAISS factory string of a dense index (default: exact)")
  parser.add_argument("--options", default="", help="FAISS search parameters, such as nprobe=64 or efSearch=128")
  candidates = "candidates that an inexact index fetches per passage"
  parser.add_argument("--oversample", type=commands.whole_number(1), default=4, help=candidates)
  parser.add_argument("--dtype", default="float32", choices=vectors.DTYPES, help="dtype of the stored vectors")
  parser.add_argument(
    "--encoder_options",
    type=json.loads,
    default={},
    metavar="JSON",
    help='for example {"stemmer": "english"} for bm25, {"dim": 1024} for hashing',
  )
  parser.add_argument("--chunk_tokens", type=int, default=0, help="tokens of a passage (documents: 100, 12 shared)")
  parser.add_argument("--chunk_overlap", type=int, default=0, help="of these, shared with the previous passage")
  parser.add_argument("--chunk_tokenizer", default="words", help="words, or a folder with a tokenizer.json")
  parser.add_argument("--shard", type=_shard, help="1/4: index the first of four parts, for a separate server")
  parser.add_argument("--threads", type=commands.whole_number(1), help="threads of FAISS; all cores by default")
  parser.add_argument("--overwrite", action="store_true", help="replace an index of other arguments, or a damaged one")
  arguments = vars(parser.parse_args())
  unused = lambda names: [f"--{name}" for name in names if arguments[name] != parser.get_default(name)]
  if not arguments["chunk_tokens"] and (given := unused(("chunk_overlap", "chunk_tokenizer"))):
    parser.error(f"{', '.join(given)} without --chunk_tokens: only chunks have these; give it, or leave them out")
  is_server, variable = is_served(arguments["out"]), arguments.pop("key_variable")
  key = os.environ.get(variable, "")
  if variable and not (is_server and key):
    why = "this environment variable holds no token" if is_server else "only a database takes a token, so leave it out"
    parser.error(f"--key_variable={variable}: {why}")
  if is_server and (given := unused(("factory", "options", "oversample", "dtype", "shard", "threads"))):
    parser.error(f"{', '.join(given)} with a database: only an index's folder has these, so leave them out")
  if arguments["encoder"] == "bm25" and (given := unused(("factory", "options", "oversample", "dtype"))):
    parser.error(f"{', '.join(given)} with --encoder bm25: only a dense index has these, so leave them out")
  tokens, overlap, tokenizer = (arguments.pop(f"chunk_{name}") for name in ("tokens", "overlap", "tokenizer"))
  chunks = Chunks(tokens, overlap, tokenizer) if tokens else None
  compile_cache.keep()
  if is_server:
    corpus, encoder, out = (arguments[name] for name in ("corpus", "encoder", "out"))
    options = {name: arguments[name] for name in ("encoder_options", "overwrite")}
    databases.fill(corpus, encoder, out, chunks=chunks, key=key, **options)
    description = load_index(out, key=key).describe()
  else:
    out = build_index(chunks=chunks, **arguments)
    description = load_index(out).describe()
  print(json.dumps(dict(index=str(out), **description), ensure_ascii=False))


def _shard(text: str) -> tuple[int, int]:
  """ "1/4" → (1, 4)."""
  if not re.fullmatch(r"\d{1,6}/\d{1,6}", text):
    raise argparse.ArgumentTypeError(f"{text!r}: it must be the part's number and the number of parts, such as 1/4")
  number, of = map(int, text.split("/"))
  return number, of
