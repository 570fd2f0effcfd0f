"""Shows what a teacher, and credit by information gain, do in the made-up world: python benchmarks/teacher.py [--docs]

Every run starts from the warm start of a quickstart, or from its 125th or 150th step. Its teacher is the policy that
this quickstart ended with, or a model of four times the parameters. A finished run is not repeated, and a killed one
begins again.
--docs puts what the runs in --out show into docs/teacher.jsonl, which keeps what other runs showed, and prints
docs/teacher.md from it. --cost measures what credit by information gain adds to a step with four searches.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import shutil
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import collapse
import machines
import mismatch
from absl import logging
from real_model import self_teaching

from ragrl_jax import config as config_lib, recipes
from ragrl_jax.core.metrics import stats
from ragrl_jax.data import readers, writers
from ragrl_jax.jobs import evaluate, train
from ragrl_jax.prompting import passages
from ragrl_jax.recipes.search_r1 import quickstart, recipe as search_r1
from ragrl_jax.retrieval import corpus
from ragrl_jax.run.prepared import prepare
from ragrl_jax.store import jsonl

ROOT = pathlib.Path(__file__).parents[1]
RECORD, PAGE = ROOT / "docs" / "teacher.jsonl", ROOT / "docs" / "teacher.md"

PROMPTS, GROUP, STEPS, EVERY, HELD_OUT = 2, 4, 16, 2, 100
GOAL = 0.9  # EM
LARGE = dict(d_model=256, num_layers=5, num_heads=8, num_kv_heads=8, d_ff=688)  # 4.1M parameters; the student has 0.9M
LARGE_STEPS = 4  # of RL, 256 episodes each
RATE = 3e-4
COST_STEPS = 6
SIZES = dict(
  rollout=dict(prompts_per_step=PROMPTS, group_size=GROUP, lanes=32, rows=32),
  learner=dict(micro_rows=2),
  optimizer=dict(learning_rate=RATE, warmup_steps=2),
)
# OUT is the folder of the runs.
TEACHER = dict(path="OUT/quickstart/model", kind="reverse", alone=True)
LONG = dict(steps=24, rollout=dict(prompts_per_step=4), learner=dict(micro_rows=4))
EARLIER = dict(weak=125, middle=150)  # starts before the warm start's end, after so many steps of fine-tuning
LARGER = "teacher, 4.1M parameters"
WARM_ARMS: dict[str, dict[str, Any]] = {
  "GRPO": {},
  "teacher": dict(loss=dict(teacher=TEACHER)),
  LARGER: dict(loss=dict(teacher=TEACHER | dict(path="OUT/large_0/model"))),
  "opsd": dict(loss=dict(teacher=recipes.TEACHERS["opsd"])),
  "information": dict(advantage=dict(credit="information")),
  "information, random": dict(advantage=dict(credit="information", gain_over="random")),
}
EARLIER_ARMS: dict[str, dict[str, Any]] = {
  f"{start}, {arm}": dict(model=dict(path=f"OUT/{start}_0/model")) | LONG | WARM_ARMS[arm]
  for start, arm in (("weak", "GRPO"), ("weak", "teacher"), ("middle", "GRPO"), ("middle", LARGER))
}
ARMS = WARM_ARMS | EARLIER_ARMS


def main():
  cli = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  cli.add_argument("--out", type=pathlib.Path, default="out/teacher", help="folder of the warm starts and of the runs")
  cli.add_argument("--arms", nargs="*", default=[*ARMS], help="which arms; by default all")
  cli.add_argument("--seeds", nargs="*", default=range(5), help="which seeds")
  cli.add_argument("--docs", action="store_true", help="record what the runs show, and print the page")
  cli.add_argument("--cost", action="store_true", help="measure, record and print what gains cost")
  cli.add_argument(
    "--one", default="", help="ARM/SEED: this run only, in this process; ARM may be weak, middle or large"
  )
  args = cli.parse_args()
  logging.set_verbosity(logging.WARNING)
  out = args.out.resolve()
  if args.one:
    arm, seed = args.one.split("/")
    {"large": large, **dict.fromkeys(EARLIER, functools.partial(earlier, arm))}.get(arm, functools.partial(run, arm))(
      out, int(seed)
    )
    return
  if args.cost:
    merge([dict(arm="cost", seed=0, commit=mismatch.commit(), seconds=cost(out))])
  elif args.docs:
    merge(recorded(out))
  else:
    play(out / "quickstart", ["-m", "ragrl_jax", "quickstart", f"--workdir={out / 'quickstart'}"], "summary.json")
    first = [(made, 0) for made in (*EARLIER, "large")]
    for arm, seed in first + [(arm, seed) for arm in args.arms for seed in args.seeds]:
      play(folder(out, arm, seed), [__file__, f"--one={arm}/{seed}", f"--out={out}"], "result.json")
    return
  PAGE.write_text(text := page([*jsonl.read(RECORD)]))
  print(text)


def play(workdir: pathlib.Path, command: Sequence[Any], result: str) -> None:
  """Runs the command of Python, unless the folder has its result."""
  if not (workdir / result).is_file():
    machines.run([machines.Job(machines.FIRST, [sys.executable, *command], workdir.with_suffix(".log"))], cwd=ROOT)


def folder(out: pathlib.Path, arm: str, seed: int | str) -> pathlib.Path:
  return collapse.folder(out, arm.replace(".", "_"), seed)


def earlier(start: str, out: pathlib.Path, seed: int) -> None:
  """The first steps of the quickstart's warm start."""
  collapse.begin(workdir := folder(out, start, seed))
  fine_tune(out, workdir, steps=EARLIER[start])
  (workdir / "result.json").write_text("{}")


def large(out: pathlib.Path, seed: int) -> None:
  """A teacher of 4.1M parameters: the quickstart's two stages at LARGE, the second one shorter."""
  collapse.begin(workdir := folder(out, "large", seed))
  began = time.process_time()
  fine_tune(out, workdir / "sft", model=dict(shape=LARGE))
  config = started(out, seed)
  config.model.path, config.steps = str(workdir / "sft" / "model"), LARGE_STEPS
  config.evaluate.update(every=LARGE_STEPS, examples=0)
  config.loss.minibatches = 2
  config.optimizer.update(learning_rate=2e-4, warmup_steps=2)
  finish(config, workdir, began, arm="large", seed=seed)


def fine_tune(out: pathlib.Path, workdir: pathlib.Path, **changes) -> None:
  config = config_lib.load(ROOT / "configs" / "quickstart.py", "sft")
  quickstart.use_world(config, out / "quickstart" / "world", 0)
  config.update(changes)
  quickstart.warm_start(config, workdir)


def run(arm: str, out: pathlib.Path, seed: int) -> None:
  """Trains one arm; its folder keeps the episodes and the metrics."""
  collapse.begin(workdir := folder(out, arm, seed))
  config = started(out, seed)
  config.data.train = with_passages(out / "quickstart" / "world")
  config.steps = STEPS
  config.evaluate.update(every=EVERY, examples=HELD_OUT)
  for part in (SIZES, ARMS[arm]):
    config.update(part)
  for section in (config.model, config.loss.teacher):
    section.path = section.path.replace("OUT", str(out))
  finish(config, workdir, time.process_time(), arm=arm, seed=seed)


def started(out: pathlib.Path, seed: int):
  """The quickstart's config for RL, with its world and its warm start."""
  config = config_lib.load(ROOT / "configs" / "quickstart.py")
  quickstart.use_world(config, out / "quickstart" / "world", seed)
  config.model.path = str(out / "quickstart" / "warm" / "model")
  config.log.tensorboard = False
  return config


def finish(config, workdir: pathlib.Path, began: float, **result) -> None:
  """Trains, and keeps the result and what the policy was evaluated at."""
  config.log.tensorboard = False
  config.checkpoint.every = config.steps
  for row in train.train(config, workdir, evaluate=evaluate.evaluator(config)):
    print(
      row["step"],
      {name: row.get(name) for name in ("evaluation/em", "outcome", "searches", "seconds/step")},
      flush=True,
    )
  shutil.rmtree(workdir / "checkpoints", ignore_errors=True)
  episodes = config.rollout.prompts_per_step * config.rollout.group_size
  result |= dict(commit=mismatch.commit(), episodes=episodes, seconds=round(time.process_time() - began))
  (workdir / "result.json").write_text(json.dumps(result))


def with_passages(world: pathlib.Path) -> str:
  """The training questions with their supporting passages, which the prompt does not show."""
  path = world / "train_told.jsonl.gz"
  if not path.is_file():
    known = {passage.id: passage for passage in corpus.read_passages(world / "corpus.jsonl.gz")}
    told = []
    for example in readers.read_examples(world / "train.jsonl.gz"):
      golds = tuple(known[name] for name in example.meta["gold_ids"])
      told.append(dataclasses.replace(example, passages=golds, supporting=tuple(range(len(golds)))))
    writers.write_examples(path, told)
  return str(path)


def recorded(out: pathlib.Path) -> list[dict[str, Any]]:
  """What each finished run in the folder shows: EM by step."""
  result = []
  for path in sorted(out.glob("*/result.json")):
    if "arm" in (row := json.loads(path.read_text())):  # not a warm start
      rows = list(jsonl.read(path.parent / "metrics.jsonl"))
      row["em"] = [[one["step"], round(one["evaluation/em"], 3)] for one in rows if "evaluation/em" in one]
      result.append(row)
  return result


def merge(rows: Sequence[Mapping[str, Any]]) -> None:
  """Puts the rows into the record, which keeps those of other runs."""
  known = jsonl.read(RECORD) if RECORD.is_file() else []
  by_run = {(row["arm"], row["seed"]): dict(row) for row in [*known, *rows]}
  order = lambda row: ([*ARMS, "large", "cost"].index(row["arm"]), row["seed"])
  RECORD.write_text("".join(json.dumps(row) + "\n" for row in sorted(by_run.values(), key=order)))


def cost(out: pathlib.Path) -> dict[str, list[list[float]]]:
  """Seconds of the quickstart's steps with four searches each: by credit [of the processor, on the clock] per step."""
  runs, elapsed = {}, {}
  for credit in ("episode", "information"):
    workdir = out / f"cost_{credit}"
    collapse.begin(workdir)
    config = started(out, 0)
    config.steps = config.checkpoint.every = COST_STEPS
    config.rollout.context, config.advantage.credit = 256, credit
    prepared = prepare(config)
    recipe = dataclasses.replace(prepared.recipe, play=four_searches(prepared.recipe))
    runs[credit] = train.train(dataclasses.replace(prepared, recipe=recipe), workdir)
    elapsed[credit] = []
  for _ in range(COST_STEPS):
    for credit, steps in runs.items():
      began = time.process_time()
      row = next(steps)
      elapsed[credit].append([round(time.process_time() - began, 3), round(row["seconds/step"], 3)])
      print(credit, elapsed[credit][-1], {name: row.get(name) for name in ("searches", "information_gain")}, flush=True)
  return {credit: seconds[COST_STEPS // 3 :] for credit, seconds in elapsed.items()}  # the first ones compile


def four_searches(recipe):
  """The recipe's episode with four searches, for the question's facts in turn, whatever the policy writes."""

  async def play(example, policy, tools):
    conversation, hops = policy.start(recipe.prompt.messages(example)), example.meta["decomposition"]
    for turn in range(4):
      await conversation.generate(stop=recipe.stops)
      query = search_r1.write_query(hops[turn % len(hops)])
      results = await tools.search(query)
      conversation.observe(passages.block(results), query=query, found=results)
    await conversation.generate(stop=recipe.stops)
    return conversation.end()

  return play


def page(rows: Sequence[Mapping[str, Any]]) -> str:
  """docs/teacher.md."""
  of = lambda arm: {row["seed"]: row for row in rows if row["arm"] == arm}
  runs = {arm: found for arm in ARMS if (found := of(arm))}
  sooner = lambda arm, base: halved(runs.get(arm, {}), runs.get(base, {}))
  table = lambda arms, base: "\n".join(arm_row(arm, runs[arm], runs.get(base, {})) for arm in arms if arm in runs)
  costs = of("cost").get(0, {}).get("seconds")
  return TEXT.format(
    episodes=PROMPTS * GROUP,
    steps=STEPS,
    held_out=HELD_OUT,
    every=EVERY,
    rate=RATE,
    goal=GOAL,
    long=LONG,
    long_episodes=LONG["rollout"]["prompts_per_step"] * GROUP,
    earlier=EARLIER,
    head="| | EM: start | half | end | episodes to .9 | learned, over GRPO | which is | seeds |\n" + "|---" * 8 + "|",
    warm=table(WARM_ARMS, "GRPO"),
    sooner=sooner("teacher", "GRPO"),
    larger=sooner(LARGER, "GRPO"),
    from_earlier="\n".join(
      table([arm for arm in EARLIER_ARMS if arm.startswith(start)], f"{start}, GRPO") for start in EARLIER
    ),
    weak_sooner=sooner("weak, teacher", "weak, GRPO"),
    middle_larger=sooner(f"middle, {LARGER}", "middle, GRPO"),
    missing=", ".join(f"{arm} ({len(runs.get(arm, ()))} of 5)" for arm in ARMS if len(runs.get(arm, ())) < 5) or "none",
    real=self_teaching.section() or "Not run yet: `python benchmarks/real_model/self_teaching.py`.",
    cost="an unmeasured factor" if costs is None else cost_text(costs),
    curves="\n".join(curve_row(arm, seed, row) for arm, found in runs.items() for seed, row in found.items()),
    commits=", ".join(sorted({row["commit"] for row in rows})),
  )


def halved(runs: Mapping[int, Any], base: Mapping[int, Any]) -> str:
  """In how many of the seeds that both have run it reaches GOAL in at most half of the base's episodes."""
  pairs = [(reached(runs[seed]), reached(base[seed])) for seed in runs.keys() & base.keys()]
  return f"{sum(a is not None and (b is None or 2 * a <= b) for a, b in pairs)} of {len(pairs)}"


def reached(row: Mapping[str, Any]) -> int | None:
  """Episodes after which EM is GOAL, at this evaluation and the next one; None if it never is."""
  steps = [step for (step, now), (_, after) in zip(row["em"], row["em"][1:]) if min(now, after) >= GOAL]
  return steps[0] * row["episodes"] if steps else None


def learned(row: Mapping[str, Any]) -> float:
  """Mean EM over the evaluations after the start: high if the run learns soon, and much."""
  return statistics.mean(em for _, em in row["em"][1:])


def arm_row(arm: str, runs: Mapping[int, Any], base: Mapping[int, Any]) -> str:
  """A row of the table of arms."""
  em = [
    statistics.mean(row["em"][at][1] for row in runs.values())
    for at in (0, len(next(iter(runs.values()))["em"]) // 2, -1)
  ]
  needed = ", ".join("–" if (n := reached(row)) is None else str(n) for row in runs.values())
  gaps = [learned(runs[seed]) - learned(base[seed]) for seed in runs.keys() & base.keys()]
  gap = verdict = "–"
  if runs != base and gaps:
    gap, verdict = f"{statistics.mean(gaps):+.3f}", "undecided"
    if len(gaps) > 1:
      low, high = stats.t_interval(gaps)
      gap, verdict = f"{gap} ({low:+.3f} to {high:+.3f})", "undecided"
      if len(gaps) > 4 and not low <= 0 <= high:  # an interval of a few runs can be narrow by chance
        verdict = "better" if low > 0 else "worse"
  return f"| {arm} | {' | '.join(f'{x:.3f}' for x in em)} | {needed} | {gap} | {verdict} | {len(runs)} |"


def curve_row(arm: str, seed: int, row: Mapping[str, Any]) -> str:
  return f"| {arm} | {seed} | {' '.join(f'{em:.2f}' for _, em in row['em'])} |"


def cost_text(costs: Mapping[str, Sequence[Sequence[float]]]) -> str:
  """The ratio of the medians."""
  ratio = lambda n: (
    statistics.median(x[n] for x in costs["information"]) / statistics.median(x[n] for x in costs["episode"])
  )
  return f"{ratio(0):.2f} times the processor's seconds and {ratio(1):.2f} times those on the clock"


TEXT = """# Teachers and credit by information gain: what they did

`python benchmarks/teacher.py --docs` wrote this page from docs/teacher.jsonl (runs of commit {commits}). What the
settings mean: [a teacher](howto/reward.md#a-teacher), [information gain](howto/reward.md#credit-by-information-gain).

## In the made-up world, from a good warm start

The world and the warm start of `ragrl quickstart`, a model of 0.9M parameters. A run has {steps} steps of {episodes}
episodes at a rate of {rate}, the same for all; nothing was tuned. Seeds have their own questions and samples. The
reward is exact match. EM is measured on {held_out} held-out questions every {every} steps, greedy. `teacher` is the
policy that the quickstart ended with (EM .99), of the student's size: reverse KL, and no reward. The teacher of 4.1M
parameters (EM .98) went through the same two stages. `opsd` is `:opsd`.

- *episodes to .9*: of each seed, until EM is .9 at an evaluation and at the next one; –: not within the run.
- *learned*: the mean EM over all evaluations after the start, minus that of GRPO with the same seed; mean and 95 % t
  interval over seeds. Better and worse: the interval does not contain 0.

{head}
{warm}

The teacher reaches .9 in at most half of GRPO's episodes in {sooner} seeds, the one of 4.1M parameters in {larger}.
`credit="turn"` has no row: where the reward is paid at the end, as here, it equals GRPO to the bit.

## From earlier starts

The same, from earlier steps of the warm start, which has 175: from the {earlier[weak]}th, where the model hardly copies
names yet, and from the {earlier[middle]}th, where it answers as many questions as at the end. A run has {long[steps]}
steps of {long_episodes} episodes. The teacher of 4.1M parameters was made anew (EM .94).

{head}
{from_earlier}

The teacher reaches .9 in at most half of GRPO's episodes in {weak_sooner} seeds from the weak start, the one of 4.1M
parameters in {middle_larger} from the middle one.

Runs that are missing: {missing}.

## When to use which, as far as this shows

- From a warm start that can do parts of the task, and with a reward that can be trusted, GRPO alone: it finds the rest
  in some fifty episodes. With a teacher of the student's size it finds it about as soon, and with so few episodes a
  step the reward's runs then lose some of it while the teacher's do not: +.07 over the run, the interval just
  containing 0. A teacher of 4.1M parameters starts later, reaches .9 in every seed and keeps it (.96 at the end).
- Information gains cost little and gain nothing that five seeds could show here, where two searches are enough.
- `:opsd` neither helps nor harms by more than .07: the reward already teaches what the gold passages would.
- From the middle start GRPO stays at some .6, and the teacher of 4.1M parameters leads past it (.77 at the end, +.11
  over the run, better in five seeds of five) and still rises. Neither reaches .9 in 384 episodes.
- A policy that does not copy names yet learns it from neither in so few episodes: with the teacher EM rose a little,
  with GRPO it fell (+.07 over the run, better in five seeds of five). Fine-tune it first.
- At 135M (below), after 640 demonstrations and 1,024 episodes a run, neither GRPO nor `:opsd` moved the greedy answers:
  a difference of more than .06 is excluded. The teacher of queries has next to nothing to say: demonstrations search
  with the question, so does the policy, and what it finds stays the same. Two thirds of the groups had no spread, so
  GRPO had few episodes to learn from; at this size it takes several times as many ([a real model](real_model.md)).
  Teach queries where the right ones differ from the question.

## Self-teaching at 135M

{real}

## What a gain costs

With four searches in every episode of the quickstart, a step with `credit="information"` takes
{cost}, at
most 1.15 times being the aim (`python benchmarks/teacher.py --cost`: medians of steps that take turns, on a CPU, whose
rows are trees of any depth. On GPUs and TPUs only a group's common beginning is shared, so there it costs more).

## Every run

EM at the start and at every evaluation.

| | seed | EM |
|---|---|---|
{curves}
"""


if __name__ == "__main__":
  main()
