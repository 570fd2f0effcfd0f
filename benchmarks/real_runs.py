"""Recipes end to end on real questions with a small random model: python benchmarks/real_runs.py [--out out/real]

Reads every HotpotQA, 2WikiMultihopQA and MuSiQue file, trains all six recipes for a few steps, those on given passages
with prompts of up to 4 thousand tokens, those that search with BM25 over HotpotQA's corpus, and evaluates them on real
questions through the same doors as any run. It shows that nothing crashes and no question is lost, and what it costs; a
random model answers nothing right, and its judges are those of the smoke variants. Needs the folder of questions and
corpora: RAGRL_DATA, or ../shared/data beside this repository.
"""

import json
import os
import pathlib
import shutil
import sys
import time

from absl import app, flags, logging
from tqdm import tqdm

from ragrl_jax import config as config_lib
from ragrl_jax import evaluate, retrieval, train
from ragrl_jax.data import readers
from ragrl_jax.evaluation import harness
from ragrl_jax.prompting import sentencepiece
from ragrl_jax.retrieval import corpus

ROOT = pathlib.Path(__file__).parents[1]
OUT = flags.DEFINE_string("out", "out/real", "Folder for indexes, runs and predictions.")
QUESTIONS = flags.DEFINE_integer("questions", 200, "Questions of each evaluation.")
SETS = ("hotpotqa", "2wikimultihopqa", "musique")
LONG = dict(context=6144, prefill=512, block=256)
SEARCH = dict(context=2048, prefill=256, block=256, max_new_tokens=64)
# recipe → questions to train on, to evaluate on, whether it searches, the engine's sizes, other settings
RUNS = dict(
  arena=("musique_train", "hotpotqa_dev", False, LONG, {}),
  search_r1=("hotpotqa_train", "hotpotqa_dev", True, SEARCH, {}),
  care=("drop_dev", "musique_dev", False, LONG, dict(data=dict(hard="msmarco_sample"), switches=dict(easy_steps=2))),
  lear=("nq_open_dev", "triviaqa_dev", True, SEARCH, {}),
  veritas=("2wikimultihopqa_train", "popqa_test", True, SEARCH, {}),
  # All episodes of a random model earn the same, so that a step draws as often as it may and finds no group.
  when_to_search=("2wikimultihopqa_train", "strategyqa_train", True, SEARCH,
                  dict(rollout=dict(filter=dict(max_draws=2)))))
SHAPE = dict(family="qwen3", d_model=64, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, d_ff=160,
             rope_theta=1e6, tied=True)


def main(_):
  logging.set_verbosity(logging.WARNING)
  named = os.environ.get("RAGRL_DATA")
  data = pathlib.Path(named) if named else ROOT.parent / "shared" / "data"
  if not (data / "qa").is_dir():
    print(f"skipped: no real questions at {named or '../shared/data'}; set RAGRL_DATA to the folder that holds qa/")
    return
  out = pathlib.Path(OUT.value)
  out.mkdir(parents=True, exist_ok=True)
  read_all(data)
  tokenizer, index = out / "tokenizer.model", out / "index"
  if not tokenizer.is_file():
    passages = (p.text for i, p in enumerate(corpus.read_passages(data / "corpora" / "hotpotqa.jsonl.gz")) if i < 4000)
    sentencepiece.train(passages, vocab_size=8000, path=tokenizer)
  retrieval.build_index(data / "corpora" / "hotpotqa.jsonl.gz", "bm25", index)

  rows = []
  for recipe, (train_set, dev_set, searches, sizes, others) in RUNS.items():
    config = config_lib.load(ROOT / "configs" / f"{recipe}.py", "smoke")
    config.model.shape, config.prompting.tokenizer, config.prompting.chat = SHAPE, str(tokenizer), False
    config.update(others)
    config.data.train, config.data.evaluate = str(data / "qa" / f"{train_set}.jsonl.gz"), ""
    config.data.hard = config.data.hard and str(data / "qa" / f"{config.data.hard}.jsonl.gz")
    config.retrieval.index = str(index) if searches else ""
    config.rollout.update(sizes)
    config.learner.row_lengths = (config.rollout.context,)
    config.data.max_examples = QUESTIONS.value
    rows.append(run(config, data / "qa" / f"{dev_set}.jsonl.gz", out / recipe))
  print("\n" + json.dumps(rows, indent=1))
  (out / "runs.json").write_text(json.dumps(rows, indent=1))
  sys.exit(any(row["questions"] != row["scored"] + row["failed"] for row in rows))


def read_all(data: pathlib.Path) -> None:
  """Every row of the three sets becomes an example, or the reader says which does not."""
  for name in SETS:
    for path in sorted((data / "qa").glob(f"{name}_*.jsonl.gz")):
      examples = list(readers.read_examples(path))
      supported = sum(bool(example.supporting) for example in examples)
      print(f"{path.name}: {len(examples)} questions, {supported} with supporting passages")


def run(config, questions: pathlib.Path, workdir: pathlib.Path) -> dict:
  """Trains from nothing, then evaluates; what it cost."""
  shutil.rmtree(workdir, ignore_errors=True)
  began = time.perf_counter()
  trained = list(tqdm(train.train(config, workdir), total=config.steps, desc=f"{config.recipe}: training", unit="step"))
  middle = time.perf_counter()
  with tqdm(total=config.data.max_examples, desc=f"{config.recipe}: evaluation", unit="question") as bar:
    metrics = evaluate.evaluate(config, workdir, str(questions), workdir / "evaluation",
                                progress=lambda done, _: bar.update(done - bar.n))
  lengths = [json.loads(line)["prompt_tokens"] for line in open(workdir / "evaluation" / harness.PREDICTIONS)]
  return dict(
    recipe=config.recipe, steps=len(trained), training_s=round(middle - began, 1),
    questions=config.data.max_examples, scored=metrics["n"], failed=metrics["failed"],
    evaluation_s=round(time.perf_counter() - middle, 1), prompt_tokens=[min(lengths), sum(lengths) // len(lengths),
                                                                        max(lengths)],
    searches=metrics["searches"], ended=metrics["ended"], em=metrics["em"],
    peak_memory_gb=round(metrics["peak_memory"]["host"] / 1e9, 2))


if __name__ == "__main__":
  app.run(main)
