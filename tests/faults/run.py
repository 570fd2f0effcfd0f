"""Runs seeded plans of faults against a small run:
PYTHONPATH=tests/kits python tests/faults/run.py [--plans 100] [--first 0] [--seed N]

Every run must end with exactly the files of the undisturbed run. If a fault stops it, its last line must say why, and
after the fault it must resume from its newest undamaged checkpoint. --seed repeats one plan and keeps its folder. At
the end, a run of 120 steps checks that resident memory does not grow.
"""

import functools
import pathlib
import tempfile
import time

import driver
import numpy as np
import plans
from absl import app, flags, logging

PLANS = flags.DEFINE_integer("plans", 100, "How many plans.")
FIRST = flags.DEFINE_integer("first", 0, "Seed of the first one.")
SEED = flags.DEFINE_integer("seed", None, "Only this plan, and no soak.")
SOAK = flags.DEFINE_bool("soak", True, "Whether to end with the soak.")

SOAK_STEPS = 120
MAX_SLOPE = 0.1  # MB per step
say = functools.partial(print, flush=True)


def main(_):
  logging.set_verbosity(logging.WARNING)
  folder = pathlib.Path(tempfile.mkdtemp(prefix="faults-"))
  seeds = range(FIRST.value, FIRST.value + PLANS.value) if SEED.value is None else [SEED.value]
  with driver.scene(folder / "world") as scene:
    undisturbed = {ahead: driver.undisturbed(ahead, scene, folder / f"undisturbed_{ahead}") for ahead in (0, 1)}
    begin, failed = time.monotonic(), []
    for seed in seeds:
      plan = plans.draw(seed)
      outcome = driver.play(plan, scene, folder / str(seed), undisturbed[plan.ahead])
      met = [f"{fault}" + (" (not met)" if fault in outcome.missed else "") for fault in plan.faults]
      told = f"{' → '.join(outcome.story)}; {outcome.problem or 'same weights'}; {outcome.seconds:.0f} s"
      say(f"{seed:>4}  {', '.join(met)}\n      {told}")
      if outcome.problem:
        failed.append(seed)
        say(f"      PYTHONPATH=tests/kits python tests/faults/run.py --seed {seed}; folder: {folder / str(seed)}")
    others = f"; not {', '.join(map(str, failed))}" if failed else ""
    took = f"{time.monotonic() - begin:.0f} s{others}"
    say(f"{len(seeds) - len(failed)} of {len(seeds)} plans as they must be, {took}")
    grows = SOAK.value and SEED.value is None and soak(scene, folder / "soak") > MAX_SLOPE
  raise SystemExit(1 if failed or grows else 0)


def soak(scene, folder: pathlib.Path) -> float:
  """MB per step by which memory grew in the second half of a long run."""
  run = driver.Run(plans.Plan(0, 0, ()), scene, folder, f"--config.steps={SOAK_STEPS}")
  code, _, errors = run.start(memory=str(folder / "memory"))
  if code:
    raise RuntimeError(f"the soak ended with exit code {code}: {driver.last_line(errors)}")
  megabytes = np.loadtxt(folder / "memory")
  half = len(megabytes) // 2
  slope = float(np.polyfit(np.arange(half, len(megabytes)), megabytes[half:], 1)[0])
  grew = f"{slope:+.4f} MB a step over the second half (at most {MAX_SLOPE:g})"
  say(f"soak: {len(megabytes)} steps, {megabytes[-1]:.0f} MB at the end, {grew}")
  return slope


if __name__ == "__main__":
  app.run(main)
