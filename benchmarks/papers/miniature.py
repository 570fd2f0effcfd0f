"""Tests of a paper's claims on the made-up world: the data, the arms trained from one warm start, the measures.

Every warm start goes on from the base reader (`base_reader.py`), as the papers' runs go on from one base model. It
learns the recipe's format and the faults of its demonstrations, and ends when development questions say so. An arm ends
when its reward has stopped rising, or after a fixed number of steps, over which the learning rate falls.
"""

import dataclasses
import functools
import json
import math
import pathlib
import random
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import base_reader
import reading_world
from papers import primed

from ragrl_jax import config as config_lib, recipes, retrieval
from ragrl_jax.core import schedules
from ragrl_jax.data import readers, synthetic, writers
from ragrl_jax.evaluation import harness
from ragrl_jax.jobs import evaluate, sft, train
from ragrl_jax.models import lora
from ragrl_jax.prompting import wording
from ragrl_jax.recipes.search_r1 import quickstart
from ragrl_jax.run import player as player_lib, progress
from ragrl_jax.run.prepared import prepare
from ragrl_jax.settings.fields import FILE
from ragrl_jax.store import jsonl
from ragrl_jax.structs import Episode, Example

ROOT = pathlib.Path(__file__).parents[2]
WARM = "warm"  # the arm that takes no RL step
SAMPLED = ", sampled"  # after a test's name: with answers drawn as in training
# The base reader's names and sentences. Development questions decide when a warm start ends, and draw the curves.
WORLD = dict(syllables=base_reader.SYLLABLES, wordings=(synthetic.BESIDE,), held_out=1200, development=400)
TEST, DEVELOPMENT = 1000, 200  # questions
SFT = dict(
  steps=1000,
  checkpoint=dict(every=200),
  evaluate=dict(every=25),
  sft=dict(environment_weight=0.0),
  optimizer=base_reader.OPTIMIZER | dict(learning_rate=2e-3, warmup_steps=20),
)
SHORT_TEST, SHORT_DEVELOPMENT, SHORT_WARM, SHORT_STEPS = 300, 100, 0.6, 8  # of `short`
WARM_EM = 0.9  # on one-hop development questions, twice in a row: the goal of a warm start
WINDOW, PATIENCE, RISE = 4, 3, 0.01  # an arm ends when PATIENCE means of WINDOW steps' rewards brought nothing


@dataclasses.dataclass(frozen=True)
class Side:
  """One side of a claim: an arm's mean of `measure` on `test`, at the end or at a step.

  Answers are greedy, unless the test's name ends with SAMPLED.
  """

  arm: str
  measure: str
  test: str = ""  # the paper's first
  step: int | None = None

  def key(self, paper: "Paper") -> str:
    """Where a result keeps the values: TEST, or TEST@STEP."""
    test = self.test or next(iter(paper.tests))
    return test if self.step is None else f"{test}@{self.step}"


@dataclasses.dataclass(frozen=True)
class Claim:
  """The claim that `side` exceeds `other` by at least `least` (0: by any amount); with `lower`, that it is less.

  Attributes:
    text: the paper's statement, short.
    least: smallest side - other (other - side with `lower`), stated before the runs; negative if `side` must only be
      not much worse.
    note: what was tried, for the page.
    short: whether `make papers-short` tests it: one claim a paper, of its own arm against the warm start.
  """

  text: str
  side: Side
  other: Side | float
  least: float = 0.0
  lower: bool = False
  note: str = ""
  short: bool = False

  @property
  def sides(self) -> list[Side]:
    """The sides that are arms."""
    return [side for side in (self.side, self.other) if isinstance(side, Side)]


@dataclasses.dataclass(frozen=True)
class Paper:
  """The miniature of a paper.

  Attributes:
    name: the recipe's name.
    world: fields of `reading_world.Settings` besides those of WORLD.
    questions: (world, seed) → {file: questions}, with "train", "demonstrations", "development" (one hop) and the tests'
      files.
    demonstrate: (example, world, query → passages, rng) → the turns of a scripted player with faults.
    base: settings of every run that differ from the defaults.
    sft, rl: further settings of the warm start; further settings of all arms.
    arms: arm → its further settings.
    tests: file name of a held-out set → the recipe's switches for it. The first is measured every `every` steps.
    measure: (world, example, episode) → numbers, by the world's own facts; None if a number does not apply.
    claims: the tested claims.
    shown: the two measures in the figure, the upper one first.
    warm: measure → least value on the development questions, at which the warm start ends. Answers are greedy, unless
      the measure's name ends with SAMPLED. The first says whether the format is learnt.
    settles: whether an arm ends when its reward has stopped rising, but not before step `least`; else after all steps.
    every: steps between the curve's measurements; 0: there is no curve.
    searches: whether there is a corpus to search.
    reader: the stage of `base_reader.py` whose model the warm start goes on from.
    wordings: file name → the text of a prompt, for `instructions="file:NAME"`.
    trained: metrics of training steps. Their medians and maxima are among the first test's measures, as
      trained/NAME/median and trained/NAME/max.
    greedy: whether tests are answered greedily, too. The first is always answered as in training.
    short_hops: the number of hops of the questions of `short`; 0 for any.
    short_warm: the goals of the warm start of `short`; by default the first of `warm`, but lower.
    one_world: whether all seeds have the world and the warm start of seed 0, and only questions of their own.
  """

  name: str
  world: Mapping[str, Any]
  questions: Callable[[reading_world.World, int], Mapping[str, Sequence[Example]]]
  demonstrate: Callable[..., list[tuple[str, str]]]
  base: Mapping[str, Any]
  sft: Mapping[str, Any]
  rl: Mapping[str, Any]
  arms: Mapping[str, Mapping[str, Any]]
  tests: Mapping[str, Mapping[str, Any]]
  measure: Callable[[reading_world.World, Example, Episode], Mapping[str, float | None]]
  claims: Sequence[Claim]
  shown: tuple[str, str]
  warm: Mapping[str, float]
  settles: bool = True
  least: int = 0
  every: int = 4
  searches: bool = False
  reader: str = base_reader.STAGES[-1].name
  wordings: Mapping[str, str] = dataclasses.field(default_factory=dict)
  trained: Sequence[str] = ()
  greedy: bool = True
  short_hops: int = 0
  short_warm: Mapping[str, float] = dataclasses.field(default_factory=dict)
  one_world: bool = False

  def tests_of(self, arm: str) -> list[str]:
    """The tests of an arm: the first, and those that a claim about it needs."""
    first, *others = self.tests
    sides = {(side.arm, side.test) for claim in self.claims for side in claim.sides}
    return [first, *(name for name in others if (arm, name) in sides)]


def short(paper: Paper) -> Paper:
  """The paper's arm and its short claim only, with few steps and questions and one warm start for all seeds: minutes.

  The claim is about sampled answers: the greedy one often has the same form for all questions, so a few steps change it
  for all of them, or for none.
  """
  (claim,), first = [claim for claim in paper.claims if claim.short], next(iter(paper.tests))
  sampled = lambda side: dataclasses.replace(side, test=first + SAMPLED)
  claim = dataclasses.replace(claim, side=sampled(claim.side), other=sampled(claim.other))

  def questions(world, seed):
    asked = dict(paper.questions(world, seed))
    for name in ("train", first) if paper.short_hops else ():
      asked[name] = [example for example in asked[name] if example.hops == paper.short_hops]
    spread = slice(None, None, len(asked[first]) // SHORT_TEST)  # a test may consist of parts, one after the other
    return asked | {first: asked[first][spread][:SHORT_TEST], "development": asked["development"][:SHORT_DEVELOPMENT]}

  return dataclasses.replace(
    paper,
    claims=(claim,),
    questions=questions,
    arms=dict(paper=paper.arms["paper"]),
    tests={first: paper.tests[first]},
    rl=dict(paper.rl, steps=SHORT_STEPS),
    warm=paper.short_warm or {next(iter(paper.warm)): SHORT_WARM},
    settles=False,
    every=0,
    trained=(),
    greedy=False,
    one_world=True,
  )


def settings(paper: Paper, folder: pathlib.Path, seed: int, *parts: Mapping[str, Any]):
  """The config of a run with the world in `folder`."""
  config = config_lib.default_config()
  config.recipe, config.switches = paper.name, recipes.switches(paper.name)
  config.rollout.page = base_reader.PAGE
  for part in (paper.base, *parts):
    config.update(part)
  config.prompting.chat, config.log.tensorboard = False, False
  quickstart.use_world(config, folder, seed)
  if not paper.searches:
    config.retrieval.index = ""
  config.model.shape = primed.SHAPE
  config.data.evaluate = str(folder / "development.jsonl.gz")
  if config.data.hard:
    config.data.hard = str(folder / config.data.hard)
  if wording.is_file(config.switches.instructions):
    config.switches.instructions = f"{FILE}{folder / config.switches.instructions.removeprefix(FILE)}"
  return config


def build(paper: Paper, seed: int) -> reading_world.World:
  return reading_world.build(reading_world.Settings(seed=0 if paper.one_world else seed, **(WORLD | dict(paper.world))))


def make_world(paper: Paper, folder: pathlib.Path, seed: int) -> None:
  """Writes questions, demonstrations and the search index to `folder`, with the base reader's tokenizer."""
  world = build(paper, seed)
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
  for name, text in paper.wordings.items():
    (folder / name).write_text(text)
  words = base_reader.FOLDER / "tokenizer.model"
  base_reader.tokenizer(words)
  shutil.copy(words, folder / "tokenizer.model")


def warm_up(paper: Paper, seed: int, out: pathlib.Path) -> dict[str, list[float]]:
  """Makes the world and fine-tunes the base reader on its demonstrations; the curve of each of `paper.warm`.

  With `paper.one_world`, seeds other than 0 take the weights of seed 0, and there are no curves.

  Raises:
    RuntimeError: the goal was not reached within SFT's steps.
  """
  make_world(paper, out / "world", seed)
  if paper.one_world and seed:
    if not (out / "sft").is_symlink():
      (out / "sft").symlink_to(pathlib.Path("..", "0", "sft"))
    return {}
  config = settings(paper, out / "world", seed, SFT, paper.sft)
  config.model.path = str(base_reader.model(stage=paper.reader))
  questions = list(readers.read_examples(config.data.evaluate))
  config.data.train = str(out / "world" / "demonstrations.jsonl.gz")
  measure = functools.partial(measured, paper, build(paper, seed), config, "")
  curves = supervised(config, out / "sft", questions, measure, paper.warm)
  if not ended(curves, paper.warm):
    last = {name: curve[-1] for name, curve in curves.items()}
    raise RuntimeError(
      f"{paper.name}, seed {seed}: the warm start reached {last} in {config.steps} steps. It must reach "
      f"{dict(paper.warm)}, twice in a row."
    )
  return curves


def supervised(config, workdir: pathlib.Path, asked, measure, goals: Mapping[str, float]) -> dict[str, list[float]]:
  """Fine-tunes until each goal was reached twice in a row, at most config.steps; the curve of each on `asked`.

  Args:
    config: the run's; measured every config.evaluate.every steps.
    workdir: the run's folder.
    asked: the questions that decide.
    measure: (player, params, examples, step, sample=…) → (means, …).
    goals: measure → least value; of sampled answers, if the name ends with SAMPLED.
  """
  player, curves = player_lib.build(prepare(config)), {name: [] for name in goals}

  def evaluated(step, model):
    if step % config.evaluate.every:
      return {}
    params = lora.split(model)[1]
    result = {
      drawn: measure(player, params, asked, step, sample=drawn)[0]
      for drawn in dict.fromkeys(name.endswith(SAMPLED) for name in goals)
    }
    for name, curve in curves.items():
      reached = result[name.endswith(SAMPLED)][name.removesuffix(SAMPLED)]
      curve.append(round(reached or 0.0, 3))  # None: it applies to no question yet, so the goal is not reached
    print(f"warm {step}: { ({name: curve[-1] for name, curve in curves.items()}) }", flush=True)
    return {f"development/{name}": curve[-1] for name, curve in curves.items()}

  for _ in sft.sft(config, workdir, evaluate=evaluated, reached=lambda row: ended(curves, goals)):
    pass
  return curves


def mixed_in(examples: Sequence[Example], mark: str) -> list[Example]:
  """The examples, of which every fifth has its question after `mark`: its reply is to have another arm's format."""
  marked = lambda example: dataclasses.replace(example, question=mark + example.question)
  return [example if at % 5 else marked(example) for at, example in enumerate(examples)]


def ended(curves: Mapping[str, Sequence[float]], goals: Mapping[str, float]) -> bool:
  """Whether each goal was reached twice in a row."""
  return all(schedules.holds(curves[name], least) for name, least in goals.items())


def run(paper: Paper, arm: str, seed: int, out: pathlib.Path) -> dict[str, Any]:
  """Runs one arm from its warm start and writes out/ARM/result.json. The warm start also makes the world.

  A result has the means of each test, and for the measures of claims the value of each question.
  """
  began, workdir = time.process_time(), out / arm
  if arm == WARM:
    warmed = warm_up(paper, seed, out)
  built = time.process_time()
  config = settings(paper, out / "world", seed, paper.rl, paper.arms.get(arm, {}))
  config.model.path = str(out / "sft" / "model")
  world = build(paper, seed)
  tests = {
    name: list(readers.read_examples(str(out / "world" / f"{name}.jsonl.gz")))
    for name in ("development", *paper.tests_of(arm))
  }
  first = next(iter(paper.tests))
  at_steps = {side.key(paper): side.step for c in paper.claims for side in c.sides if side.arm == arm and side.step}

  def rows() -> list[dict[str, Any]]:
    return list(jsonl.read(workdir / "metrics.jsonl")) if (workdir / "metrics.jsonl").is_file() else []

  def over(step: int) -> bool:
    """Whether the steps before this one say that the reward has stopped rising."""
    rewards = [row["reward"] for row in rows() if 0 < row["step"] < step]
    return paper.settles and len(rewards) >= paper.least and settled(rewards)

  def keep(key: str, test: str, player, params, step, sample=False):
    """Measures a test, and keeps what was found in a file, for a run that is killed later."""
    results = measured(paper, world, config, test, player, params, tests[test], step, sample=sample)
    with jsonl.whole(workdir / "measured" / f"{key}.json") as part:
      part.write_text(json.dumps(results))

  def measure(step, player, params):
    last = step == config.steps or arm == WARM or over(step)
    for key, at in at_steps.items():
      if at == step:
        keep(key, key.split("@")[0], player, params, step)
    if last:
      for name in paper.tests_of(arm) if paper.greedy else []:
        keep(name, name, player, params, step)
      keep(f"{first}{SAMPLED}", first, player, params, step, sample=True)
    if not paper.every or (step % paper.every and not last):
      return {}
    means, _ = measured(paper, world, config, first, player, params, tests["development"], step)
    return {f"evaluation/{key}": value for key, value in means.items() if value is not None}

  workdir.mkdir(exist_ok=True)
  if arm == WARM:
    player = player_lib.build(prepare(config))
    curve = {0: measure(0, player, lora.split(player.model)[1])}
  else:
    for metrics in train.train(config, workdir, evaluate=measure, reached=lambda row: over(row["step"])):
      print(f"{paper.name} {arm} {seed}: {metrics['step']}/{config.steps} {progress.headline(metrics)}", flush=True)
    curve = {row["step"]: row for row in rows()}
  measures = lambda row: {k.removeprefix("evaluation/"): v for k, v in row.items() if k.startswith("evaluation/")}
  kept = {path.stem: json.loads(path.read_text()) for path in sorted((workdir / "measured").glob("*.json"))}
  result = dict(
    paper=paper.name,
    arm=arm,
    seed=seed,
    commit=commit(),
    seconds=round(time.process_time() - built, 1),
    warm_seconds=round(built - began, 1),
    steps=max(curve),
    curve={step: results for step, row in curve.items() if (results := measures(row))},
    reached={key: means for key, (means, _) in kept.items()},
    values={key: values for key, (_, values) in kept.items()},
  )
  if arm == WARM:
    result["warm"] = warmed
  elif paper.trained:
    result["reached"][first] |= trained(paper.trained, rows())
  (workdir / "result.json").write_text(json.dumps(result))
  return result


def settled(rewards: Sequence[float]) -> bool:
  """Whether the mean rewards of windows of steps have stopped rising."""
  windows = [statistics.mean(rewards[at : at + WINDOW]) for at in range(0, len(rewards) - WINDOW + 1, WINDOW)]
  return len(rewards) % WINDOW == 0 and schedules.stopped_rising(windows, patience=PATIENCE, rise=RISE)


def measured(paper, world, config, test, player, params, examples, step, *, sample=False):
  """(means, {measure of a claim: value of each question, None where it does not apply}) over a test's questions.

  Args:
    paper, world, config: of the run.
    test: its switches of the recipe count; "" for those of the run.
    player, params: the model.
    examples: the questions.
    step: the weights' version.
    sample: draw from the model as in training; else greedy.
  """
  trained_as = player.recipe, player.rollout.play
  switches = {key: value for key, value in config.switches.items() if value is not None}
  player.recipe = recipes.get(config.recipe, config.preset, **(switches | dict(paper.tests.get(test, {}))))
  player.rollout.play = player.recipe.play
  try:
    metrics, scored = evaluate.measure(player, params, examples, version=step, sample=sample)
    rows = [
      dict(em=row["em"], f1=row["f1"], searches=row["num_searches"], **paper.measure(world, one.example, one.episode))
      for one in scored
      for row in [harness.prediction(player.recipe, one)]
    ]
  finally:
    player.recipe, player.rollout.play = trained_as
  result = harness.flat(metrics, prefix="")
  for key in rows[0]:
    known = [float(row[key]) for row in rows if row[key] is not None]
    result[key] = sum(known) / len(known) if known else None
    result[f"{key}/n"] = len(known)
  wanted = {side.measure for claim in paper.claims for side in claim.sides} & set(rows[0])
  return result, {name: [compact(row[name]) for row in rows] for name in sorted(wanted)}


def compact(value: float | None) -> float | int | None:
  """The value with three decimals, as short as possible in JSON."""
  if value is None:
    return None
  rounded = round(float(value), 3)
  return int(rounded) if math.isclose(rounded, int(rounded)) else rounded


def trained(names: Sequence[str], rows) -> dict[str, float]:
  """Medians and maxima of these metrics over the steps of a run."""
  steps = [row for row in rows if row["step"]]  # step 0 is before the first
  result = {name: [row[name] for row in steps] for name in names}
  return {
    f"trained/{name}/{kind.__name__}": float(kind(values))
    for name, values in result.items()
    for kind in (statistics.median, max)
  }


def commit() -> str:
  said = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
  return said.stdout.strip() or "unknown"
