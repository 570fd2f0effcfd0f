"""Splits a set of questions at random into files of given shares. The same seed gives the same split:

  ragrl split --data QUESTIONS --shares 80,20 --out TRAIN.jsonl.gz --out VALIDATION.jsonl.gz

When to Search trains on 80 % of a set and validates on the other 20 %. Every question is in exactly one file, with all
rows that ask it.
"""

from absl import app, flags

from ragrl_jax.cli import commands
from ragrl_jax.data import readers, stream, writers

DATA = commands.data_flag()
SHARES = flags.DEFINE_list("shares", ["80", "20"], "Share of each file, in any unit.")
OUT = flags.DEFINE_multi_string("out", [], "FILE.jsonl[.gz], once per share.")
SEED = flags.DEFINE_integer("seed", 0, "Seed of the split.")


def main():
  if len(OUT.value) != len(SHARES.value):
    raise app.UsageError(f"give one --out for each of the {len(SHARES.value)} shares.")
  try:
    shares = [float(share) for share in SHARES.value]
  except ValueError:
    raise app.UsageError(f"--shares={','.join(SHARES.value)}: these must be numbers.") from None
  writers.refuse_inputs(OUT.value, readers.named(DATA.value))
  parts = stream.split(list(readers.read_examples(DATA.value)), shares, seed=SEED.value)
  for path, part in zip(OUT.value, parts):
    writers.write_examples(path, part)
    print(f"{path}: {len(part)} questions")
