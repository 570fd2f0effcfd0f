"""Shared by the commands that generate transcripts or verdicts with chat models."""

import asyncio
import os
import sys
from collections.abc import Mapping
from typing import Any

from absl import flags
from tqdm import tqdm

from ragrl_jax.chat.client import CachedClient, Client
from ragrl_jax.data import transcripts
from ragrl_jax.settings import Judge

MAX_MISSING = flags.DEFINE_float(
  "max_missing",
  0.05,
  "Exit with 1 if more than this share got no answer; the other answers are still written.",
  lower_bound=0.0,
  upper_bound=1.0,
)


def model(url: str, name: str, key_variable: str, answers: str, **sampling) -> CachedClient:
  """A model at an endpoint, whose answers are cached in a file, and whose key is in the environment variable."""
  return CachedClient(Client(url, name, key=os.environ.get(key_variable, "")), answers, sampling=sampling)


def ask(make, examples, *models):
  """Runs `make(examples, *models, progress=…)` with a progress bar; returns its (kept, counts)."""
  with tqdm(total=len(examples), unit="question") as bar:
    return asyncio.run(make(examples, *models, progress=lambda counts: bar.update(counts.total() - bar.n)))


def report(counts, out) -> None:
  """Prints the number of questions by status, and the file of the kept ones; then calls `settle`."""
  for status, count in counts.most_common():
    print(f"{count:7d}  {status}")
  print(out)
  settle(counts[transcripts.NO_ANSWER], counts.total(), "questions", again=AGAIN)


AGAIN = "The same command asks only for the missing answers again."


def of_judges(settings: Judge, judged: Mapping[str, Mapping[str, Any]]) -> str:
  """What the same command asks again, if some verdicts are missing."""
  cached = settings.cache or any(its.get("cache") for its in judged.values())
  return AGAIN if cached else "The same command asks about all of them again: config.judge.cache names no file."


def settle(missing: int, total: int, what: str, *, again: str) -> None:
  """Ends the process with 1 if more than --max_missing of the total is missing. `again`: what to do about it."""
  if missing > MAX_MISSING.value * total:
    sys.exit(
      f"{missing} of {total} {what} got no answer, more than --max_missing={MAX_MISSING.value:g} of them. {again}"
    )
