"""Writes the page of one or several runs, or of one or two evaluations:

  ragrl report --workdir OUT [--out FILE.html]
  ragrl report --workdir OUT_A --workdir OUT_B [--workdir …] --out FILE.html

The first is one self-contained file with the curves, the time of each part, and a browser of sampled episodes. The
second shows the curves of several runs in the same charts, and the settings that differ. Runs may be unfinished.

If OUT is a folder of ragrl evaluate, the page has its tables and a browser of the questions with their episodes.
With two such folders, it also shows the changes from the first to the second.
"""

from absl import app, flags

from ragrl_jax.report import evaluation_page, excerpt, page as page_lib, side_by_side

WORKDIR = flags.DEFINE_multi_string(
  "workdir", [], "Folder of a run or of an evaluation; give it several times to compare."
)
OUT = flags.DEFINE_string("out", None, "File of the page; for one run WORKDIR/report.html by default.")
MEGABYTES = flags.DEFINE_float(
  "megabytes", excerpt.MAX_BYTES / 1e6, "Most megabytes of compressed episodes in the page.", lower_bound=0
)


def main():
  if not WORKDIR.value:
    raise app.UsageError("give the run's folder as --workdir OUT, once for each run.")
  if len(WORKDIR.value) > 1 and OUT.value is None:
    raise app.UsageError("the page of several runs needs a name: --out FILE.html")
  evaluations = [evaluation_page.is_folder(folder) for folder in WORKDIR.value]
  if any(evaluations) and not all(evaluations):
    raise app.UsageError("a page shows evaluations or training runs, not both.")
  if all(evaluations):
    print(evaluation_page.write(WORKDIR.value, OUT.value, max_bytes=int(MEGABYTES.value * 1e6)))
  elif len(WORKDIR.value) > 1:
    print(side_by_side.write(WORKDIR.value, OUT.value))
  else:
    print(page_lib.write_report(WORKDIR.value[0], OUT.value, max_bytes=int(MEGABYTES.value * 1e6)))
