"""Says what left its healthy range in a run, since which step, an episode that shows it and the setting to try:

  ragrl watch --workdir OUT [--every=30]

docs/metrics.md has the table of healthy ranges ("Detectors"). With --every the command goes on until the run's end.
"""

import pathlib
import time

from absl import app, flags

from ragrl_jax import config as config_lib
from ragrl_jax.core.text.forms import safe
from ragrl_jax.run import detectors, rollback
from ragrl_jax.store import episodes, metrics, workdir

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a run.", required=True)
EVERY = flags.DEFINE_float(
  "every", 0.0, "Seconds between two looks at a run that goes on; 0 looks once.", lower_bound=0.0
)


def main():
  folder, printed = pathlib.Path(WORKDIR.value), set()
  while True:
    finished = workdir.ended(folder) >= 0  # asked first: the rows that are read then are all
    rows = metrics.read_metrics(folder)
    if not rows and not config_lib.is_run(folder):
      raise app.UsageError(f"--workdir={folder} holds no run's config.json and no {metrics.FILE}: name a run's folder.")
    alarms: list[detectors.Alarm] = []
    for row, alarms in rollback.replayed(rows):  # from the first, since a resumed run writes its last rows again
      for alarm in alarms:
        if (key := (alarm.detector, alarm.metric, alarm.since)) not in printed:
          printed.add(key)
          print(f"step {alarm.step}: {safe(alarm.text)}{_showing(folder, alarm)}", flush=True)
      if (why := row.get(rollback.WHY)) and row["step"] not in printed:
        printed.add(row["step"])
        print(f"step {row['step']}: {safe(why)}", flush=True)
    if not EVERY.value or finished or rows and rollback.STOPPED in rows[-1]:
      break
    time.sleep(EVERY.value)
  out = ", ".join(alarm.metric for alarm in alarms) or "nothing"
  print(f"Out of the healthy range at step {rows[-1]['step'] if rows else 0}: {safe(out)}.")


def _showing(folder: pathlib.Path, alarm: detectors.Alarm) -> str:
  """An episode of the alarm's step that shows it, if there is a log."""
  file = episodes.steps(folder).get(alarm.step)
  row = alarm.shown((row.get("signs", {}), row) for row in episodes.read_episodes(file)) if file else None
  return row and f" See prompt {row['prompt_index']}, sample {row['sample']} in {file}: {safe(row['question'])}" or ""
