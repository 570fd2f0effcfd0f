"""Keeps the correct transcripts of sampled evaluations, for launchers/sft.py (rejection sampling):

  for seed in 1 2 3 4 5; do python launchers/evaluate.py --config CONFIG --checkpoint MODEL --sample \
    --config.seed=$seed --data QUESTIONS --out out/sampled/$seed; done
  python launchers/make_rejection_sft.py --results 'out/sampled/*' --data QUESTIONS --out SFT.jsonl.gz
  python launchers/sft.py --config CONFIG --config.data.train=SFT.jsonl.gz --workdir out/sft

A transcript is kept if its outcome is 1 and none of its turns was cut off. Repeated transcripts are kept once.
"""

import glob
import pathlib

from absl import app, flags

from ragrl_jax.cli import commands
from ragrl_jax.data import readers, writers
from ragrl_jax.evaluation import right_transcripts

RESULTS = flags.DEFINE_multi_string("results", None, "Folder of an evaluation, or a glob; may be given several times.")
DATA = flags.DEFINE_string("data", None, "Their questions: FILE.jsonl[.gz], a glob, or hf:NAME/SUBSET/SPLIT.")
OUT = flags.DEFINE_string("out", None, "FILE.jsonl[.gz] of the transcripts.")
MOST = flags.DEFINE_integer("most", 0, "Most transcripts per question; 0 keeps all.", lower_bound=0)


def main(argv):
  """Runs `ragrl make-rejection-sft`."""
  if len(argv) > 1:
    raise app.UsageError(f"unknown argument {argv[1]!r}")
  folders = sorted(path for one in RESULTS.value for path in glob.glob(one) if pathlib.Path(path).is_dir())
  if not folders:
    raise FileNotFoundError(f"--results={','.join(RESULTS.value)}: there is no such folder.")
  writers.refuse_inputs([OUT.value], readers.named(DATA.value))
  examples = list(readers.read_examples(DATA.value))
  kept, fates = right_transcripts.kept(folders, examples, most=MOST.value)
  for fate, count in fates.most_common():
    print(f"{count:7d}  {fate}")
  if not kept:
    raise ValueError(f"--results: none of {fates.total()} episodes is correct, so there is nothing to train on.")
  asked = len({(example.source, example.question) for example, _ in kept})
  writers.write_examples(OUT.value, [example for example, _ in kept], turns=[turns for _, turns in kept])
  print(f"{OUT.value}: {len(kept)} transcripts of {asked} question{'s' * (asked != 1)}")


def start() -> None:
  """Reads the flags and runs `main`."""
  flags.mark_flags_as_required(["results", "data", "out"])
  commands.run(main)
