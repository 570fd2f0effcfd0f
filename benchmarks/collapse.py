"""Provokes collapse in the made-up world and shows what prevents it: python benchmarks/collapse.py [--docs]

Every run starts from one of WARM warm starts of the quickstart. PROVOKED takes sixteen optimiser steps on each batch of
16 replies, pays for F1, and one reply in five gets a wrong reward; every arm but "none" adds a guard. A finished run is
not repeated, and a killed one begins again. --docs puts what the runs in --out show into docs/collapse.jsonl, which
keeps what other runs showed, and prints docs/steady.md from it and docs/mismatch.jsonl.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import random
import shutil
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import machines
import mismatch
from absl import logging

from ragrl_jax import config as config_lib
from ragrl_jax.jobs import evaluate, train
from ragrl_jax.recipes.search_r1 import quickstart
from ragrl_jax.run import detectors, rollback, warning_signs
from ragrl_jax.run.prepared import prepare
from ragrl_jax.store import compile_cache, jsonl, malloc

ROOT = pathlib.Path(__file__).parents[1]
RECORD, PAGE = ROOT / "docs" / "collapse.jsonl", ROOT / "docs" / "steady.md"

WARM = 2  # warm starts and worlds, which the seeds take in turn; a seed has its own questions, samples and noise
STEPS, EVERY, HELD_OUT = 16, 2, 100
NOISE = 0.2  # share of the replies whose reward is 1 minus what it should be
# EM is the mean of WINDOW neighbouring evaluations, on HELD_OUT questions each. It falls at the first step after which
# it stays FALL and more below its best before. A run that ends COLLAPSE and more below its best has collapsed.
WINDOW, FALL, COLLAPSE = 2, 0.05, 0.2
LEAD, NEAR = 0.2, 0.02  # an alarm in time: share of the steps before EM falls; EM as good as that of the best arm
PROVOKED = dict(
  rollout=dict(prompts_per_step=4, group_size=4, lanes=32, rows=64),
  loss=dict(epochs=4, minibatches=4),
  learner=dict(micro_rows=1, row_lengths=(288,), logprob_chunk=288),
  optimizer=dict(learning_rate=2.5e-4),
)
KL = dict(kl="k3+", kl_coef=0.1)
ROLLBACK = dict(guard=dict(rollback=1, most_rollbacks=5), checkpoint=dict(every=1))
GUARDS = {
  "none": {},
  "rollback": ROLLBACK,
  "LLDS": dict(loss=dict(llds_coef=0.2)),
  "LLDS strong": dict(loss=dict(llds_coef=2.0)),
  "sequence mask": dict(loss=dict(sequence_low=0.98, sequence_high=1.02)),
  "IcePop": dict(loss=dict(importance_floor=0.5, importance_cap=5.0)),
  "DPPO": dict(loss=dict(max_fall=0.2, max_rise=0.2, clip_low=1e6, clip_high=1e6)),
  "CISPO": dict(loss=dict(surrogate="cispo", clip_low=1.0, clip_high=0.28)),
  "corrected KL": dict(loss=dict(KL, kl_corrected=True)),
  "penalties": dict(switches=dict(no_search_penalty=0.1, no_answer_penalty=0.1)),
  "a fifth of the rate": dict(optimizer=dict(learning_rate=5e-5)),
  "a fifth of the rate, LLDS": dict(optimizer=dict(learning_rate=5e-5), loss=dict(llds_coef=2.0)),
  "LLDS, DPPO, KL": dict(loss=dict(KL, kl_corrected=True, llds_coef=0.2, max_fall=0.2, max_rise=0.2)),
  "rollback, LLDS, sequence mask": dict(ROLLBACK, loss=dict(llds_coef=2.0, sequence_low=0.98, sequence_high=1.02)),
  "LLDS, sequence mask, KL": dict(
    loss=dict(KL, kl_corrected=True, llds_coef=2.0, sequence_low=0.98, sequence_high=1.02)
  ),
}
# The same for twice as many steps: what an arm loses by undone steps and halved rates, it may win back.
LONGER = 32
LONG = {
  "rollback, 32 steps": ROLLBACK,
  "rollback, LLDS, penalties, 32 steps": dict(GUARDS["penalties"], **ROLLBACK, loss=dict(llds_coef=2.0)),
  "a fifth of the rate, LLDS, 32 steps": GUARDS["a fifth of the rate, LLDS"],
}
# The same at 135M parameters: the fine-tuned model and the questions of benchmarks/real_model/run.py's ARENA run.
REAL_STEPS, REAL_HELD_OUT, REAL_RATE = 8, 64, 1e-4
REAL = {"135M, " + arm: GUARDS[arm] for arm in ("none", "rollback")}
# Of the detectors' recorded runs, those whose alarms are right, and those that are among the runs here.
NOT_CALM = ("ARENA on a GPU, continued", "LEAR", "quickstart, collapsed", "quickstart, 16 replies a step")
SLOW = ("a fifth of the rate", "a fifth of the rate, LLDS")
FAR = "far_update"
# Warnings that a step teaches nothing. They are no alarm: a run whose answers are all right gives them too.
SILENT = {"no_groups", "few_groups", "no_signal", "little_signal", "few_spreads", "nothing_scored", "little_trained"}


def main():
  cli = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  cli.add_argument("--out", type=pathlib.Path, default="out/collapse", help="folder of the warm starts and of the runs")
  cli.add_argument("--arms", nargs="*", default=[*GUARDS, *LONG], help="which arms; by default all")
  cli.add_argument("--seeds", nargs="*", default=range(5), help="which seeds")
  cli.add_argument("--docs", action="store_true", help="record what the runs show, and print the page")
  cli.add_argument("--real", type=pathlib.Path, help="folder of benchmarks/real_model/run.py, for arms of REAL")
  cli.add_argument("--healthy", type=pathlib.Path, nargs="*", default=[], help="folders of runs that count as healthy")
  cli.add_argument("--one", default="", help="ARM/SEED: this run only, in this process; ARM may be warm")
  args = cli.parse_args()
  logging.set_verbosity(logging.WARNING)
  out = args.out.resolve()
  if args.one:
    arm, seed = args.one.split("/")
    if arm == "warm":
      warm_up(out, int(seed))
    else:
      config = real(args.real.resolve(), arm) if arm in REAL else made_up(out, arm, int(seed))
      run(config, arm, out, int(seed))
    return
  if not args.docs:
    play(out, "warm", range(WARM))
    for arm in args.arms:
      play(out, arm, args.seeds)
  rows = merged(recorded(out) + healthy() + healthy_in(args.healthy))
  print(text := page(rows))
  if args.docs:
    RECORD.write_text("".join(json.dumps(row) + "\n" for row in rows))
    PAGE.write_text(text)


def play(out: pathlib.Path, arm: str, seeds: Iterable[int | str]) -> None:
  """Runs the arm for each seed that has no result yet, one after the other."""
  for seed in seeds:
    if not (folder(out, arm, seed) / "result.json").is_file():
      command = [sys.executable, __file__, f"--one={arm}/{seed}", f"--out={out}"]
      machines.run([machines.Job(machines.FIRST, command, folder(out, arm, seed).with_suffix(".log"))], cwd=ROOT)


def folder(out: pathlib.Path, arm: str, seed: int | str) -> pathlib.Path:
  return out / f"{arm.lower().replace(' ', '_')}_{seed}"


def warm_up(out: pathlib.Path, seed: int) -> None:
  """The quickstart's world and warm start of this seed."""
  begin(warm := folder(out, "warm", seed))
  quickstart.make_world(warm / "world", seed)
  config = config_lib.load(ROOT / "configs" / "quickstart.py", "sft")
  quickstart.use_world(config, warm / "world", seed)
  (warm / "result.json").write_text(json.dumps(quickstart.warm_start(config, warm / "sft")))


def begin(workdir: pathlib.Path) -> None:
  malloc.limit()
  compile_cache.keep()
  shutil.rmtree(workdir, ignore_errors=True)


def made_up(out: pathlib.Path, arm: str, seed: int) -> Any:
  """The config of an arm in the quickstart's world."""
  warm = folder(out, "warm", seed % WARM)
  config = config_lib.load(ROOT / "configs" / "quickstart.py")
  quickstart.use_world(config, warm / "world", seed)
  config.model.path = str(warm / "sft" / "model")
  config.steps = LONGER if arm in LONG else STEPS
  config.evaluate.update(every=EVERY, examples=HELD_OUT)
  for part in (PROVOKED, dict(switches=dict(match="f1")), (GUARDS | LONG)[arm]):
    config.update(part)
  return config


def real(folder: pathlib.Path, arm: str) -> Any:
  """The config of an arm of REAL: ARENA's rules, F1 in the place of its exact match."""
  config = config_lib.load(ROOT / "configs" / "arena.py", "f1")
  config.model.update(path=str(folder / "arena" / "seed_0" / "sft" / "model"), dtype="float32", remat=False)
  config.data.update(train=str(folder / "questions" / "train.jsonl.gz"))
  config.data.update(evaluate=str(folder / "questions" / "development.jsonl.gz"), own_passages=True)
  config.switches.instructions = "short"
  config.rollout.update(context=448, chunk=16, page=64, prefill=256, max_new_tokens=96, temperature=1.0)
  config.loss.update(kl="none", kl_coef=0.0)
  config.steps = REAL_STEPS
  config.evaluate.update(every=EVERY, examples=REAL_HELD_OUT)
  sizes = dict(optimizer=dict(schedule="constant", warmup_steps=0, learning_rate=REAL_RATE))
  for part in (PROVOKED, sizes, dict(learner=dict(row_lengths=(), logprob_chunk=1024)), REAL[arm]):
    config.update(part)
  return config


def run(config: Any, arm: str, out: pathlib.Path, seed: int) -> None:
  """Trains one arm; its folder keeps the episodes and the metrics."""
  begin(workdir := folder(out, arm, seed))
  config.seed, config.log.tensorboard, config.checkpoint.every = seed, False, config.steps
  config.checkpoint.update((GUARDS | LONG | REAL)[arm].get("checkpoint", {}))
  prepared, began = prepare(config), time.process_time()
  score = functools.partial(noisy, prepared.recipe.score, seed)
  prepared = dataclasses.replace(prepared, recipe=dataclasses.replace(prepared.recipe, score=score))
  shown = ("evaluation/em", "outcome", "entropy", "old_kl", rollback.TO)
  try:
    for row in train.train(prepared, workdir, evaluate=evaluate.evaluator(config)):
      print(row["step"], {name: row.get(name) for name in shown}, flush=True)
  except rollback.Collapsed as why:  # after all returns: the last EM counts
    print(why)
  for name in ("checkpoints", "model"):
    shutil.rmtree(workdir / name, ignore_errors=True)
  made = dict(arm=arm, seed=seed, commit=mismatch.commit(), seconds=round(time.process_time() - began))
  (workdir / "result.json").write_text(json.dumps(made))


def noisy(score, seed: int, example, episode) -> dict[str, float | None]:
  """The terms of the reward, with a wrong answer term for a share NOISE of the replies."""
  terms = score(example, episode)
  wrong = random.Random(f"{seed}/{example.id}/{episode.model_text}").random() < NOISE
  answer = "answer" if "answer" in terms else "accuracy"
  return terms | {answer: 1.0 - terms[answer]} if wrong else terms


def recorded(out: pathlib.Path) -> list[dict[str, Any]]:
  """What each finished run in the folder shows."""
  found = []
  for path in sorted(out.glob("*/result.json")):
    if not path.parent.name.startswith("warm_"):
      rows = list(jsonl.read(path.parent / "metrics.jsonl"))
      em = [[row["step"], round(row["evaluation/em"], 3)] for row in rows if "evaluation/em" in row]
      found.append(json.loads(path.read_text()) | dict(em=em, alarms=alarms(rows)))
  return found


def healthy() -> list[dict[str, Any]]:
  """The alarms of the healthy runs that the detectors' tests keep."""
  runs = json.loads((ROOT / "tests" / "golden" / "detected_runs.json").read_text())
  rows = lambda found: [dict(zip(found, values), step=step) for step, values in enumerate(zip(*found.values()), 1)]
  return [
    dict(arm="healthy", seed=name, alarms=alarms(rows(runs[name]))) for name in runs if not name.startswith(NOT_CALM)
  ]


def healthy_in(folders: Iterable[pathlib.Path]) -> list[dict[str, Any]]:
  """The alarms of these RL runs (of a quickstart, or of benchmarks/teacher.py), without those that collapsed."""
  found = []
  for folder in folders:
    rows = list(jsonl.read(folder.resolve() / "metrics.jsonl"))
    em = [[row["step"], row["evaluation/em"]] for row in rows if "evaluation/em" in row]
    if not collapsed(em):
      found.append(dict(arm="healthy", seed="/".join(folder.resolve().parts[-2:]), alarms=alarms(rows)))
  return found


def alarms(rows) -> dict[str, int]:
  """Name of a detector's metric or of a warning → first step at which it is said."""
  watch, found = detectors.Watch(), {}
  for row in filter(lambda row: row["step"], rows):
    names = [alarm.metric for alarm in watch.see(row)] + [*warning_signs.warnings(row, first=row["step"] == 1)]
    for name in names:
      if name not in SILENT:
        found.setdefault(name, row["step"])
  return found


def merged(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
  """These rows, and those of the record about other runs."""
  known = jsonl.read(RECORD) if RECORD.is_file() else []
  by_run = {(row["arm"], row["seed"]): dict(row) for row in [*known, *rows]}
  order = lambda row: ([*GUARDS, *LONG, *REAL, "healthy"].index(row["arm"]), str(row["seed"]))
  return sorted(by_run.values(), key=order)


def smooth(em: Sequence[Sequence[float]]) -> list[tuple[int, float]]:
  """(step, mean EM of the WINDOW evaluations up to it)."""
  return [
    (em[at][0], statistics.mean(value for _, value in em[at + 1 - WINDOW : at + 1]))
    for at in range(WINDOW - 1, len(em))
  ]


def collapsed(em: Sequence[Sequence[float]]) -> bool:
  means = [value for _, value in smooth(em)]
  return means[-1] <= max(means) - COLLAPSE


def falls(em: Sequence[Sequence[float]]) -> int | None:
  """The first step after which EM stays FALL and more below its best before; None if there is no such step."""
  curve = smooth(em)
  for at in range(1, len(curve)):
    best = max(value for _, value in curve[:at])
    if all(value <= best - FALL for _, value in curve[at:]):
      return curve[at][0]
  return None


def page(rows: Sequence[Mapping[str, Any]]) -> str:
  """docs/steady.md."""
  by_arm: dict[str, list[Mapping[str, Any]]] = {}
  for row in rows:
    by_arm.setdefault(row["arm"], []).append(row)
  calm = by_arm.get("healthy", [])
  at_135m = [row for row in rows if row["arm"] in REAL]
  early, lost = lead(by_arm.get("none", []))
  saved = [row for arm in SLOW for row in by_arm.get(arm, ()) if not collapsed(row["em"])]
  return TEXT.format(
    steps=STEPS,
    held_out=HELD_OUT,
    noise=NOISE,
    rate=PROVOKED["optimizer"]["learning_rate"],
    fall=FALL,
    collapse=COLLAPSE,
    lead=LEAD,
    near=NEAR,
    guards=guards({arm: by_arm[arm] for arm in GUARDS if arm in by_arm}),
    longer=LONGER,
    long=guards({arm: by_arm[arm] for arm in LONG if arm in by_arm}),
    missing=", ".join(
      f"{arm} ({len(by_arm.get(arm, ()))} of 5)" for arm in (*GUARDS, *LONG) if len(by_arm.get(arm, ())) < 5
    )
    or "none",
    alarms="\n".join(alarm_row(row["seed"], row) for row in by_arm.get("none", [])),
    real="\n".join(alarm_row(row["arm"], row) for row in at_135m),
    real_steps=REAL_STEPS,
    real_rate=REAL_RATE,
    real_held_out=REAL_HELD_OUT,
    early=early,
    later=lead(by_arm.get("none", []), without=FAR)[0],
    saved=len(saved),
    far=sum(FAR in row["alarms"] for row in saved),
    told=sum(bool(row["alarms"].keys() - {FAR}) for row in saved),
    lost=lost,
    false=sum(bool(row["alarms"]) for row in calm),
    calm=len(calm),
    which="; ".join(f"{row['seed']}: {', '.join(row['alarms'])}" for row in calm if row["alarms"]) or "none",
    commits=", ".join(sorted({row["commit"] for row in rows if "commit" in row})),
    mismatch=mismatch.tables(),
  )


def guards(by_arm) -> str:
  """A table of arms that have as many steps."""
  end = {arm: statistics.mean(smooth(row["em"])[-1][1] for row in runs) for arm, runs in by_arm.items()}
  return "\n".join([GUARDS_HEAD, *(guard_row(arm, runs, end) for arm, runs in by_arm.items())])


def guard_row(arm: str, runs, end: Mapping[str, float]) -> str:
  """A row of the table of guards."""
  last, best = end[arm], statistics.mean(max(em for _, em in smooth(row["em"])) for row in runs)
  least = min(smooth(row["em"])[-1][1] for row in runs)
  lost = sum(collapsed(row["em"]) for row in runs)
  alone = (
    "–" if arm == "none" else "no" if lost or last < max(end.values()) - NEAR else "yes" if len(runs) > 4 else "open"
  )
  settings = ", ".join(
    f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
    for part in (GUARDS | LONG)[arm].values()
    for name, value in part.items()
  )
  return f"| {arm} | {settings} | {lost} of {len(runs)} | {best:.3f} | {last:.3f} | {least:.3f} | {alone} |"


def lead(runs, *, without: str = "") -> tuple[int, int]:
  """(collapsed runs with an alarm in time that has another name, collapsed runs)."""
  lost = [row for row in runs if collapsed(row["em"])]
  first = lambda row: min((step for name, step in row["alarms"].items() if name != without), default=STEPS)
  return sum(first(row) <= falls(row["em"]) * (1 - LEAD) for row in lost), len(lost)


def alarm_row(name: str, row) -> str:
  """A row of the table of alarms."""
  said = ", ".join(f"{name} ({step})" for name, step in sorted(row["alarms"].items(), key=lambda one: one[1]))
  curve = " ".join(f"{em:.2f}" for _, em in row["em"])
  return f"| {name} | {curve} | {falls(row['em']) or '–'} | {said or 'none'} |"


GUARDS_HEAD = """| guard | settings | collapsed | best EM, mean | EM at the end, mean | least | suffices alone |
|---|---|---|---|---|---|---|"""
TEXT = """# Runs that collapse, and what prevents it

`python benchmarks/collapse.py --docs` wrote this page from docs/collapse.jsonl and docs/mismatch.jsonl (runs of commit
{commits}).

## A provoked collapse

The quickstart's model, and two of its worlds and warm starts, which the seeds take in turn. A run has {steps} steps of
16 replies. Each batch is used for sixteen optimiser steps at a rate of {rate}, the reward is F1, and {noise:.0%} of the
replies get 1 minus their reward. EM is measured on {held_out} held-out questions every two steps, greedy, and smoothed
over two measurements. A run has collapsed if its last EM is {collapse} or more below its best. A guard suffices alone
if no run collapses with it and its mean EM at the end is within {near} of the best row's.

{guards}

- No guard of the loss that masks, bounds or pays tokens prevents the collapse at this rate. What masks leave out stops
  pulling, but the steps that Adam takes for the rest are as large as before. A corrected KL to the start keeps four
  runs of five, and LLDS with ten times its authors' weight two, both at the price of what they could have learned.
- LLDS, sequence mask and KL together prevent it in four seeds of five, at the same price.
- `guard.rollback=1`, with a checkpoint a step, prevents it in every seed at the provoked rate: it returns two or three
  times in sixteen steps, and the halved rates do the rest. It ends higher than any guard of the loss, and below a run
  whose rate was right from the start, since undone steps are lost. LLDS and a mask beside it do not help.
- IcePop compares the learner with the sampler before the updates. Where both have the same weights and arithmetic it
  leaves nothing out. Nor do the penalties help: hardly a reply withholds a search or an answer before EM has fallen.
- A fifth of the rate prevents the collapse, with and without LLDS.

The same for {longer} steps:

{long}

- Twice the steps do not bring a rollback alone nearer to the best: in the harder of the two worlds (seeds 0, 2 and 4)
  EM falls slowly at an eighth of the rate and less; with seed 4 a quarter of the questions get no answer any more,
  which F1 without penalties pays for. Detectors tell such a fall after half of it, so the weights returned to are no
  better.
- With LLDS, and penalties for searches and answers that are missing, a rollback at the provoked rate holds in every
  seed, and ends within {near} of the best row: it returns once or twice and learns on at a half or a quarter of the
  rate. It learns slowly in seed 2. The best of 16 steps above is higher still.

Runs that are missing: {missing}.

The same once at 135M parameters: ARENA's rules from the fine-tuned model of [a real run](real_model.md), with F1 in
the place of exact match, {real_steps} steps of 16 replies at a rate of {real_rate}; EM on {real_held_out} questions.

| run | EM | falls at | alarms |
|---|---|---|---|
{real}

`guard.rollback=1` returned four times there: the run kept the EM that it began with, and learned nothing.

## Alarms

The provoked runs without a guard: EM at steps 0, 2, 4, …; the first step after which EM stays {fall} below its best;
what was said, with its first step.

| seed | EM | falls at | alarms |
|---|---|---|---|
{alarms}

- An alarm came at least {lead:.0%} of the steps before EM fell in {early} of {lost} collapsed runs. It is `far_update`,
  a warning about one step, whose updates moved the policy by more than .01 nats a token (`old_kl`). Detectors alone,
  which a rollback follows, came in time in {later} of {lost}. Both bounds were set when seeds 0 and 1 had been seen.
- False alarms: {false} of {calm} healthy runs ({which}); one in twenty was aimed at. 23 of them are those of
  [teachers](teacher.md), with 8 replies a step. A rise or fall of less than three standard errors (`noise/…`), in a
  step or in the mean of four, counts as chance; without this six of the 23 had an alarm, since one or two replies of
  eight had a rare token. The rule was chosen on these runs, those above and two rollbacks; `noise/…` of runs that are
  older than it was computed from their logged episodes.
- Checked on other runs: of seven more of teachers, with 16 replies a step, two had an alarm without the rule and none
  has one with it. Of 75 runs without rollbacks, those above among them, all 50 that collapsed have a detector's alarm,
  33 of them in time, both with and without it; of the 12 whose EM never fell, three instead of four.
- `old_kl` is 0 with one update a batch, at most .0014 in the 21 runs of [seven algorithms](algorithms.md), and .0039 in
  a quickstart with four.
- At a fifth of the rate {saved} runs held: `far_update` was said in {far} of them, and a detector spoke in {told}.
  Sixteen updates a batch are far even then.

{mismatch}"""


if __name__ == "__main__":
  main()
