"""Search over passages: `load_index(path).search(queries, k)`."""

import os
import pathlib
from collections.abc import Callable
from typing import Any

from ragrl_jax.retrieval.api import Encoder, Retriever

__all__ = ["build_index", "is_served", "load_index"]

# What index.json must have; the types of JSON.
LEXICAL = {"bm25.words": dict, "bm25.wordless": int}
DENSE = {"encoder.settings": dict, "factory": str, "options": str, "dtype": str, "dim": int, "oversample": int}
DENSE["max_norm"] = (int, float)


def is_served(path: str | os.PathLike) -> bool:
  """Whether it is the address of a retriever or a database, which take deadlines and a token, and not a folder."""
  schemes = ("http://", "https://", "milvus:", "opensearch:", "elasticsearch:")
  return os.fspath(path).startswith(schemes)


def load_index(
  path: str | os.PathLike,
  *,
  encoder: str | os.PathLike | Encoder | None = None,
  search: str = "faiss",
  options: str | None = None,
  device_dtype: str = "float32",
  threads: int | None = None,
  dispatch: Callable[..., Any] | None = None,
  verify_bytes: int = 256 << 20,
  **remote: Any,
) -> Retriever:
  """Loads the retriever that `config.retrieval.index` names.

  Args:
    path: a folder made by `build_index`, the address of a retriever ("http://host:port"), the comma-separated addresses
      of all parts of a corpus, a database's address (see `databases`), or a file that fuses or reranks indexes
      (FUSED.json, see `fusion`), which get the arguments below, except encoder and options.
    encoder: for a dense index: the encoder, or its folder or hub name if it was moved; None loads the one of the index.
    search: for a dense index, "faiss" or "device" (exact search on the accelerators).
    options: FAISS's search parameters, such as "nprobe=64"; None uses those of the index.
    device_dtype: dtype of the vectors on the accelerators: "float32", "bfloat16" or "int8". It affects memory and
      speed, but not the answers.
    threads: FAISS's threads for one search; None uses all cores.
    dispatch: see `dense.DenseRetriever`.
    verify_bytes: largest index, in bytes, whose SHA-256 digests are compared with those of the build. Of a larger
      index only the files' sizes are compared.
    **remote: for an address, arguments of `remote.RemoteRetriever`: timeout_s, deadline_s, retries, wait_s, max_bytes,
      key.

  Raises:
    ValueError: there is no finished index, or its files do not match.
    RetrievalFailed: no server answers at the address.
  """
  where = os.fspath(path)
  if where.startswith(("http://", "https://")):
    if encoder is not None or options is not None:
      raise ValueError("a retriever at an address has encoder and options of its own: leave them out.")
    from ragrl_jax.retrieval.fusion import ShardedRetriever
    from ragrl_jax.retrieval.remote import RemoteRetriever

    parts = [RemoteRetriever(address.strip(), **remote) for address in where.split(",")]
    return parts[0] if len(parts) == 1 else ShardedRetriever(parts)
  if is_served(where):
    from ragrl_jax.retrieval import databases

    if options is not None or search != "faiss":
      raise ValueError(f"{where}: a database searches by itself: leave out search and options.")
    return databases.open_database(where, encoder=encoder, dispatch=dispatch, **remote)
  if where.endswith(".json"):
    from ragrl_jax.retrieval import fusion

    if encoder is not None or options is not None:
      raise ValueError(f"{where}: encoder and options belong to one index, not to a file that joins several.")

    def part(name, **settings):  # only servers, and files that may name some, get the arguments for servers
      takes = is_served(name) or os.fspath(name).endswith(".json")
      return load_index(name, **settings, **(remote if takes else {}))

    settings = dict(search=search, device_dtype=device_dtype, threads=threads, dispatch=dispatch)
    return fusion.load(where, part, **settings, verify_bytes=verify_bytes)
  if remote:
    raise ValueError(f"{sorted(remote)}: these settings are for a retriever at an address, but {where!r} is not one.")
  return _local(pathlib.Path(where), encoder, search, options, device_dtype, threads, dispatch, verify_bytes)


def _local(folder: pathlib.Path, encoder, search, options, device_dtype, threads, dispatch, verify_bytes) -> Retriever:
  from ragrl_jax.retrieval import bm25, cards, dense, encoders, faiss_index
  from ragrl_jax.retrieval.build import FORMAT, INDEX, REQUEST, made_of
  from ragrl_jax.retrieval.corpus import Corpus

  if not (folder / INDEX).is_file():
    why = (
      "its build did not finish: run the same `ragrl index` command again to continue it"
      if (folder / REQUEST).is_file()
      else "build one with `ragrl index` (config.retrieval.index, --index)"
    )
    raise ValueError(f"{folder}: no index here: {why}.")
  card = cards.read_card(folder / INDEX, {"corpus.checksum": str, "encoder.kind": str, "files": dict})
  if card.get("format") != FORMAT:
    raise ValueError(f"{folder}: index format {card.get('format')!r}, this version reads {FORMAT}: build it again.")
  corpus = Corpus(folder / "corpus")
  if corpus.checksum != card["corpus"]["checksum"]:
    raise ValueError(
      f"{folder}: the passages differ from those that were indexed "
      f"({corpus.checksum[:12]}, not {card['corpus']['checksum'][:12]}): build it again."
    )
  lexical = card["encoder"]["kind"] == "bm25"
  if lexical and (encoder is not None or options is not None):
    raise ValueError(f"{folder}: BM25 has neither an encoder nor FAISS's options: leave them out.")
  if search == "device" and options is not None:
    raise ValueError(f"{folder}: FAISS's options have no effect with search='device': leave one of them out.")
  cards.check_card(folder / INDEX, card, LEXICAL if lexical else DENSE)
  vectors = None if lexical else dense.open_vectors(folder, rows=len(corpus), dim=card["dim"])
  cards.check(folder, card["files"], verify_bytes=verify_bytes)
  if lexical:
    return bm25.BM25Retriever(folder / "bm25", corpus, card["bm25"], card.get("shard"))
  options = card["options"] if options is None else options
  if card.get("made", made_of(card)) != made_of(card):
    raise ValueError(f"{folder}: {INDEX} was changed since the index was built (its settings): build it again.")
  model = encoders.reload(card, folder, encoder)
  description = dict(
    kind="dense",
    encoder=card["encoder"]["settings"],
    factory=card["factory"],
    options=options,
    dtype=card["dtype"],
    made=made_of(card),
    search=search,
  )
  if "shard" in card:
    description["shard"] = card["shard"]
  if search == "device":
    from ragrl_jax.retrieval.device import DeviceIndex

    index = DeviceIndex(vectors, max_norm=card["max_norm"], dtype=device_dtype)
    description["device_dtype"] = device_dtype
  elif search != "faiss":
    raise ValueError(f"search={search!r}: it must be 'faiss' or 'device'.")
  elif card["factory"] == "Flat":
    faiss_index.set_options(faiss_index.make("Flat", card["dim"]), options)  # refuses those of other indexes
    index = faiss_index.Flat(vectors, max_norm=card["max_norm"], threads=threads)
  else:
    index = faiss_index.Approximate(
      folder / "index.faiss", vectors, options=options, oversample=card["oversample"], threads=threads
    )
  return dense.DenseRetriever(
    corpus, index, encoder=model, model=encoders.find_name(card), description=description, dispatch=dispatch
  )


def build_index(*arguments: Any, **settings: Any) -> pathlib.Path:
  """Builds an index; see `build.build_index`."""
  from ragrl_jax.retrieval import build

  return build.build_index(*arguments, **settings)
