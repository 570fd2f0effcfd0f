"""The quickstart's claim, seed by seed: python benchmarks/quickstart_seeds.py [--seeds 0,1,2] [--out FOLDER]

For each seed: EM on held-out questions after the warm start and after RL, by number of hops, and what the same time
spent on more supervised steps gives instead (the SFT-only curve). A finished seed is not run again.
"""

import json
import pathlib
import subprocess
import sys

from absl import app, flags, logging
from flax import nnx
from tqdm import tqdm

from ragrl_jax import config as config_lib
from ragrl_jax import evaluate, sft
from ragrl_jax.data import readers
from ragrl_jax.evaluation import player as player_lib

ROOT = pathlib.Path(__file__).parents[1]
SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2"], "Which seeds.")
OUT = flags.DEFINE_string("out", "out/quickstart_seeds", "Folder for the runs and table.json.")
SFT_STEPS = flags.DEFINE_integer("sft_steps", 450, "Supervised steps of the SFT-only curve; the warm start has 300.")


def main(_):
  logging.set_verbosity(logging.WARNING)
  out, rows = pathlib.Path(OUT.value), []
  for seed in map(int, SEEDS.value):
    workdir = out / f"seed_{seed}"
    if not (workdir / "summary.json").is_file():
      subprocess.run([sys.executable, str(ROOT / "launchers" / "quickstart.py"), f"--workdir={workdir}",
                      f"--seed={seed}"], check=True, cwd=ROOT)
    rows.append(row(json.loads((workdir / "summary.json").read_text()), sft_only(workdir, seed)))
  (out / "table.json").write_text(json.dumps(rows, indent=1))
  print(table(rows))
  missed = [r["seed"] for r in rows if r["warm"] > 0.5 or r["after"] < 0.85]
  verdict = f"MISSED by seeds {missed}" if missed else "holds for every seed"
  print(f"\nClaim (warm start <= 0.5 EM, after RL >= 0.85 EM): {verdict}")
  sys.exit(bool(missed))


def row(summary: dict, curve: dict[str, float]) -> dict:
  hops = lambda side: {hop: round(part["em"], 3) for hop, part in summary[side]["by_hops"].items()}
  return dict(
    seed=summary["seed"], warm=summary["em_before"], after=summary["em_after"], warm_by_hop=hops("before"),
    after_by_hop=hops("after"), n=summary["after"]["n"], seconds=summary["seconds"], sft_only=curve,
    searches=[summary["searches_before"], summary["searches_after"]])


def sft_only(workdir: pathlib.Path, seed: int) -> dict[str, float]:
  """EM by step of a supervised run that has the warm start's schedule, stretched over SFT_STEPS."""
  done = workdir / "sft_only.json"
  if done.is_file():
    return json.loads(done.read_text())
  config, world, curve = config_lib.load(ROOT / "configs" / "quickstart.py", "sft"), workdir / "world", {}
  config.steps, config.seed = SFT_STEPS.value, seed
  config.prompting.tokenizer, config.retrieval.index = str(world / "tokenizer.model"), str(world / "index")
  config.data.train = str(world / "demonstrations.jsonl.gz")
  held_out = list(readers.read_examples(world / "held_out.jsonl.gz"))
  player = player_lib.build(config)

  def observe(step, model):
    if step % 75 and step != config.steps:
      return {}
    found, _ = evaluate.measure(player, nnx.split(model)[1], held_out, version=step)
    curve[str(step)] = round(found["em"], 3)
    return {}

  steps = sft.sft(config, workdir / "sft_only", observe=observe)
  for _ in tqdm(steps, total=config.steps, desc="SFT only", unit="step"):
    pass
  done.write_text(json.dumps(curve))
  return curve


def table(rows: list[dict]) -> str:
  pair = lambda hops: " / ".join(f"{hop}-hop {em:.3f}" for hop, em in hops.items())
  lines = ["seed | warm start EM | after RL EM | searches | seconds | SFT only, EM by step"]
  for r in rows:
    curve = ", ".join(f"{step}: {em:.3f}" for step, em in r["sft_only"].items())
    warm, after = (f"{r[side]:.3f} ({pair(r[f'{side}_by_hop'])})" for side in ("warm", "after"))
    searches = " -> ".join(f"{n:.2f}" for n in r["searches"])
    lines.append(f"{r['seed']} | {warm} | {after} | {searches} | {r['seconds']:.0f} | {curve}")
  return "\n".join(lines) + f"\n(n = {rows[0]['n']} held-out questions a seed, greedy)"


if __name__ == "__main__":
  app.run(main)
