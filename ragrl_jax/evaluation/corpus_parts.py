"""Audits an index's corpus with several processes. Each reads a part of it."""

import concurrent.futures
import itertools
import multiprocessing
import pathlib
from collections.abc import Sequence

from tqdm import tqdm

from ragrl_jax.evaluation import corpus_audit
from ragrl_jax.retrieval import corpus as corpus_lib
from ragrl_jax.structs import Example

PART = 200_000  # fewest passages for which another process is started


def of_folder(
  examples: Sequence[Example], folder: pathlib.Path, workers: int, *, titles: bool = False
) -> corpus_audit.Holdings:
  """`corpus_audit.holdings` of an index's corpus, computed by several processes."""
  size = len(corpus_lib.Corpus(folder))
  parts = min(4 * workers, size // PART)
  if workers == 1 or parts < 2:
    return of_part(examples, folder, 0, size, titles=titles)
  edges = [size * number // parts for number in range(parts + 1)]
  # A forked process would share JAX's threads.
  with concurrent.futures.ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
    running = [pool.submit(of_part, examples, folder, *pair, titles=titles) for pair in itertools.pairwise(edges)]
    done = [one.result() for one in tqdm(running, desc="corpus", unit="part")]
  held = done[0]
  for other in done[1:]:
    held = held.plus(other)
  return held


def of_part(
  examples: Sequence[Example], folder: pathlib.Path, first: int, last: int, *, titles: bool = False
) -> corpus_audit.Holdings:
  """`corpus_audit.holdings` of the rows from `first` up to `last`."""
  stored = corpus_lib.Corpus(folder)
  return corpus_audit.holdings(examples, (stored[row] for row in range(first, last)), titles=titles)
