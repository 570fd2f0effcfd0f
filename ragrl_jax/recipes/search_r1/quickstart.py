"""Trains a small model to search: ragrl quickstart [--workdir out/quickstart] [--seed 0]

The steps are a made-up world, its tokenizer, an index, a warm start on faulty demonstrations, RL with live search, and
a table of the changes. Both stages of training end depending on their development questions; config.steps is only the
upper limit. The held-out questions have no influence.
"""

import json
import os
import pathlib
import random
import shlex
import sys
import time

import jax
from absl import flags
from flax import nnx
from ml_collections import config_flags
from tqdm import tqdm

from ragrl_jax import config as config_lib, retrieval
from ragrl_jax.core import schedules
from ragrl_jax.data import readers, synthetic, writers
from ragrl_jax.evaluation import harness
from ragrl_jax.jobs import evaluate, sft, train
from ragrl_jax.parallel import cores
from ragrl_jax.prompting import sentencepiece
from ragrl_jax.recipes.search_r1 import recipe as recipe_lib
from ragrl_jax.report import metric_tables, page as page_lib, traces
from ragrl_jax.run import player as player_lib
from ragrl_jax.run.prepared import prepare
from ragrl_jax.store import compile_cache, episodes as episodes_lib, folders, malloc

WORKDIR = flags.DEFINE_string(
  "workdir", "out/quickstart", "Folder of all results. The results of an earlier quickstart are removed."
)
SEED = flags.DEFINE_integer(
  "seed", 0, "Seed of the world, the model, the demonstrations and the sampling.", lower_bound=0, upper_bound=2**32 - 1
)
DEMONSTRATIONS = flags.DEFINE_integer("demonstrations", 6000, "Scripted episodes of the warm start.")
HELD_OUT = flags.DEFINE_integer("held_out", 300, "Questions about entities that training never saw.")
CONFIG = config_flags.DEFINE_config_file("config", config_lib.find("quickstart"), help_string="Config of the RL.")
SFT_CONFIG = config_flags.DEFINE_config_file(
  "sft_config", config_lib.find("quickstart:sft"), help_string="Config of the SFT."
)

DEVELOPMENT = 200  # questions that decide when a stage ends; no other question names their entities
WARM_EM, WARM_ANSWERED = 0.97, 0.99  # on one-hop questions, twice in a row: the goal of the warm start
# RL ends after PATIENCE measurements without a better EM, but not before EM has gained GAIN.
PATIENCE, RISE, GAIN = 3, 0.005, 0.1
CLAIM = 0.85  # held-out EM that a run must reach
TYPICAL = dict(warm=300, rl=24)  # steps; used only to estimate the time left
RL_COST = 7.0  # seconds of an RL step over seconds of a supervised one; used only for that estimate


def main():
  malloc.limit()
  compile_cache.keep()
  start, workdir, seed = time.perf_counter(), pathlib.Path(WORKDIR.value), SEED.value
  folders.empty(workdir)
  say = lambda text: tqdm.write(f"[{time.perf_counter() - start:4.0f} s] {text}")
  make_world(workdir / "world", seed)
  say(
    "world, index, tokenizer and demonstrations are made; now the warm start: EM stays low for a while, "
    "because a small model learns to copy names suddenly"
  )
  for config in (CONFIG.value, SFT_CONFIG.value):
    use_world(config, workdir / "world", seed)
    prepare(config)
  config = CONFIG.value
  warm = warm_start(SFT_CONFIG.value, workdir / "warm")
  say(
    f"warm start {'done' if warm['reached'] else 'NOT reached'} after {warm['steps']} steps: one-hop EM "
    f"{warm['em'][-1]:.3f} on development questions; now RL with live search"
  )

  config.model.path = str(workdir / "warm" / "model")
  held_out = list(readers.read_examples(config.data.evaluate))
  results, curve = learn(config, workdir, held_out)
  before, after = results[0], results[max(results)]
  seconds = time.perf_counter() - start
  summary = dict(
    em_before=before["em"],
    em_after=after["em"],
    searches_before=before["searches"],
    searches_after=after["searches"],
    seconds=round(seconds, 1),
    seed=seed,
    warm=warm,
    rl=dict(steps=max(results), em=curve),
    machine=machine(),
    before=before,
    after=after,
  )
  (workdir / "summary.json").write_text(json.dumps(summary, indent=1))
  page = page_lib.write_report(workdir)
  print("\nHeld-out questions, greedy answers; all names in them are new to the model\n")
  print(metric_tables.text_table(metric_tables.comparison(before, after)))
  print("\nOne sampled episode of the last step\n")
  traces.show(last_episode(workdir, max(results)))
  if problem := verdict(summary, config):
    print(f"\n{problem}")
  most_hops = max(held_out, key=lambda example: example.hops or 0)
  print(
    f"\n{seconds:.0f} s in all.\nNow open {page} in a browser; then README.md, 'Your own model, questions and "
    "corpus', has the commands for yours.\nTo ask the model that was just trained (--page: on a page):\n"
    + shlex.join(["ragrl", "ask", "--checkpoint", str(workdir), most_hops.question])
  )
  sys.exit(1 if problem else 0)


def make_world(folder: pathlib.Path, seed: int) -> None:
  """Corpus, index, questions, demonstrations and tokenizer, under `folder`."""
  world = synthetic.build(synthetic.Settings(seed=seed, development=80))
  writers.write_passages(folder / "corpus.jsonl.gz", world.passages)
  retrieval.build_index(folder / "corpus.jsonl.gz", "hashing", folder / "index")
  questions = synthetic.questions(world, DEMONSTRATIONS.value, seed=seed, distinct=False)
  turns = demonstrations(questions, retrieval.load_index(folder / "index"), seed)
  writers.write_examples(folder / "demonstrations.jsonl.gz", questions, turns=turns)
  writers.write_examples(folder / "train.jsonl.gz", synthetic.questions(world, 4000, seed=seed + 1, distinct=False))
  for part, count in ((synthetic.HELD_OUT, HELD_OUT.value), (synthetic.DEVELOPMENT, DEVELOPMENT)):
    writers.write_examples(folder / f"{part}.jsonl.gz", synthetic.questions(world, count, part=part, seed=seed))
  # A space before each line: a name then has the same pieces at the start of a line and in the middle of a sentence.
  lines = [*(" " + line for line in synthetic.lines(world, seed=seed)), *(text for said in turns for _, text in said)]
  sentencepiece.train(lines, vocab_size=506, marks=recipe_lib.MARKS, path=folder / "tokenizer.model")


def demonstrations(examples, retriever, seed: int) -> list[list[tuple[str, str]]]:
  """Scripted transcripts with deliberate faults. All searches are made in one batch."""
  hops = [hop for example in examples for hop in example.meta["decomposition"]]
  queries = list(dict.fromkeys(map(recipe_lib.write_query, hops)))
  results = dict(zip(queries, retriever.search(queries, 1)))
  rng = random.Random(f"demonstrations/{seed}")
  return [recipe_lib.demonstrate(example, results.__getitem__, rng) for example in examples]


def use_world(config, folder: pathlib.Path, seed: int) -> None:
  """Sets a config's seed and its paths to the world in `folder`."""
  config.seed = seed
  config.prompting.tokenizer = str(folder / "tokenizer.model")
  config.retrieval.index = str(folder / "index")
  config.data.train = str(folder / "train.jsonl.gz")
  config.data.evaluate = str(folder / "held_out.jsonl.gz")


def development(config) -> list:
  """The questions that decide when a stage ends, from the file beside the held-out ones."""
  return list(readers.read_examples(pathlib.Path(config.data.evaluate).parent / "development.jsonl.gz"))


def warm_start(config, workdir: pathlib.Path) -> dict:
  """Fine-tunes on the demonstrations until the model answers one-hop questions: it then searches, reads and copies.

  Returns:
    {"reached": whether it got there within config.steps, "steps", "em" and "answered": one number per measurement}.
  """
  questions = [example for example in development(config) if example.hops == 1]
  config.data.train = str(pathlib.Path(config.data.train).parent / "demonstrations.jsonl.gz")
  player, curve = player_lib.build(prepare(config)), dict(em=[], answered=[])

  def measure(step, model):
    if step % config.evaluate.every and step != config.steps:
      return {}
    results, _ = evaluate.measure(player, nnx.split(model)[1], questions, version=step)
    for name in curve:
      curve[name].append(results[name])
    return {f"development/{name}": values[-1] for name, values in curve.items()}

  is_warm = lambda row: schedules.holds(curve["em"], WARM_EM) and schedules.holds(curve["answered"], WARM_ANSWERED)
  remaining, metrics = Left(), {}
  with bar("warm start (SFT)", config.steps) as progress:
    for metrics in sft.sft(config, workdir, evaluate=measure, reached=is_warm):
      em = f"one-hop EM {curve['em'][-1]:.2f} (until {WARM_EM}), " if curve["em"] else ""
      tick(progress, f"loss {metrics['loss']:.2f}, {em}{remaining.after('warm', metrics['step'])}")
  return dict(reached=is_warm(None), steps=metrics["step"], **curve)


def learn(config, workdir: pathlib.Path, held_out) -> tuple[dict[int, dict], list[float]]:
  """RL until EM on the development questions has stopped rising.

  Returns:
    (metrics of the held-out questions by step, before the first and after the last; the development EM, measured every
    config.evaluate.every steps from step 0).
  """
  questions, results, curve = development(config), {}, []
  over = lambda: schedules.stopped_rising(curve, patience=PATIENCE, rise=RISE, gain=GAIN)

  def measure(step, player: player_lib.Player, params):
    if step % config.evaluate.every and step != config.steps:
      return {}
    measured, _ = evaluate.measure(player, params, questions, version=step)
    curve.append(measured["em"])
    metrics = harness.flat(measured, prefix="development/")
    if step == 0 or step == config.steps or over():
      results[step], scored = evaluate.measure(player, params, held_out, version=step)
      evaluate.keep(workdir, step, player.recipe, scored)
      metrics |= harness.flat(results[step])
    return metrics

  remaining = Left()
  with bar("RL (GRPO)", config.steps) as shown:
    for metrics in train.train(config, workdir, evaluate=measure, reached=lambda row: over()):
      if metrics["step"]:
        text = f"EM {metrics['outcome']:.2f}, searches {metrics['searches']:.2f}, development EM {curve[-1]:.2f}"
        tick(shown, f"{text}, {remaining.after('rl', metrics['step'])}")
  return results, curve


class Left:
  """Estimates the time left from the seconds per step so far and the TYPICAL number of steps."""

  _began: float | None = None

  def after(self, stage: str, done: int) -> str:
    """ "about 3 min left" after `done` steps of `stage`. The first step is not counted, because it compiles."""
    now = time.perf_counter()
    if self._began is None:
      self._began, self._first = now, done
      return "time left: not known yet"
    a_step = (now - self._began) / (done - self._first)
    seconds = max(TYPICAL[stage] - done, 0) * a_step
    if stage == "warm":
      seconds += TYPICAL["rl"] * RL_COST * a_step
    return f"about {seconds / 60:.0f} min left" if seconds > 90 else f"about {max(seconds, 10):.0f} s left"


def bar(what: str, most: int) -> tqdm:
  """A progress bar of at most `most` steps."""
  return tqdm(total=most, desc=what, bar_format="{desc}: step {n_fmt}, at most {total_fmt} [{elapsed}] {postfix}")


def tick(progress: tqdm, text: str) -> None:
  """Moves the bar by one step, with a text beside it."""
  progress.set_postfix_str(text, refresh=False)
  progress.update()


def machine() -> dict:
  """The properties of this machine that affect the last digits of a run."""
  return dict(threads=cores.visible(), xla_flags=os.environ.get("XLA_FLAGS", ""), jax=jax.__version__)


def verdict(summary: dict, config) -> str:
  """ "" if the run reached the claim, else a message with the result and what to try."""
  if summary["em_after"] >= CLAIM:
    return ""
  if not summary["warm"]["reached"]:
    reason = (
      f"the warm start did not reach one-hop EM {WARM_EM} within {summary['warm']['steps']} steps. Raise "
      "--sft_config.steps, or try another --seed"
    )
  elif summary["rl"]["steps"] == config.steps:
    reason = f"EM was still rising, or had not begun to rise, after {config.steps} steps of RL. Raise --config.steps"
  else:
    reason = "EM on development questions stopped rising before. Try another --seed, or raise --config.evaluate.every"
  return (
    f"MISSED: held-out EM {summary['em_after']:.3f} after RL, but every run should reach {CLAIM}: {reason}. "
    "summary.json has the curves and the machine: please report it."
  )


def last_episode(workdir: pathlib.Path, step: int) -> dict:
  """An episode of this step, if possible one with a right answer and many searches."""
  rows = episodes_lib.read_episodes(episodes_lib.steps(workdir)[step])
  searches = lambda row: sum(segment.get("found") is not None for segment in row["segments"])
  return max(rows, key=lambda row: (row["outcome"] or 0, searches(row)))
