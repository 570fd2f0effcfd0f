"""Does a better retriever still help after RL? python benchmarks/retriever_rl.py [--retriever_seeds 0,1,2,3,4]

This is a miniature on the made-up world, with the base reader (`make base`) and the warm starts of algorithms.py. Two
retrievers over the same passages differ only in quality: the world's own, and one whose vectors have so few dimensions
(WEAK) that words collide. From each seed's warm start, one policy is trained with each retriever (GRPO, the settings of
algorithms.py). The policies and the warm start then answer the held-out questions with both retrievers. The table has
the gain from the better retriever before and after RL, with Student's 95 % intervals over the seeds. If RL compensated
for a weak retriever, the gain after RL would be 0. A finished run is not repeated.
"""

import json
import os
import pathlib
import sys

import algorithms
import machines
import numpy as np
from absl import app, flags, logging
from tqdm import tqdm

from ragrl_jax import retrieval
from ragrl_jax.core.metrics import stats
from ragrl_jax.jobs import evaluate, train

OUT = flags.DEFINE_string("retriever_out", "out/retriever_rl", "Folder of the warm starts and of the runs.")
SEEDS = flags.DEFINE_list("retriever_seeds", ["0", "1", "2", "3", "4"], "Seeds of worlds, warm starts and runs.")

WEAK = 32  # dimensions of the worse retriever's vectors; the world's own have 512
RETRIEVERS = ("weak", "strong")
POLICIES = ("warm", *RETRIEVERS)  # the warm start, and the policy trained with each retriever


def indexes(world: pathlib.Path) -> dict[str, str]:
  """Name of a retriever → the folder of its index. The weak index is built if it does not exist."""
  weak = world / "index_weak"
  retrieval.build_index(world / "corpus.jsonl.gz", "hashing", weak, encoder_options=dict(dim=WEAK), progress=False)
  return dict(weak=str(weak), strong=str(world / "index"))


def play(out: pathlib.Path, seed: str) -> dict[str, dict[str, float]]:
  """Policy → retriever → EM on the held-out questions, of one seed."""
  warm = algorithms.folder(out, "warm", seed, machines.FIRST)
  if not (warm / "sft" / "reached.json").is_file():
    algorithms.run(out, "warm", seed, machines.FIRST)
  paper, result = algorithms.WORLD, indexes(warm / "world")
  at = {"warm": warm / "sft"} | {name: out / f"{name}_{seed}" for name in RETRIEVERS}
  held_out, scores = str(warm / "world" / "held_out.jsonl.gz"), {}
  for policy in POLICIES:
    config = algorithms.miniature.settings(paper, warm / "world", int(seed), paper.rl, algorithms.ALGORITHMS["GRPO"])
    config.model.path = str(warm / "sft" / "model")
    if policy != "warm":
      config.retrieval.index = result[policy]
      steps = train.train(config, at[policy], evaluate=evaluate.evaluator(config))
      for _ in tqdm(steps, total=algorithms.STEPS, desc=f"{policy} {seed}", unit="step"):
        pass
    scores[policy] = {}
    for name, index in result.items():
      config.retrieval.index = index
      where = str(out / "scores" / f"{policy}_{name}_{seed}")
      scores[policy][name] = evaluate.evaluate(config, str(at[policy]), held_out, where)["em"]
  return scores


def table(rows: list[dict[str, dict[str, float]]]) -> str:
  """Means over the seeds, and the gain of each policy from the better retriever."""
  lines = ["| policy | weak retriever | strong retriever | the better one adds |", "|---|---|---|---|"]
  for policy in POLICIES:
    both = {name: np.array([scores[policy][name] for scores in rows]) for name in RETRIEVERS}
    gain = both["strong"] - both["weak"]
    low, high = stats.t_interval(gain)
    name = "warm start" if policy == "warm" else f"RL with the {policy} one"
    means = " | ".join(f"{values.mean():.3f}" for values in both.values())
    lines.append(f"| {name} | {means} | {gain.mean():+.3f} [{low:+.3f}, {high:+.3f}] |")
  return "\n".join(lines)


def main(_):
  logging.set_verbosity(logging.WARNING)
  out = pathlib.Path(OUT.value).resolve()
  os.chdir(algorithms.ROOT)
  every = []
  for seed in SEEDS.value:
    kept = out / f"scores_{seed}.json"
    if not kept.is_file():
      result = play(out, seed)
      kept.write_text(json.dumps(result, indent=1))
    every.append(json.loads(kept.read_text()))
    print(f"{len(every)} seeds, EM on {algorithms.HELD_OUT} held-out questions\n\n{table(every)}\n", flush=True)
  return 0


if __name__ == "__main__":
  sys.exit(app.run(main))
