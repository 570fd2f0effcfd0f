"""Writes the page of a run: python launchers/report.py --workdir OUT [--out FILE.html]

One self-contained file with the curves, where the time went, and a browser of sampled episodes. The run may still be
going on.
"""

import sys

from absl import app, flags

from ragrl_jax.evaluation import report

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a training run.")
OUT = flags.DEFINE_string("out", None, "The page's file; WORKDIR/report.html if not given.")
EPISODES = flags.DEFINE_integer("episodes", 480, "Episodes put into the page at most.", lower_bound=1)
MEGABYTES = flags.DEFINE_float("megabytes", 12, "Size of these episodes at most.", lower_bound=0)


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f"unknown argument {argv[1]!r}: the run's folder is given as --workdir OUT")
  try:
    path = report.write_report(
      WORKDIR.value, OUT.value, max_episodes=EPISODES.value, max_bytes=int(MEGABYTES.value * 1e6))
  except ValueError as error:
    sys.exit(str(error))
  print(path)


if __name__ == "__main__":
  flags.mark_flags_as_required(["workdir"])
  app.run(main)
