"""Sums the lines that the tests executed, by room: python tests/coverage_by_room.py COVERAGE.json

COVERAGE.json is written by `coverage json`. Prints a table, and exits with 1 if a room is below its threshold. Child
processes are not counted.
"""

import json
import pathlib
import sys

THRESHOLDS = dict.fromkeys(("core", "engine", "learner", "recipes", "rollout"), 92.0)  # least percentage of lines


def by_room(files: dict[str, dict]) -> dict[str, tuple[int, int]]:
  """{room: (lines run, lines)} from the report's `files`. A module outside the rooms counts as a separate room."""
  rooms: dict[str, tuple[int, int]] = {}
  for path, found in files.items():
    room = pathlib.PurePath(path).parts[1].removesuffix(".py")
    run, lines = rooms.get(room, (0, 0))
    rooms[room] = run + found["summary"]["covered_lines"], lines + found["summary"]["num_statements"]
  return rooms


def table(rooms: dict[str, tuple[int, int]]) -> tuple[str, list[str]]:
  """The table as text, and the names of the rooms below their thresholds."""
  rows, below = [f"{'room':<14}{'lines':>8}{'run':>9}{'at least':>10}"], []
  for room, (run, lines) in sorted(rooms.items()):
    share, least = 100 * run / max(lines, 1), THRESHOLDS.get(room)
    rows.append(f"{room:<14}{lines:>8}{share:>8.1f}%{f'{least:.0f}%' if least else '':>10}")
    below += [room] if least and share < least else []
  return "\n".join(rows), below


def main() -> None:
  """Reads the report named on the command line, and prints the table."""
  shown, below = table(by_room(json.loads(pathlib.Path(sys.argv[1]).read_text())["files"]))
  print(shown)
  if below:
    sys.exit(f"{', '.join(below)}: fewer lines are run than the table asks for. Add tests for what none of them runs.")


if __name__ == "__main__":
  main()
