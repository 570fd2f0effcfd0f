r"""Intervals over articles instead of questions, of the recorded runs: python benchmarks/real_model/articles.py

The test questions of docs/real_model.md are of a few articles each. A question's article is the title of its first
passage in the rows that run.py made the questions of. The difference is that of exact match, RL beside the warm start.
With G articles, the variance of its mean is G / (G - 1) · Σ over articles of (the sum of its questions' deviations)² /
n², and the interval is Student's with G - 1 degrees of freedom.
"""

import argparse
import json
import pathlib

import numpy as np
import run
import scipy.stats

from ragrl_jax.data import readers

RUNS = pathlib.Path(__file__).with_name("runs")


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data", default="", help="rows with the questions' ids; as for run.py")
  source = run.rows(parser.parse_args().data)
  titles = {example.id: example.passages[0].title for example in readers.read_examples(source)}
  print(
    "| run | seed | articles | questions | EM, difference | 95 %, over articles |",
    "|---|---|---|---|---|---|",
    sep="\n",
  )
  for path in sorted(RUNS.glob("*.json")):
    record = json.loads(path.read_text())
    columns = record.get("questions", {})
    for how in ("greedy", "sampled"):
      before, after = (columns.get(f"{state}_{how}") for state in ("sft", "rl"))
      if not (before and after):
        continue
      em = dict(zip(before["id"], before["em"]))
      gains = np.array([one - em[name] for name, one in zip(after["id"], after["em"])])
      mean, low, high, count = interval(gains, [titles[name] for name in after["id"]])
      where = f"{record['run']['name']}, {how} | {record['run']['seed']} | {count} | {len(gains)}"
      print(f"| {where} | {mean:+.3f} | [{low:+.3f}, {high:+.3f}] |")


def interval(gains: np.ndarray, articles: list[str]) -> tuple[float, float, float, int]:
  """(mean, low, high, number of articles) of the differences [n], each of a question of an article."""
  names, at = np.unique(articles, return_inverse=True)
  count, mean = len(names), gains.mean()
  sums = np.bincount(at, gains - mean)
  half = scipy.stats.t.ppf(0.975, count - 1) * np.sqrt(count / (count - 1) * (sums**2).sum()) / len(gains)
  return mean, mean - half, mean + half, count


if __name__ == "__main__":
  main()
