"""Writes the page of a run: python launchers/report.py WORKDIR [--out FILE.html] [--episodes 480] [--megabytes 12]"""

import argparse
import sys

from ragrl_jax.evaluation import report


def main() -> None:
  parser = argparse.ArgumentParser(description="Writes report.html, one self-contained file, from a run's folder.")
  parser.add_argument("workdir", help="the --workdir of a training run, finished or not")
  parser.add_argument("--out", help="the page's file (default: WORKDIR/report.html)")
  parser.add_argument("--episodes", type=int, default=480, help="episodes put into the page at most (default 480)")
  parser.add_argument("--megabytes", type=float, default=12, help="size of these episodes at most (default 12)")
  given = parser.parse_args()
  try:
    path = report.write_report(
        given.workdir, given.out, max_episodes=given.episodes, max_bytes=int(given.megabytes * 1e6))
  except ValueError as error:
    sys.exit(f"report: {error}")
  print(path)


if __name__ == "__main__":
  main()
