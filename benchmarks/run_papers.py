"""Five papers' claims, re-tested in miniature: python benchmarks/run_papers.py [--docs] [--minutes 60] [--seeds 0,1,2]

Each paper and seed has a made-up world and one warm start, from which every arm starts its RL steps. Finished runs are
not repeated, including those in docs/papers.jsonl.gz, unless the other runs of their seed need a new warm start. A
killed run continues from its last checkpoint. As many runs as there are cores run in parallel, each on its own core
(results depend on the number of threads). The table uses the finished runs; --docs writes docs/papers.md, .jsonl.gz and
.png. --short fails if a claim misses its stated difference in a seed.
"""

import importlib
import os
import pathlib
import subprocess
import sys
import time

from absl import app, flags
from papers import page
from papers.miniature import ROOT, WARM, run as run_one, short

PAPERS = ("care", "arena", "veritas", "lear", "when_to_search")

OUT = flags.DEFINE_string("out", "out/papers", "Folder for the runs.")
SEEDS = flags.DEFINE_list("seeds", [str(seed) for seed in range(page.SEEDS)], "Which seeds.")
ONLY = flags.DEFINE_list("papers", list(PAPERS), "Which papers.")
ARMS = flags.DEFINE_list("arms", [], "Which arms; all if empty.")
MINUTES = flags.DEFINE_float("minutes", 0.0, "Start no run that would end after this many minutes; 0: no limit.")
JOBS = flags.DEFINE_integer("jobs", 0, "Runs at the same time; 0: one per core.")
DOCS = flags.DEFINE_bool("docs", False, "Write the table and the figure to docs/.")
AGAIN = flags.DEFINE_bool("again", False, "Do not count the runs of docs/papers.jsonl.gz as finished.")
SHORT = flags.DEFINE_bool("short", False, "Test one claim per paper with short runs, in minutes. Writes no docs.")
THREADS = flags.DEFINE_integer("threads", 1, "Cores per run.")
ONE = flags.DEFINE_string("one", "", "PAPER/ARM/SEED: this run only, in this process.")

# Keeps freed memory in the process: otherwise a quarter of a run's time is spent on getting it back from the system.
MALLOC = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=4294967296"
RUN_MINUTES = 5.0  # longest duration of a run, without its warm start


def main(_):
  os.chdir(ROOT)
  out = pathlib.Path(OUT.value)
  if ONE.value:
    paper, arm, seed = ONE.value.split("/")
    run_one(papers_of([paper])[paper], arm, int(seed), out / paper / seed)
    return
  papers = papers_of(PAPERS if DOCS.value else ONLY.value)
  kept = {} if AGAIN.value or SHORT.value else page.read_rows(ROOT / "docs" / page.RUNS)
  work = [
    (paper, arm, int(seed))
    for seed in SEEDS.value
    for paper in ONLY.value
    for arm in (WARM, *papers[paper].arms)
    if arm == WARM or not ARMS.value or arm in ARMS.value
  ]
  kept = page.comparable(kept, work, lambda run: made(out, run))
  kept = {key: row for key, row in kept.items() if key[0] in papers}
  failed = play(out, papers, [run for run in work if run not in kept])
  rows = kept | {
    key: row
    for path in sorted(out.glob("*/*/*/result.json"))
    for key, row in page.read_rows(path).items()
    if key[0] in papers
  }
  print(page.tables(papers, rows))
  if DOCS.value:
    page.write(papers, rows, ROOT / "docs")
  if failed:
    raise SystemExit(f"failed: {', '.join('/'.join(map(str, run)) for run in failed)}; see {out}/PAPER/SEED/ARM.log.")
  if SHORT.value and (missed := page.missed(papers, rows)):
    raise SystemExit(f"less than stated in a seed: {'; '.join(missed)}.")


def papers_of(names) -> dict:
  """The papers with these names, in their full or short version."""
  result = {name: importlib.import_module(f"papers.{name}").PAPER for name in names}
  return {name: short(paper) for name, paper in result.items()} if SHORT.value else result


def play(out: pathlib.Path, papers, todo: list) -> list:
  """Runs everything without a result, warm starts first, and returns the failed runs."""
  began, failed, running = time.monotonic(), [], {}
  cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [None]
  # Results depend on the number of threads, so every run has as many cores.
  free = [cores[at : at + THREADS.value] for at in range(0, len(cores) - THREADS.value + 1, THREADS.value)]
  free = free[: JOBS.value] if JOBS.value else free
  result = lambda paper, arm, seed: out / paper / str(seed) / arm / "result.json"
  todo = [run for run in todo if not result(*run).is_file()]
  # A warm start without weights on this machine must be trained again.
  todo = list(dict.fromkeys([*(base for run in todo for base in base_of(run) if not made(out, base)), *todo]))
  total = len(todo)
  while todo or running:
    late = MINUTES.value and time.monotonic() - began > 60 * (MINUTES.value - RUN_MINUTES)
    ready = (
      [] if late else [run for run in todo if all(made(out, base) and base not in running for base in base_of(run))]
    )
    if ready and free:
      chosen, core = ready[0], free.pop(0)
      todo = [run for run in todo if run != chosen]
      running[chosen] = start(out, chosen, core), core, time.monotonic()
      continue
    if not running:
      break
    time.sleep(0.5)
    for run, (process, core, since) in list(running.items()):
      if process.poll() is not None:
        del running[run]
        free.append(core)
        failed += [run] if process.returncode else []
        print(
          f"{'FAILED ' if process.returncode else ''}{'/'.join(map(str, run))}: "
          f"{time.monotonic() - since:.0f} s; {total - len(todo) - len(running)} of {total}",
          flush=True,
        )
        if process.returncode:
          todo = [other for other in todo if run not in base_of(other)]
  return failed


def made(out: pathlib.Path, run) -> bool:
  """Whether the warm start of the run's paper and seed is on this machine."""
  paper, _, seed = run
  return (out / paper / str(seed) / "sft" / "model").is_dir()


def base_of(run) -> list:
  """The warm starts that this run needs, in order. In short runs, that of seed 0 serves the other seeds."""
  paper, arm, seed = run
  shared = [(paper, WARM, 0)] if SHORT.value and seed else []
  return shared if arm == WARM else [*shared, (paper, WARM, seed)]


def start(out: pathlib.Path, run, cores) -> subprocess.Popen:
  """Starts the run in its own process on its own cores. All runs share one cache of compiled programs."""
  folder = out / run[0] / str(run[2])
  folder.mkdir(parents=True, exist_ok=True)
  environment = os.environ | dict(
    JAX_PLATFORMS="cpu", JAX_COMPILATION_CACHE_DIR=str((out / "compiled").resolve()), GLIBC_TUNABLES=MALLOC
  )
  with open(folder / f"{run[1]}.log", "w") as log:
    process = subprocess.Popen(
      [sys.executable, __file__, f"--one={'/'.join(map(str, run))}", f"--out={out}", f"--short={SHORT.value}"],
      env=environment,
      stdout=log,
      stderr=subprocess.STDOUT,
      preexec_fn=None if None in cores else lambda: os.sched_setaffinity(0, cores),
    )
  return process


if __name__ == "__main__":
  app.run(main)
