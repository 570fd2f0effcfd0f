r"""Keeps the correct transcripts of sampled evaluations, for ragrl sft (rejection sampling):

  for seed in 1 2 3 4 5; do ragrl evaluate --config CONFIG --checkpoint MODEL --sample \
    --config.seed=$seed --data QUESTIONS --out out/sampled/$seed; done
  ragrl make-rejection-sft --results 'out/sampled/*' --data QUESTIONS --out SFT.jsonl.gz
  ragrl sft --config CONFIG --config.data.train=SFT.jsonl.gz --workdir out/sft

A transcript is kept if its outcome is 1 and none of its turns was cut off. Repeated transcripts are kept once.
"""

from absl import flags

from ragrl_jax.cli import commands
from ragrl_jax.data import readers, writers
from ragrl_jax.evaluation import answer_files, demonstrations

RESULTS = flags.DEFINE_multi_string(
  "results", None, "Folder of an evaluation, or a glob; may be given several times.", required=True
)
DATA = commands.data_flag("Their questions")
OUT = flags.DEFINE_string("out", None, "FILE.jsonl[.gz] of the transcripts.", required=True)


def main():
  folders = sorted(str(path) for one in RESULTS.value for path in answer_files.named(one) if path.is_dir())
  if not folders:
    raise FileNotFoundError(f"--results={','.join(RESULTS.value)}: there is no such folder.")
  writers.refuse_inputs([OUT.value], readers.named(DATA.value))
  examples = list(readers.read_examples(DATA.value))
  kept, counts = demonstrations.keep_right(folders, examples)
  for status, count in counts.most_common():
    print(f"{count:7d}  {status}")
  if not kept:
    raise ValueError(f"--results: none of {counts.total()} episodes is correct, so there is nothing to train on.")
  question_count = len({(example.source, example.question) for example, _ in kept})
  writers.write_examples(OUT.value, [example for example, _ in kept], turns=[turns for _, turns in kept])
  print(f"{OUT.value}: {len(kept)} transcripts of {question_count} question{'s' * (question_count != 1)}")
