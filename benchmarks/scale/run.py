"""The best plan for every TPU slice and for H100 and H200 GPUs, and a lower bound of its step time.

Run:    python benchmarks/scale/run.py [--docs] [--minutes 3] [--level O1]

Arithmetic finds the best mesh of every slice, or number of GPUs, for every model and recipe (scale_cases.py). Some of
these plans are compiled, by libtpu and by JAX's CUDA plugin (the extra `gpu-check`; without it no GPU's are). Neither
needs the device. Each compiled plan is a line of docs/scale.jsonl and is not compiled again, so that an interrupted run
continues. A plan that does not fit is stored too, and the next best is tried. --docs writes
docs/scale.md and .png from the compiled plans.
"""

import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # libtpu and the CUDA plugin are only compilers
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import scale_cases as cases
import scale_page as page
from absl import app, flags

from ragrl_jax.plan import gpus

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEPT = ROOT / "docs" / "scale.jsonl"

DOCS = flags.DEFINE_bool("docs", False, "Write the page and the figure.")
MINUTES = flags.DEFINE_float("minutes", 0.0, "Nothing is compiled any more after so many (0: no bound).")
LEVEL = flags.DEFINE_string(
  "level", "O1", "jax_optimization_level for TPUs: O2 is a run's own, O1 compiles four times as fast."
)
COMPILE = flags.DEFINE_bool("compile", True, "Compile what is not yet.")
ONE = flags.DEFINE_string("one", "", "A row to compile, as JSON, in this process; printed with its report.")


def main(_):
  os.chdir(ROOT)
  if ONE.value:
    print(json.dumps(compiled(json.loads(ONE.value))))
    return
  if COMPILE.value:
    play()
  if DOCS.value:
    page.write(page.read_rows(KEPT), ROOT / "docs")


def play() -> None:
  """Compiles the cases one by one, each in its own process, since libtpu may end the process."""
  start, on_gpus = time.monotonic(), has_plugin()
  while not (MINUTES.value and time.monotonic() - start > 60 * MINUTES.value):
    row = cases.missing(page.read_rows(KEPT), LEVEL.value, on_gpus=on_gpus)
    if row is None:
      return
    done = subprocess.run(
      [sys.executable, __file__, f"--one={json.dumps(row)}"],
      env=os.environ | dict(JAX_OPTIMIZATION_LEVEL=row["level"]),
      capture_output=True,
      text=True,
      check=False,
    )
    if done.returncode:
      lines = [line for line in done.stderr.splitlines() if line.strip()]
      row |= dict(failed=next((line for line in lines if "failed" in line), lines[-1] if lines else "")[:300])
    else:
      row = json.loads(done.stdout.splitlines()[-1])
    with open(KEPT, "a", encoding="utf-8") as file:
      file.write(json.dumps(row) + "\n")
    print(f"{row['model']} {row['run']} {row['slice']}: {row.get('failed') or said_of(row)}", flush=True)


def has_plugin() -> bool:
  """Whether the compiler for GPUs is installed; says how to install it if not."""
  try:
    gpus.devices("h200:1")
  except RuntimeError as missing:
    print(f"No GPU's case is compiled: {missing}", flush=True)
    return False
  return True


def said_of(row) -> str:
  report = row["report"]
  return (
    f"{'fits' if report['fits'] else 'does not fit'}, {report['needed'] / 2**30:.1f} GiB, "
    f"{report['step_s']:.1f} s; {row['cpu_s']:.0f} CPU s"
  )


def compiled(row):
  """The row with the compiler's report on it."""
  from ragrl_jax.plan import compiled

  began, run, where = time.process_time(), cases.RUNS[row["run"]], cases.SLICES[row["slice"]]
  config = run.config()
  drawn = run.drawn(config)
  cases.choice_of(row).into(config)
  report = compiled.check(config, where.topology, slices=where.slices, shape=row["model"], fill=cases.FILL, drawn=drawn)
  commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
  compiler = "jax-cuda12-plugin" if gpus.is_gpu(where.topology) else "libtpu"
  return row | {
    "report": report.to_json(),
    "cpu_s": round(time.process_time() - began, 1),
    compiler: importlib.metadata.version(compiler),
    "commit": commit.stdout.strip(),
  }


if __name__ == "__main__":
  app.run(main)
