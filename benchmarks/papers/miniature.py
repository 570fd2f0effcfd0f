"""Tests of a paper's claims on the made-up world: the data, the arms trained from one warm start, the measures."""

import dataclasses
import json
import pathlib
import random
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragrl_jax import config as config_lib
from ragrl_jax import evaluate, recipes, retrieval, sft, train
from ragrl_jax.cli import quickstart
from ragrl_jax.data import readers, synthetic, writers
from ragrl_jax.evaluation import harness
from ragrl_jax.models import lora
from ragrl_jax.prompting import sentencepiece
from ragrl_jax.run import player as player_lib
from ragrl_jax.run import progress
from ragrl_jax.store import jsonl
from ragrl_jax.structs import Episode, Example

ROOT = pathlib.Path(__file__).parents[2]
# For prompts with several passages. With 4,000 names a model memorises how names continue, and may never learn to copy.
# With 120 syllables, several names in a question share a syllable, and copies continue with the other name.
READABLE = dict(wordings=(synthetic.BESIDE,), syllables=200, entities=60_000)
WARM = "warm"  # the arm that takes no RL step
QUICKSTART = config_lib.load(ROOT / "configs" / "quickstart.py", "sft")
DECODER = QUICKSTART.model.shape.to_dict()
# for the warm starts, which end at a known step
MUON = QUICKSTART.optimizer.to_dict() | dict(learning_rate=4e-3, schedule="cosine", final_share=0.1)


@dataclasses.dataclass(frozen=True)
class Side:
  """One side of a claim: an arm's mean of `measure` on `test`, at the end or (first test only) at a step."""

  arm: str
  measure: str
  test: str = ""  # the paper's first
  step: int | None = None


@dataclasses.dataclass(frozen=True)
class Claim:
  """The claim that `side` exceeds `other` by at least `least` (0: by any amount); with `lower`, that it is less.

  Attributes:
    text: the paper's statement, short.
    least: smallest side - other (other - side with `lower`); negative if `side` must only be not much worse.
    note: what was tried, for the page.
  """

  text: str
  side: Side
  other: Side | float
  least: float = 0.0
  lower: bool = False
  note: str = ""


@dataclasses.dataclass(frozen=True)
class Paper:
  """The miniature of a paper.

  Attributes:
    name: the recipe's name.
    world: fields of `synthetic.Settings`.
    questions: (world, seed) → {file: questions}, with "train", "demonstrations" and the tests' files.
    demonstrate: (example, world, query → passages, rng) → the turns of a scripted player with faults.
    marks, vocab_size: arguments of the tokenizer's training.
    base: settings of every run that differ from the defaults.
    sft, rl: further settings of the warm start; further settings of all arms.
    arms: arm → its further settings.
    tests: file name of a held-out set → the recipe's switches for it. The first is measured every `every` steps.
    measure: (world, example, episode) → numbers, by the world's own facts; None if a number does not apply.
    claims: the tested claims.
    shown: the two measures in the figure, the upper one first.
    searches: whether there is a corpus to search.
    later_steps: steps of the warm starts for seeds above 0. These start from seed 0's weights, as a paper's runs start
      from one base model, since it depends on the seed whether a small model learns to read. 0: all warm starts begin
      from random weights.
    trained: metrics of training steps. Their medians and maxima are among the first test's measures, as
      trained/NAME/median and trained/NAME/max.
  """

  name: str
  world: Mapping[str, Any]
  questions: Callable[[synthetic.World, int], Mapping[str, Sequence[Example]]]
  demonstrate: Callable[..., list[tuple[str, str]]]
  marks: Sequence[str]
  vocab_size: int
  base: Mapping[str, Any]
  sft: Mapping[str, Any]
  rl: Mapping[str, Any]
  arms: Mapping[str, Mapping[str, Any]]
  tests: Mapping[str, Mapping[str, Any]]
  measure: Callable[[synthetic.World, Example, Episode], Mapping[str, float | None]]
  claims: Sequence[Claim]
  shown: tuple[str, str]
  every: int = 4
  searches: bool = False
  later_steps: int = 0
  trained: Sequence[str] = ()


def settings(paper: Paper, folder: pathlib.Path, seed: int, *parts: Mapping[str, Any]):
  """The config of a run with the world in `folder`."""
  config = config_lib.default_config()
  config.recipe, config.switches = paper.name, recipes.switches(paper.name)
  for part in (paper.base, *parts):
    config.update(part)
  config.prompting.chat, config.log.tensorboard = False, False
  quickstart.use_world(config, folder, seed)
  if not paper.searches:
    config.retrieval.index = ""
  config.data.evaluate = str(folder / f"{next(iter(paper.tests))}.jsonl.gz")
  if config.data.hard:
    config.data.hard = str(folder / config.data.hard)
  return config


def make_world(paper: Paper, folder: pathlib.Path, seed: int, tokenizer: pathlib.Path | None = None) -> None:
  """Writes questions, demonstrations, tokenizer (a copy of the given one) and the search index to `folder`."""
  world = synthetic.build(synthetic.Settings(seed=seed, **paper.world))
  search = None
  if paper.searches:
    writers.write_passages(folder / "corpus.jsonl.gz", world.passages)
    retrieval.build_index(folder / "corpus.jsonl.gz", "hashing", folder / "index")
    retriever = retrieval.load_index(folder / "index")
    top_k = paper.base["retrieval"]["top_k"]
    search = lambda query: retriever.search([query], top_k)[0]
  files = dict(paper.questions(world, seed))
  asked = files.pop("demonstrations")
  rng = random.Random(f"{paper.name}/{seed}")
  turns = [paper.demonstrate(example, world, search, rng) for example in asked]
  writers.write_examples(folder / "demonstrations.jsonl.gz", asked, turns=turns)
  for name, examples in files.items():
    writers.write_examples(folder / f"{name}.jsonl.gz", examples)
  if tokenizer:
    shutil.copy(tokenizer, folder / "tokenizer.model")
    return
  # A space before each line, so that a name has the same pieces there as in the middle of a sentence.
  lines = [*(" " + line for line in synthetic.lines(world, seed=seed)), *(text for said in turns for _, text in said)]
  sentencepiece.train(lines, vocab_size=paper.vocab_size, marks=paper.marks, path=folder / "tokenizer.model", threads=1)


def run(paper: Paper, arm: str, seed: int, out: pathlib.Path) -> dict[str, Any]:
  """Runs one arm from its warm start and writes out/ARM/result.json. The warm start also makes the world."""
  began, workdir = time.process_time(), out / arm
  if arm == WARM:
    first = out.parent / "0" if paper.later_steps and seed else None
    make_world(paper, out / "world", seed, first and first / "world" / "tokenizer.model")
    config = settings(paper, out / "world", seed, paper.sft)
    if first:
      config.steps, config.model.path = paper.later_steps, str(first / "sft" / "model")
    config.data.train = str(out / "world" / "demonstrations.jsonl.gz")
    for metrics in sft.sft(config, out / "sft"):
      if metrics["step"] % 50 == 0:
        print(f"{paper.name} {seed}: warm {metrics['step']}/{config.steps} loss {metrics['loss']:.3f}", flush=True)
  made = time.process_time()
  config = settings(paper, out / "world", seed, paper.rl, paper.arms.get(arm, {}))
  config.model.path = str(out / "sft" / "model")
  world = synthetic.build(synthetic.Settings(seed=seed, **paper.world))
  tests = {name: list(readers.read_examples(str(out / "world" / f"{name}.jsonl.gz"))) for name in paper.tests}
  first, reached = next(iter(tests)), {}

  def measure(step, player, params):
    last = step == config.steps or arm == WARM
    if not last and (step == 0 or step % paper.every):  # step 0 is the warm start's
      return {}
    for name in tests if last else [first]:
      reached[name] = measured(paper, world, config, name, player, params, tests[name], step)
    return {f"evaluation/{key}": value for key, value in reached[first].items() if value is not None}

  curve = {}
  if arm == WARM:
    player = player_lib.build(config)
    measure(0, player, lora.split(player.model)[1])
    curve[0] = reached[first]
  else:
    for metrics in train.train(config, workdir, evaluate=measure):
      print(f"{paper.name} {arm} {seed}: {metrics['step']}/{config.steps} {progress.headline(metrics)}", flush=True)
    rows = list(jsonl.read(workdir / "metrics.jsonl"))
    for row in rows:
      known = {k.removeprefix("evaluation/"): v for k, v in row.items() if k.startswith("evaluation/")}
      curve |= {row["step"]: known} if known else {}
    reached[first] |= trained(paper.trained, rows)
  result = dict(
    paper=paper.name,
    arm=arm,
    seed=seed,
    commit=commit(),
    seconds=round(time.process_time() - made, 1),
    warm_seconds=round(made - began, 1),
    curve=curve,
    reached=reached,
  )
  workdir.mkdir(exist_ok=True)
  (workdir / "result.json").write_text(json.dumps(result))
  return result


def measured(paper, world, config, name, player, params, examples, step) -> dict[str, float | None]:
  """Means over a test's questions, decoded greedily, with the test's switches of the recipe."""
  trained = player.recipe, player.rollout.play
  switches = {key: value for key, value in config.switches.items() if value is not None}
  player.recipe = recipes.get(config.recipe, config.preset, **(switches | dict(paper.tests[name])))
  player.rollout.play = player.recipe.play
  try:
    metrics, scored = evaluate.measure(player, params, examples, version=step)
  finally:
    player.recipe, player.rollout.play = trained
  rows = [paper.measure(world, one.example, one.episode) for one in scored]
  found = harness.flat(metrics, prefix="")
  for key in rows[0]:
    known = [float(row[key]) for row in rows if row[key] is not None]
    found[key] = sum(known) / len(known) if known else None
    found[f"{key}/n"] = len(known)
  return found


def trained(names: Sequence[str], rows) -> dict[str, float]:
  """Medians and maxima of these metrics over the steps of a run."""
  steps = [row for row in rows if row["step"]]  # step 0 is before the first
  found = {name: [row[name] for row in steps] for name in names}
  return {
    f"trained/{name}/{kind.__name__}": float(kind(values))
    for name, values in found.items()
    for kind in (statistics.median, max)
  }


def commit() -> str:
  said = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
  return said.stdout.strip() or "unknown"
