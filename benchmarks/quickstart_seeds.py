"""The quickstart's claim, seed by seed: python benchmarks/quickstart_seeds.py [--seeds 0,1,2] [--out out/quickstart_seeds]

For each seed: EM on held-out questions after the warm start and after RL, by number of hops, and what the same time
spent on more supervised steps gives instead (the SFT-only curve). A finished seed is not run again.
"""

import importlib.util
import json
import pathlib
import subprocess
import sys

from absl import app, flags, logging
from flax import nnx
from tqdm import tqdm

from ragrl_jax import sft
from ragrl_jax.data import readers
from ragrl_jax.evaluation import harness, player as player_lib

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
  print(f"\nClaim (warm start <= 0.5 EM, after RL >= 0.85 EM): {'holds for every seed' if not missed else f'MISSED by seeds {missed}'}")
  sys.exit(bool(missed))


def row(summary: dict, curve: dict[str, float]) -> dict:
  hops = lambda side: {hop: round(part["em"], 3) for hop, part in summary[side]["by_hops"].items()}
  return dict(seed=summary["seed"], warm=summary["em_before"], after=summary["em_after"], warm_by_hop=hops("before"),
              after_by_hop=hops("after"), n=summary["after"]["n"], searches=[summary["searches_before"], summary["searches_after"]],
              seconds=summary["seconds"], sft_only=curve)


def sft_only(workdir: pathlib.Path, seed: int) -> dict[str, float]:
  """EM by step of a supervised run that has the warm start's schedule, stretched over SFT_STEPS."""
  done = workdir / "sft_only.json"
  if done.is_file():
    return json.loads(done.read_text())
  spec = importlib.util.spec_from_file_location("quickstart_config", ROOT / "configs" / "quickstart.py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  config, world, curve = module.get_config("sft"), workdir / "world", {}
  config.steps, config.seed = SFT_STEPS.value, seed
  config.prompting.tokenizer, config.retrieval.index = str(world / "tokenizer.model"), str(world / "index")
  config.data.train = str(world / "demonstrations.jsonl.gz")
  held_out = list(readers.read_examples(world / "held_out.jsonl.gz"))
  player = player_lib.build(config)

  def evaluate(step, model):
    if step % 75 and step != config.steps:
      return {}
    player.engine.load(nnx.split(model)[1], version=step)
    play = lambda part, first: player_lib.answers(player, part, first)
    found = [r for part in harness.rows_of(held_out, play, player.recipe, batch=len(held_out)) for r, _ in part]
    curve[str(step)] = round(harness.summarise(found)["em"], 3)
    return {}

  for _ in tqdm(sft.sft(config, workdir / "sft_only", observe=evaluate), total=config.steps, desc="SFT only", unit="step"):
    pass
  done.write_text(json.dumps(curve))
  return curve


def table(rows: list[dict]) -> str:
  pair = lambda hops: " / ".join(f"{hop}-hop {em:.3f}" for hop, em in hops.items())
  lines = ["seed | warm start EM | after RL EM | searches | seconds | SFT only, EM by step"]
  for r in rows:
    curve = ", ".join(f"{step}: {em:.3f}" for step, em in r["sft_only"].items())
    lines.append(f"{r['seed']} | {r['warm']:.3f} ({pair(r['warm_by_hop'])}) | {r['after']:.3f} ({pair(r['after_by_hop'])}) | "
                 f"{r['searches'][0]:.2f} -> {r['searches'][1]:.2f} | {r['seconds']:.0f} | {curve}")
  return "\n".join(lines) + f"\n(n = {rows[0]['n']} held-out questions a seed, greedy)"


if __name__ == "__main__":
  app.run(main)
