"""Compares seven algorithms on the made-up world: python benchmarks/algorithms.py [--machines]

Each seed and machine has one warm start, which is trained from the base reader (`make base`) until it reaches its
criterion. Every algorithm then runs from this warm start with the same budget: STEPS steps of EPISODES sampled
episodes. A finished run is not repeated, and a killed run continues from its last checkpoint. The table and the figure
show the finished runs; --docs writes them to docs/algorithms.md and docs/algorithms.png.
"""

import itertools
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Sequence

import machines
import matplotlib
import numpy as np
from absl import app, flags, logging
from papers import miniature
from tqdm import tqdm

from ragrl_jax.data import synthetic
from ragrl_jax.jobs import evaluate, train
from ragrl_jax.recipes.search_r1.recipe import demonstrate
from ragrl_jax.store import jsonl
from ragrl_jax.structs import Example

ROOT = pathlib.Path(__file__).parents[1]
OUT = flags.DEFINE_string("out", "out/algorithms", "Folder of the warm starts and of the runs.")
ARMS = flags.DEFINE_list("arms", [], "Which algorithms; all if empty.")
DOCS = flags.DEFINE_bool("docs", False, "Write the table and the figure to docs/.")
ONE = flags.DEFINE_string("one", "", "ARM/SEED/MACHINE: this run only, in this process; ARM may be warm.")

STEPS, EVERY = 8, 2
HELD_OUT = 300  # questions
EPISODES = 256  # most sampled episodes per step
SHARED = dict(
  rollout=dict(prompts_per_step=32, group_size=8),
  loss=dict(minibatches=2),
  optimizer=dict(learning_rate=2e-4, warmup_steps=5),
)
# Settings of each that differ from `SHARED` and the defaults. Two optimiser steps per batch, so that clipping matters.
ALGORITHMS = {
  "GRPO": dict(loss=dict(aggregation="seq_mean_token_mean")),
  "Dr. GRPO": dict(advantage=dict(std="none"), loss=dict(aggregation="seq_mean_token_sum_norm")),
  # Half the prompts per draw and at most two draws, so that it samples no more than the others.
  "DAPO": dict(
    rollout=dict(prompts_per_step=16, filter=dict(metric="outcome", max_draws=2)),
    loss=dict(clip_high=0.28),
    reward=dict(overlong_limit=72, overlong_buffer=24),
  ),
  "PPO": dict(
    rollout=dict(prompts_per_step=256, group_size=1),
    advantage=dict(kind="gae"),
    critic=dict(kind="own", learning_rate=1e-3, warmup_steps=2),
  ),
  "RLOO": dict(advantage=dict(kind="leave_one_out"), loss=dict(aggregation="seq_mean_token_sum")),
  "REINFORCE++": dict(advantage=dict(kind="reinforce_plus_plus")),
  "GSPO": dict(loss=dict(ratio="sequence", clip_low=3e-4, clip_high=4e-4, aggregation="seq_mean_token_mean")),
}
# The demonstrations are the quickstart's: two thirds of those that need two searches stop after the first.
MIX = {1: 1, 2: 2}


def questions(world: synthetic.World, seed: int) -> dict[str, Sequence[Example]]:
  draw = lambda count, number, part=synthetic.TRAIN, mix=MIX: synthetic.questions(
    world, count, mix=mix, part=part, seed=number, distinct=part == synthetic.HELD_OUT
  )
  return dict(
    demonstrations=draw(6000, seed),
    train=draw(4000, seed + 1),
    development=draw(miniature.DEVELOPMENT, seed, synthetic.DEVELOPMENT, {1: 1}),
    held_out=draw(HELD_OUT, seed, synthetic.HELD_OUT),
  )


WORLD = miniature.Paper(
  name="search_r1",
  world={},
  questions=questions,
  demonstrate=lambda example, world, search, rng: demonstrate(example, search, rng),
  base=dict(
    preset="grpo",
    switches=dict(instructions="none", max_searches=2),
    retrieval=dict(top_k=1),
    rollout=dict(lanes=32, rows=256, context=192, chunk=24, prefill=32, max_new_tokens=32),
    learner=dict(micro_rows=8, row_lengths=(384,), logprob_chunk=2048),
    evaluate=dict(every=EVERY, examples=HELD_OUT),
    checkpoint=dict(every=STEPS),
  ),
  sft={},
  rl=SHARED | dict(steps=STEPS),
  arms=ALGORITHMS,
  tests=dict(held_out={}),
  measure=lambda world, example, episode: {},
  claims=(),
  shown=("em", "searches"),
  warm=dict(em=0.95),
  searches=True,
)
NAMES = {name.lower().replace(". ", "_").replace("++", "_plus_plus"): name for name in ALGORITHMS}


def main(_):
  logging.set_verbosity(logging.WARNING)
  os.chdir(ROOT)
  out = pathlib.Path(OUT.value).resolve()
  if ONE.value:
    run(out, *ONE.value.split("/"))
    return
  # All runs share one cache of compiled programs, since most programs are the same.
  os.environ["JAX_COMPILATION_CACHE_DIR"] = str(out / "compiled")
  wanted = machines.wanted()
  play(out, [("warm", str(seed), machine) for seed, machine in wanted], "sft/reached.json")
  asked = [(arm, str(seed), machine) for seed, machine in wanted for arm in ARMS.value or NAMES]
  play(out, asked, "result.json")
  results = [json.loads(path.read_text()) for path in sorted(out.glob("*/result.json"))]
  text = table(results)
  print(text)
  if DOCS.value:
    (ROOT / "docs" / "algorithms.md").write_text(
      PAGE.format(
        table=text,
        steps=STEPS,
        episodes=EPISODES,
        n=results[0]["n"],
        runs=said(results),
        seeds=",".join(map(str, sorted({r["seed"] for r in results}))),
        digits=same_digits(results),
        commits=", ".join(sorted({r["commit"] for r in results})),
      )
    )
    figure(results, ROOT / "docs" / "algorithms.png")


def play(out: pathlib.Path, runs: Sequence[tuple[str, str, str]], made: str) -> None:
  """Plays the runs whose folders have no file `made` yet.

  Raises:
    RuntimeError: a run that ended without it.
  """
  missing = [one for one in runs if not (folder(out, *one) / made).is_file()]
  command = lambda one: [sys.executable, __file__, f"--one={'/'.join(one)}", f"--out={out}"]
  machines.run([machines.Job(one[2], command(one), folder(out, *one).with_suffix(".log")) for one in missing], cwd=ROOT)
  for one in missing:
    if not (folder(out, *one) / made).is_file():
      raise RuntimeError(
        f"{folder(out, *one)} has no {made}: its log, {folder(out, *one).with_suffix('.log')}, says why."
      )


def folder(out: pathlib.Path, arm: str, seed: str, machine: str) -> pathlib.Path:
  return out / f"{arm}_{machines.slug(machine)}_{seed}"


def run(out: pathlib.Path, arm: str, seed: str, machine: str) -> None:
  """Runs one algorithm from the warm start of the seed and the machine; "warm" is the warm start itself."""
  warm, workdir = folder(out, "warm", seed, machine), folder(out, arm, seed, machine)
  if arm == "warm":
    reached = miniature.warm_up(WORLD, int(seed), warm)
    (warm / "sft" / "reached.json").write_text(json.dumps(reached))
    return
  config = miniature.settings(WORLD, warm / "world", int(seed), WORLD.rl, ALGORITHMS[NAMES[arm]])
  config.data.evaluate = str(warm / "world" / "held_out.jsonl.gz")
  config.model.path = str(warm / "sft" / "model")
  start = time.perf_counter()
  for _ in tqdm(train.train(config, workdir, evaluate=evaluate.evaluator(config)), total=STEPS, unit="step"):
    pass
  seconds = time.perf_counter() - start
  rows = {row["step"]: row for row in jsonl.read(workdir / "metrics.jsonl")}
  trained = [rows[step] for step in range(1, STEPS + 1)]
  median = lambda name: float(np.median([row[name] for row in trained[1:]]))  # the first step compiles
  commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
  result = dict(
    commit=commit.strip(),
    arm=arm,
    seed=int(seed),
    machine=machine,
    n=int(rows[0]["evaluation/n"]),
    seconds=seconds,
    em={step: row["evaluation/em"] for step, row in rows.items() if "evaluation/em" in row},
    update_share=median("seconds/update") / median("seconds/step"),
    entropy=[trained[0]["entropy"], trained[-1]["entropy"]],
    clip_fraction=median("clip_fraction"),
    largest_old_kl=max(row["old_kl"] for row in trained),
    skipped=sum(row["skipped"] for row in trained),
    trained_episodes=sum(row["sequences"] for row in trained),
  )
  (workdir / "result.json").write_text(json.dumps(result, indent=1))


def by_arm(results):
  """[(name, its results, run by run)], best final EM first."""
  arms = {arm: [r for r in results if r["arm"] == arm] for arm in NAMES}
  result = [(NAMES[arm], runs) for arm, runs in arms.items() if runs]
  return sorted(result, key=lambda item: -np.mean([last(r) for r in item[1]]))


def last(result) -> float:
  return result["em"][str(STEPS)]


def said(results) -> str:
  """The caption, which names the runs that the means are over."""
  seeds, kinds = sorted({r["seed"] for r in results}), sorted({r["machine"] for r in results})
  return f"{len({(r['seed'], r['machine']) for r in results})} runs (seeds {seeds}; {'; '.join(kinds)})"


def same_digits(results) -> str:
  """The number of runs whose curves are equal on two machines, although sums are split differently there."""
  curves = {(r["machine"], r["arm"], r["seed"]): r["em"] for r in results}
  result = []
  for first, second in itertools.combinations(machines.MACHINES, 2):
    both = [
      (curves[first, *run], em)
      for (machine, *run), em in curves.items()
      if machine == second and (first, *run) in curves
    ]
    result += [f"{first} and {second}, {sum(a == b for a, b in both)} of {len(both)}"] if both else []
  return f"Runs with the same curve on two machines: {'; '.join(result) or 'none was made on two'}."


def table(results) -> str:
  """One row per algorithm, with means over its runs."""
  steps = range(0, STEPS + 1, EVERY)
  lines = [
    "| | "
    + " | ".join(f"EM, step {s}" for s in steps)
    + " | least and most at the end | gain | worst fall | entropy | clipped | largest KL per step "
    "| learns |",
    "|---" * (len(steps) + 8) + "|",
  ]
  return "\n".join(lines + [row(name, runs, steps) for name, runs in by_arm(results)])


def row(name: str, runs, steps) -> str:
  """The row of one algorithm."""
  em = lambda step: np.mean([r["em"][str(step)] for r in runs])
  mean = lambda key: np.mean([r[key] for r in runs])
  gains = [last(r) - r["em"]["0"] for r in runs]
  fall = max(max(r["em"][str(a)] - r["em"][str(b)] for a in steps for b in steps if b >= a) for r in runs)
  entropy = np.mean([r["entropy"] for r in runs], axis=0)
  return (
    f"| {name} | "
    + " | ".join(f"{em(s):.3f}" for s in steps)
    + f" | {min(map(last, runs)):.3f} to {max(map(last, runs)):.3f} | {np.mean(gains):+.3f}"
    f" | {fall:.3f} | {entropy[0]:.3f} → {entropy[1]:.3f} | {mean('clip_fraction'):.1%}"
    f" | {mean('largest_old_kl'):.1e}"
    f" | {'yes' if min(gains) >= 0.2 else 'no' if max(gains) < 0.2 else 'not every run'} |"
  )


def figure(results, path: pathlib.Path) -> None:
  """EM over steps: one line per algorithm, with its runs as a band."""
  matplotlib.use("agg")
  from matplotlib import pyplot

  picture, axes = pyplot.subplots(figsize=(8, 4.5), dpi=150)
  steps = list(range(0, STEPS + 1, EVERY))
  for name, runs in by_arm(results):
    curves = np.asarray([[r["em"][str(s)] for s in steps] for r in runs])
    (line,) = axes.plot(steps, curves.mean(axis=0), marker="o", markersize=3, label=name)
    axes.fill_between(steps, curves.min(axis=0), curves.max(axis=0), color=line.get_color(), alpha=0.12)
  axes.set(xlabel="step", ylabel="held-out exact match (greedy)", ylim=(0, 1.02), xticks=steps)
  axes.grid(alpha=0.3)
  axes.legend(frameon=False, ncols=2, loc="lower right")
  picture.tight_layout()
  picture.savefig(path)


PAGE = """# Seven algorithms, one world

`python benchmarks/algorithms.py --machines --seeds={seeds} --docs` wrote this page from runs of commit {commits}.
Every run starts from a warm start of its seed and machine, and takes {steps} steps. The warm start is the base
reader, fine-tuned on faulty demonstrations in a made-up world until it answers one-hop questions. A step samples at
most {episodes} episodes and takes two optimiser steps, each on half of the prompts. The reward is exact match
alone. The learning rate is 2e-4 for all; nothing was tuned. EM is on {n} held-out questions, greedy, mean of
{runs}.

{table}

- *gain*: over the warm start. *learns*: a gain of at least 0.2 in every run.
- *worst fall*: the largest drop of EM from one evaluation to any later one, over all runs.
- *entropy*: nats per token, first and last step. *clipped*: median share of clipped tokens. *largest KL per step*: the
  largest KL(old ‖ new) over one step's updates.
- {digits}
- `ALGORITHMS` in `benchmarks/algorithms.py` has the settings of each algorithm. DAPO draws 16 prompts at a time, at
  most twice, and trains on the first 16 groups whose outcomes differ. PPO samples one episode for each of 256 prompts;
  its critic has its own parameters.

![EM over steps](algorithms.png)
"""


if __name__ == "__main__":
  app.run(main)
