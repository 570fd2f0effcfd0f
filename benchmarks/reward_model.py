"""VERITAS's reward model from end to end, in miniature: python benchmarks/reward_model.py [--machines] [--seeds 0,1,2]

Stages: a warm start of the policy → pairs of results and thoughts → labels by a judge → split → LoRA → consistency and
Cohen's κ on held-out pairs → the reward model serves batches in a VERITAS run, and its verdicts are compared with the
labelling judge's. World, questions and settings are those of benchmarks/papers/veritas.py. Every supervised stage ends
when it reaches its criterion on its own development questions or pairs, or at a maximum number of steps. A finished
run is not repeated.

The policy's warm start and the judge's base are both trained from the base reader (`make base`). The base reader can
read results and copy from them, but has never compared two texts, as an instruct model can. So full fine-tuning first
teaches it to compare names, once for all runs, in three lessons: a name with a title, a name with a passage, a
statement with a passage. A lesson ends when the digit is right for 90 % of its development pairs, the last lesson at
95 %. If a lesson does not reach this, the benchmark ends with an error.

The lessons ignore relations, and have no plans and no thoughts about empty results. The adapters learn the labels of
these from the policy's own pairs.
"""

import dataclasses
import functools
import json
import pathlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import base_reader
import machines
from absl import app, flags, logging
from papers import miniature, players, veritas

from ragrl_jax import config as config_lib, judging
from ragrl_jax.core import schedules
from ragrl_jax.core.rewards import faithful
from ragrl_jax.data import readers, writers
from ragrl_jax.jobs import evaluate, sft, train
from ragrl_jax.models import lora
from ragrl_jax.recipes.steps import steps
from ragrl_jax.recipes.veritas import distil
from ragrl_jax.rollout import collect
from ragrl_jax.run import player as player_lib, prepared
from ragrl_jax.run.prepared import prepare
from ragrl_jax.store import episodes as episodes_lib, folders
from ragrl_jax.structs import Episode, Example

ROOT = pathlib.Path(__file__).parents[1]
OUT = flags.DEFINE_string("out", "out/reward_model", "Folder of the runs, with a subfolder per seed and machine.")
ONE = flags.DEFINE_string(
  "one", "", "SEED/FOLDER: this run only, in this process; the folder is emptied first. base/FOLDER: the judge's base."
)

SAMPLED, HELD_OUT = 2400, 400  # sampled episodes of the policy; held-out pairs
RESULTS = 12_000  # results per lesson, each with eight thoughts
DEVELOPMENT = 200  # pairs that decide when a stage of the judge ends
WARM_EM = 0.95  # goal of the policy's warm start: EM on one-hop development questions, twice in a row
# Lesson → consistency of the base on its development pairs, twice in a row. After the last one, the base can compare.
COMPARES = dict(name=0.9, passage=0.9, statement=0.95)
PATIENCE, RISE = 4, 0.005  # LoRA ends when so many measurements in a row brought no better consistency
CLAIM = 0.05  # least rise of consistency by LoRA in every run
NOTICES = 0.3  # least κ after LoRA on thoughts that state something: the judge then notices miscopied names
PROMPT = "information_think_bare"
ENDLESS = dict(schedule="inverse_sqrt")
JUDGE = dict(  # settings of all supervised runs of the judge
  preset="reward_model",
  switches=dict(judge_prompt=PROMPT),
  sft=dict(environment_weight=0.0),
  learner=dict(micro_rows=4),
  retrieval=dict(index=""),
)
# Comparing tokens is learned token by token, over many steps; a learning rate of 1/√step would fall too early.
BASE = dict(
  steps=4000,
  checkpoint=dict(every=500),
  evaluate=dict(every=50),
  optimizer=dict(schedule="constant", learning_rate=1e-3, warmup_steps=50, weight_decay=0.0),
)
LORA = dict(
  steps=1200,
  checkpoint=dict(every=1200),
  evaluate=dict(every=50),
  model=dict(lora=dict(rank=16, alpha=32.0)),
  optimizer=dict(ENDLESS, kind="adamw", learning_rate=2e-3, warmup_steps=50, weight_decay=0.0),
)
SERVED = dict(steps=6, checkpoint=dict(every=6), switches=dict(veritas.WEIGHTS, ramp_start=0, ramp_end=2))


def main(_):
  logging.set_verbosity(logging.WARNING)
  if ONE.value:
    seed, folder = ONE.value.split("/", 1)
    if seed == "base":
      compare(pathlib.Path(folder))
    else:
      run(int(seed), folders.empty(pathlib.Path(folder)))
    return
  out = pathlib.Path(OUT.value).resolve()
  if not judge_base(out).is_dir():
    command = [sys.executable, __file__, f"--one=base/{out / 'base'}"]
    machines.run([machines.Job("1 thread", command, out / "base.log")], cwd=ROOT)
  if not judge_base(out).is_dir():
    raise RuntimeError(f"{out / 'base'} has no base of the judge: its log, {out / 'base.log'}, says why.")
  asked = [(seed, machine, out / f"{machines.slug(machine)}_{seed}") for seed, machine in machines.wanted()]
  machines.run(
    [
      machines.Job(machine, [sys.executable, __file__, f"--one={seed}/{folder}"], folder.with_suffix(".log"))
      for seed, machine, folder in asked
      if not (folder / "result.json").is_file()
    ],
    cwd=ROOT,
  )
  results = []
  for seed, machine, folder in asked:
    if not (folder / "result.json").is_file():
      raise RuntimeError(f"{folder} has no result: its log, {folder.with_suffix('.log')}, says why.")
    results.append(json.loads((folder / "result.json").read_text()) | dict(seed=seed, machine=machine))
  print(table(results))
  gains = [r["after"]["all"]["consistency"] - r["before"]["all"]["consistency"] for r in results]
  kappas = [r["after"]["states something"]["kappa"] for r in results]
  verdict = lambda holds: "holds" if holds else "MISSED"
  print(
    f"\nClaim (LoRA raises consistency by {CLAIM} or more in every run): {verdict(min(gains) >= CLAIM)}; "
    f"gain {statistics.mean(gains):+.3f}, least {min(gains):+.3f}\n"
    f"Claim (κ on statements is {NOTICES} or more in every run): {verdict(min(kappas) >= NOTICES)}; "
    f"mean {statistics.mean(kappas):.3f}, least {min(kappas):.3f}"
  )
  sys.exit(min(gains) < CLAIM or min(kappas) < NOTICES)


def judge_base(out: pathlib.Path) -> pathlib.Path:
  """The folder of the judge's base. The folder of its last lesson is renamed to it when the lesson has ended."""
  return out / "base" / "model"


def compare(out: pathlib.Path) -> None:
  """Teaches the base reader to compare names. A killed run continues from its last checkpoint.

  Raises:
    RuntimeError: a lesson's goal was not reached.
  """
  say = clock()
  if not (out / "world" / "tokenizer.model").is_file():
    miniature.make_world(PAPER, out / "world", 0)
  world, rng, path = miniature.build(PAPER, 0), random.Random("reward_model/base"), str(base_reader.model())
  for kind in players.LESSONS:
    pairs, turns = zip(*players.lessons(kind, world, RESULTS, rng))
    development = [pair for pair, _ in players.lessons(kind, world, DEVELOPMENT, rng, claims=1)]
    if not (out / kind / "model").is_dir():
      compares = functools.partial(schedules.holds, least=COMPARES[kind])
      curve = taught(out, kind, pairs, turns, development, compares, path, 0, BASE)
      say(f"{kind}: {len(curve) * BASE['evaluate']['every']} steps, consistency {curve}")
      if not compares(curve):
        raise RuntimeError(
          f"after {BASE['steps']} steps of the lesson {kind!r} the base's consistency is {curve[-1]:.3f}. It must be "
          f"{COMPARES[kind]} twice in a row, else the base cannot compare names: raise BASE['steps']."
        )
    path = str(out / kind / "model")
  (out / kind / "model").rename(out / "model")


def run(seed: int, out: pathlib.Path) -> None:
  """Runs one seed, and writes its results to `out`/result.json."""
  start, say = time.perf_counter(), clock()
  settings = lambda *parts: miniature.settings(PAPER, out / "world", seed, *parts)
  miniature.make_world(PAPER, out / "world", seed)
  questions = list(readers.read_examples(str(out / "world" / "development.jsonl.gz")))
  config = settings(miniature.SFT, PAPER.sft)
  config.model.path = str(base_reader.model())
  config.data.train = str(out / "world" / "demonstrations.jsonl.gz")
  curve = supervised(config, out / "sft", questions, lambda curve: schedules.holds(curve, WARM_EM))
  say(f"warm start: {curve}")

  labeller = judging.load(config_lib.validate(settings()).judge)
  label = lambda pairs: distil.labelled(pairs, labeller.judge([distil.asked(pair) for pair in pairs]))
  config = settings(PAPER.rl, dict(preset="em"))
  config.model.path = str(out / "sft" / "model")
  own = distil.pairs(sampled(config, SAMPLED))
  learnt, held_out = distil.split(label(own), HELD_OUT, seed=seed)
  say(f"{SAMPLED} episodes of the policy: {len(learnt)} pairs to learn from, {len(held_out)} held out")
  pairs, development = distil.split(learnt, DEVELOPMENT, seed=seed)
  base, over = str(judge_base(out.parent)), lambda curve: schedules.stopped_rising(curve, patience=PATIENCE, rise=RISE)
  curve = taught(out, "adapters", pairs, distil.transcripts(pairs), development, over, base, seed, LORA)
  say(f"adapters: {len(pairs)} pairs, {len(curve) * LORA['evaluate']['every']} steps, consistency {curve}")

  adapters = str(out / "adapters" / "model")
  service, result = dict(kind="reward_model", prompt=PROMPT, threshold=0.5, batch=64, max_tokens=128), {}
  for name, path in (("before", base), ("after", adapters)):
    judge = judging.load(dataclasses.replace(config_lib.validate(settings()).judge, **service, path=path))
    result[name] = report(f"held out, {name} LoRA", held_out, judge.judge([distil.asked(pair) for pair in held_out]))

  config = settings(PAPER.rl, dict(preset="paper", judge=dict(kind="none")), SERVED)
  config.judges = dict(information_think=service | dict(path=adapters))
  config.model.path = str(out / "sft" / "model")
  rows = list(train.train(config, out / "run"))
  result["served"] = served(config, out / "run", labeller)
  say(f"{len(rows)} steps of VERITAS with it; all rewards follow from its verdicts")
  for key in ("term/information_think", "weight/information_think", "reward", "seconds/judge_wait", "seconds/step"):
    print(f"{key}: {' '.join(f'{row[key]:.3f}' for row in rows)}")
  result["seconds"] = round(time.perf_counter() - start)
  (out / "result.json").write_text(json.dumps(result, indent=1))


def clock():
  """Makes a function that prints a text with the seconds since this call."""
  start = time.perf_counter()
  return lambda text: print(f"[{time.perf_counter() - start:4.0f} s] {text}", flush=True)


def taught(
  out: pathlib.Path,
  name: str,
  pairs: Sequence[Example],
  turns,
  development: Sequence[Example],
  over: Callable[[Sequence[float]], bool],
  path: str,
  seed: int,
  settings: Mapping,
) -> list[float]:
  """Fine-tunes a judge until over(curve), from the decoder in `path`, and saves it in out/name/model.

  Returns:
    The curve of consistency on `development`.
  """
  writers.write_examples(out / f"{name}.jsonl.gz", pairs, turns=turns)
  built = miniature.settings(PAPER, out / "world", seed, miniature.SFT, PAPER.sft, JUDGE, settings)
  built.model.path, built.data.train = path, str(out / f"{name}.jsonl.gz")
  return supervised(built, out / name, development, over)


# Comparing is learned for each syllable, so the world has 60 of the base reader's 200 syllables. It is as large.
PAPER = dataclasses.replace(veritas.PAPER, world=dict(syllables=60))


def supervised(config, workdir: pathlib.Path, asked: Sequence[Example], over) -> list[float]:
  """Fine-tunes until over(curve), at most config.steps steps.

  Returns:
    The curve: EM on `asked`, every config.evaluate.every steps.
  """
  player, curve = player_lib.build(prepare(config)), []

  def measure(step, model):
    if step % config.evaluate.every:
      return {}
    found, _ = evaluate.measure(player, lora.split(model)[1], asked, version=step)
    curve.append(round(found["em"], 3))
    return {"development/em": found["em"]}

  for _ in sft.sft(config, workdir, evaluate=measure, reached=lambda row: over(curve)):
    pass
  return curve


def sampled(config, count: int) -> list[Episode]:
  """Samples episodes of the policy in config.model.path on the training questions, as training does."""
  player = player_lib.build(prepare(config))
  player.engine.load(lora.split(player.model)[1], version=0)
  examples = list(readers.read_examples(config.data.train, max_examples=count))
  return player.rollout.run([collect.Request(example, i) for i, example in enumerate(examples)], step=0)


def report(title: str, pairs: Sequence[Example], verdicts: Sequence[float | None]) -> dict[str, dict]:
  """Agreement with the labels, overall and by kind of thought, and the share of the more frequent label."""
  states = [" is " in pair.question for pair in pairs]
  result = {}
  for kind, chosen in (
    ("all", [True] * len(pairs)),
    ("states something", states),
    ("does not", [not state for state in states]),
  ):
    some = [(pair, verdict) for pair, verdict, take in zip(pairs, verdicts, chosen) if take]
    of = distil.agreement(*zip(*some))
    result[kind] = of | dict(majority=max(of["ones"], 1 - of["ones"]))
    print(
      f"{title}, {kind}: n {of['n']}, majority {result[kind]['majority']:.3f}, "
      f"consistency {of['consistency']:.3f}, kappa {of['kappa']:.3f}",
      flush=True,
    )
  return result


def table(results: Sequence[dict]) -> str:
  """The results as a Markdown table, one row per run."""
  of = lambda part: f"{part['consistency']:.3f}, {part['kappa']:.3f}"
  lines = [
    "| Seed | Machine | n | the commoner digit | base: consistency, κ | after LoRA | served | seconds |",
    "|---" * 8 + "|",
  ]
  for r in results:
    held_out = r["after"]["all"]
    lines.append(
      f"| {r['seed']} | {r['machine']} | {held_out['n']} | {held_out['majority']:.3f} | "
      f"{of(r['before']['all'])} | **{of(held_out)}** | {of(r['served']['all'])} | {r['seconds']} |"
    )
  return "\n".join(lines)


def served(config, run: pathlib.Path, labeller: judging.Judge) -> dict[str, dict]:
  """Checks that rewards follow from the reward model's verdicts; compares these with the labelling judge's."""
  recipe = prepared.recipe(config_lib.validate(config, training=False))
  pairs, verdicts, paid = [], [], 0
  for step, path in episodes_lib.steps(run).items():
    for row in episodes_lib.read_episodes(path):
      episode = episodes_lib.episode_of(row)
      said = episode.facts["information_think"]
      pairs += faithful.whole(steps(episode.turns).information_think)
      verdicts += said
      if row["reward"] != recipe.reward(
        recipe.score(Example(row["id"], row["question"], tuple(row["golds"])), episode), step
      ):
        raise ValueError(f"{path}: the reward of {row['id']} is not what its verdicts give.")
      paid += bool(any(said) and row["weights"]["information_think"])
  labels = labeller.judge(pairs)
  if not paid:
    raise ValueError(f"{run}: no episode was paid by a verdict.")
  return report("served", distil.labelled([Example("", claim, ()) for _, claim in pairs], labels), verdicts)


if __name__ == "__main__":
  app.run(main)
