"""From nothing to a model that learned to search: python launchers/quickstart.py [--workdir out/quickstart] [--seed 0]

A made-up world → its tokenizer → an index → a warm start on faulty demonstrations → RL with live search → what changed.
"""

import json
import pathlib
import random
import shutil
import time

from absl import app, flags, logging
from ml_collections import config_flags
from tqdm import tqdm

from ragrl_jax import evaluate, retrieval, sft, train
from ragrl_jax.data import readers, synthetic, writers
from ragrl_jax.evaluation import harness, report, tables, traces
from ragrl_jax.evaluation import player as player_lib
from ragrl_jax.prompting import sentencepiece
from ragrl_jax.recipes.search_r1 import demonstrate
from ragrl_jax.store import episodes as episodes_lib

WORKDIR = flags.DEFINE_string("workdir", "out/quickstart", "Folder for everything this makes; it is emptied first.")
SEED = flags.DEFINE_integer("seed", 0, "Seed of the world, the model, the demonstrations and the sampling.")
DEMONSTRATIONS = flags.DEFINE_integer("demonstrations", 6000, "Scripted episodes of the warm start.")
HELD_OUT = flags.DEFINE_integer("held_out", 300, "Questions about entities that training never saw.")
CONFIG = config_flags.DEFINE_config_file("config", "configs/quickstart.py")
SFT_CONFIG = config_flags.DEFINE_config_file("sft_config", "configs/quickstart.py:sft")


def main(_):
  logging.set_verbosity(logging.WARNING)
  began, workdir, seed = time.perf_counter(), pathlib.Path(WORKDIR.value), SEED.value
  shutil.rmtree(workdir, ignore_errors=True)
  say = lambda text: tqdm.write(f"[{time.perf_counter() - began:4.0f} s] {text}")
  make_world(workdir / "world", seed)
  say("world, index, tokenizer and demonstrations are made")
  for config in (CONFIG.value, SFT_CONFIG.value):
    use_world(config, workdir / "world", seed)

  warm_start(SFT_CONFIG.value, workdir / "warm")
  config = CONFIG.value
  config.model.path = str(workdir / "warm" / "model")
  held_out = list(readers.read_examples(config.data.evaluate))
  say(f"warm start done; now RL with live search, held-out EM ({len(held_out)} questions) every "
      f"{config.evaluate.every} steps")
  found = learn(config, workdir, held_out)

  before, after = found[0], found[config.steps]
  seconds = time.perf_counter() - began
  summary = dict(
    em_before=before["em"], em_after=after["em"], searches_before=before["searches"],
    searches_after=after["searches"], seconds=round(seconds, 1), seed=seed, before=before, after=after)
  (workdir / "summary.json").write_text(json.dumps(summary, indent=1))
  page = report.write_report(workdir)
  print("\nHeld-out questions, greedy; every name in them is new to the model\n")
  print(tables.text_table(tables.comparison(before, after)))
  print("\nOne sampled episode of the last step\n")
  traces.show(last_episode(workdir, config.steps))
  print(f"\nThe run's page: {page}\n{seconds:.0f} s in all")


def make_world(folder: pathlib.Path, seed: int) -> None:
  """Corpus, index, questions, demonstrations and tokenizer, under `folder`."""
  world = synthetic.build(synthetic.Settings(seed=seed))
  writers.write_passages(folder / "corpus.jsonl.gz", world.passages)
  retrieval.build_index(folder / "corpus.jsonl.gz", "hashing", folder / "index")
  asked = synthetic.questions(world, DEMONSTRATIONS.value, seed=seed, distinct=False)
  turns = demonstrations(world, asked, retrieval.load_index(folder / "index"), seed)
  writers.write_examples(folder / "demonstrations.jsonl.gz", asked, turns=turns)
  writers.write_examples(folder / "train.jsonl.gz", synthetic.questions(world, 4000, seed=seed + 1, distinct=False))
  held_out = synthetic.questions(world, HELD_OUT.value, part=synthetic.HELD_OUT, seed=seed)
  writers.write_examples(folder / "held_out.jsonl.gz", held_out)
  # A space before each line: a name is then the same pieces at its start as in the middle of a sentence.
  lines = [*(" " + line for line in synthetic.lines(world, seed=seed)), *(text for said in turns for _, text in said)]
  sentencepiece.train(lines, vocab_size=506, marks=demonstrate.MARKS, path=folder / "tokenizer.model")


def demonstrations(world, asked, retriever, seed: int) -> list[list[tuple[str, str]]]:
  """Scripted transcripts with planted faults. All searches are made in one batch."""
  queries = list(dict.fromkeys(
    demonstrate.query(hop["subject"], hop["relation"]) for example in asked for hop in example.meta["decomposition"]))
  found = dict(zip(queries, retriever.search(queries, 1)))
  rng = random.Random(f"demonstrations/{seed}")
  return [demonstrate.demonstrate(example, world, found.__getitem__, rng) for example in asked]


def use_world(config, folder: pathlib.Path, seed: int) -> None:
  config.seed = seed
  config.prompting.tokenizer = str(folder / "tokenizer.model")
  config.retrieval.index = str(folder / "index")
  config.data.train = str(folder / "train.jsonl.gz")
  config.data.evaluate = str(folder / "held_out.jsonl.gz")


def warm_start(config, workdir: pathlib.Path) -> None:
  config.data.train = str(pathlib.Path(config.data.train).parent / "demonstrations.jsonl.gz")
  with tqdm(total=config.steps, desc="warm start (SFT)", unit="step") as bar:
    for metrics in sft.sft(config, workdir):
      bar.update()
      bar.set_postfix_str(f"loss {metrics['loss']:.3f}")


def learn(config, workdir: pathlib.Path, held_out) -> dict[int, dict]:
  """RL; evaluations by step, step 0 before it."""
  found: dict[int, dict] = {}

  def observe(step, player: player_lib.Player, params):
    if step % config.evaluate.every and step != config.steps:
      return {}
    found[step], _ = evaluate.measure(player, params, held_out, version=step)
    return harness.flat(found[step])

  with tqdm(total=config.steps, desc="RL (GRPO)", unit="step") as bar:
    for metrics in train.train(config, workdir, observe=observe):
      bar.update(metrics["step"] - bar.n)
      bar.set_postfix_str(train.headline(metrics))
  return found


def last_episode(workdir: pathlib.Path, step: int) -> dict:
  """A right answer after several searches, if the step has one."""
  rows = episodes_lib.read_episodes(episodes_lib.steps(workdir)[step])
  searches = lambda row: sum(segment.get("found") is not None for segment in row["segments"])
  return max(rows, key=lambda row: (row["outcome"] or 0, searches(row)))


if __name__ == "__main__":
  app.run(main)
