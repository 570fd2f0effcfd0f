"""The quickstart's claim over seeds and machines: python benchmarks/quickstart_seeds.py [--machines] [--seeds 0,1]

A machine is a number of threads and an instruction set. Each splits sums differently, so that weights differ in their
last digits; whether a small model learns must not depend on these. --machines runs every seed on all three of
machines.MACHINES, otherwise only on the first. For comparison, each seed on the first machine is also trained by as
many supervised steps again instead of RL. A finished run is not repeated.
"""

import json
import pathlib
import statistics
import sys

import machines
from absl import app, flags, logging
from tqdm import tqdm

from ragrl_jax import config as config_lib
from ragrl_jax.data import readers
from ragrl_jax.jobs import evaluate, sft
from ragrl_jax.models import lora
from ragrl_jax.run import player as player_lib
from ragrl_jax.run.prepared import prepare

ROOT = pathlib.Path(__file__).parents[1]
SFT_ONLY = flags.DEFINE_bool("sft_only", True, "Also as many supervised steps again, instead of RL.")
OUT = flags.DEFINE_string("out", "out/quickstart_seeds", "Folder for the runs and table.json.")

WARM_AT_MOST, AFTER, MEAN = 0.5, 0.90, 0.95  # EM: the planted weakness; every run after RL; their mean


def main(_):
  logging.set_verbosity(logging.WARNING)
  out = pathlib.Path(OUT.value)
  run_all(out, machines.wanted())
  rows = []
  for seed, machine in machines.wanted():
    workdir = folder(out, seed, machine)
    more = sft_again(workdir, seed) if SFT_ONLY.value and machine == machines.FIRST else None
    rows.append(row(machine, json.loads((workdir / "summary.json").read_text()), more))
  (out / "table.json").write_text(json.dumps(rows, indent=1))
  print(table(rows))
  mean = statistics.mean(r["after"] for r in rows)
  missed = [(r["seed"], r["machine"]) for r in rows if r["warm"] > WARM_AT_MOST or r["after"] < AFTER]
  holds = not missed and mean >= MEAN
  print(
    f"\nClaim (warm start <= {WARM_AT_MOST} EM, after RL >= {AFTER} in every run, mean >= {MEAN}): "
    f"{'holds' if holds else 'MISSED'}; mean {mean:.3f}, least {min(r['after'] for r in rows):.3f}"
    + (f"; missed by {missed}" if missed else "")
  )
  sys.exit(not holds)


def folder(out: pathlib.Path, seed: int, machine: str) -> pathlib.Path:
  return out / f"{machines.slug(machine)}_{seed}"


def run_all(out: pathlib.Path, pairs: list[tuple[int, str]]) -> None:
  """Runs the quickstart for each (seed, machine) that has no summary yet."""
  missing = [pair for pair in pairs if not (folder(out, *pair) / "summary.json").is_file()]
  ragrl = [sys.executable, "-m", "ragrl_jax"]
  command = lambda seed, workdir: [*ragrl, "quickstart", f"--workdir={workdir}", f"--seed={seed}"]
  jobs = [(machine, seed, folder(out, seed, machine).resolve()) for seed, machine in missing]
  machines.run(
    [machines.Job(machine, command(seed, workdir), workdir.with_suffix(".log")) for machine, seed, workdir in jobs],
    cwd=ROOT,
  )
  for _, _, workdir in jobs:
    if not (workdir / "summary.json").is_file():
      raise RuntimeError(f"{workdir} has no result: its log, {workdir.with_suffix('.log')}, says why.")


def row(machine: str, summary: dict, more: float | None) -> dict:
  hops = lambda side: {hop: round(part["em"], 3) for hop, part in summary[side]["by_hops"].items()}
  return dict(
    seed=summary["seed"],
    machine=machine,
    warm=summary["em_before"],
    after=summary["em_after"],
    warm_by_hop=hops("before"),
    after_by_hop=hops("after"),
    n=summary["after"]["n"],
    steps=[summary["warm"]["steps"], summary["rl"]["steps"]],
    seconds=summary["seconds"],
    sft_again=more,
    searches=[summary["searches_before"], summary["searches_after"]],
  )


def use_world(config, world: pathlib.Path, seed: int) -> None:
  """Uses a finished quickstart's tokenizer, index and questions."""
  config.seed = seed
  config.prompting.tokenizer, config.retrieval.index = str(world / "tokenizer.model"), str(world / "index")
  config.data.train, config.data.evaluate = str(world / "train.jsonl.gz"), str(world / "held_out.jsonl.gz")


def sft_again(workdir: pathlib.Path, seed: int) -> float:
  """Held-out EM after repeating the warm start's steps from its end, on the same demonstrations."""
  done = workdir / "sft_again.json"
  if done.is_file():
    return json.loads(done.read_text())["em"]
  config, world = config_lib.load(ROOT / "configs" / "quickstart.py", "sft"), workdir / "world"
  use_world(config, world, seed)
  config.steps = json.loads((workdir / "summary.json").read_text())["warm"]["steps"]
  config.data.train, config.model.path = str(world / "demonstrations.jsonl.gz"), str(workdir / "warm" / "model")
  for _ in tqdm(sft.sft(config, workdir / "sft_again"), total=config.steps, desc="as many steps again", unit="step"):
    pass
  config.model.path = str(workdir / "sft_again" / "model")
  player = player_lib.build(prepare(config))
  held_out = list(readers.read_examples(world / "held_out.jsonl.gz"))
  found, _ = evaluate.measure(player, lora.split(player.model)[1], held_out)
  done.write_text(json.dumps(dict(em=found["em"], steps=config.steps)))
  return found["em"]


def table(rows: list[dict]) -> str:
  """The table in Markdown, one row per run."""
  pair = lambda hops: " / ".join(f"{em:.3f}" for em in hops.values())
  lines = [
    "| Seed | Machine | Warm start EM (1-hop / 2-hop) | After RL (1-hop / 2-hop) | Steps | Searches a question "
    "| Seconds | As many supervised steps again |",
    "|---" * 8 + "|",
  ]
  for r in rows:
    more = "" if r["sft_again"] is None else f"{r['sft_again']:.3f}"
    lines.append(
      f"| {r['seed']} | {r['machine']} | {r['warm']:.3f} ({pair(r['warm_by_hop'])}) | **{r['after']:.3f}** "
      f"({pair(r['after_by_hop'])}) | {r['steps'][0]} + {r['steps'][1]} | {r['searches'][0]:.2f} → "
      f"{r['searches'][1]:.2f} | {r['seconds']:.0f} | {more} |"
    )
  return "\n".join(lines) + f"\n\n(n = {rows[0]['n']} held-out questions a run, greedy; steps: supervised + RL)"


if __name__ == "__main__":
  app.run(main)
