r"""Tokens and seconds of an update on the episodes that a run logged, with rows that share more or less.

Run:    python benchmarks/tree_rows.py WORKDIR [--model FOLDER] [--steps 2,40] [--rows 1] [--repeats 3]
Expect: LOG.md, "Samples of one question".

  apart      every sequence is whole
  one level  one shared beginning, then the rest of each sample: rows of GPUs and TPUs
  trees      every shared token once: rows of CPUs

Row lengths are chosen from the steps' items, for each kind of rows. The seconds are those of the fastest of the
repeats, in which the kinds take turns.
"""

import argparse
import pathlib
import time

import numpy as np

from ragrl_jax.learner import learner as learner_lib, packing, row_layout
from ragrl_jax.learner.settings import OptimizerSettings, Settings
from ragrl_jax.models import weights
from ragrl_jax.store import episodes as episodes_lib


def items(path: pathlib.Path) -> list[packing.Item]:
  """The items of a step's episodes, with the advantages that they had."""
  result = []
  for row in episodes_lib.read_episodes(path):
    episode = episodes_lib.episode_of(row)
    for item in packing.of_episode(episode, [0.0] * sum(s.owner == "model" for s in episode.segments)):
      item.advantages[item.loss_mask] = row["advantage"] or 0.0
      result.append(item)
  return result


def main():
  cli = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  cli.add_argument("workdir", type=pathlib.Path)
  cli.add_argument("--model", help="the model's folder; by default the run's warm start")
  cli.add_argument("--steps", default="2,40", help="of the run, separated by commas")
  cli.add_argument("--rows", type=int, default=1, help="rows of a block")
  cli.add_argument("--repeats", type=int, default=3)
  args = cli.parse_args()
  paths = episodes_lib.steps(args.workdir)
  steps = {int(number): items(paths[int(number)]) for number in args.steps.split(",")}
  model, _ = weights.load_pretrained(args.model or args.workdir / "warm" / "model", dtype="float32")
  learner = learner_lib.Learner(model, Settings(logprob_chunk=2048), OptimizerSettings(learning_rate=1e-9))
  kinds = {"apart": None, "one level": row_layout.Sharing(deep=False), "trees": row_layout.Sharing()}
  options = {}
  for kind, sharing in kinds.items():
    lengths = row_layout.choose([*steps.values()], rows=args.rows, sharing=sharing)
    options[kind] = dict(rows=args.rows, lengths=lengths, sharing=sharing)
  print(f"{'step':>6s}  {'rows':10s}{'lengths':>14s}{'tokens':>9s}{'places':>9s}{'seconds':>9s}")
  for number, some in steps.items():
    seconds = {kind: np.inf for kind in kinds}
    metrics = {}
    for _ in range(args.repeats + 1):  # the first one compiles
      for kind in kinds:
        state, start = learner.init(0), time.perf_counter()
        ready = learner.prepare(state, [some], lambda parts, kind=kind: [packing.pack_items(parts[0], **options[kind])])
        metrics[kind] = learner_lib.drain(learner.train(state, ready))[1]
        seconds[kind] = min(seconds[kind], time.perf_counter() - start)
    for kind, found in metrics.items():
      tokens, places = found["packed_tokens"], found["packed_tokens"] / found["packing"]
      lengths = " ".join(map(str, options[kind]["lengths"]))
      print(f"{number:6d}  {kind:10s}{lengths:>14s}{tokens:9.0f}{places:9.0f}{seconds[kind]:9.3f}")


if __name__ == "__main__":
  main()
