r"""Self-teaching at 135M against GRPO alone: python benchmarks/real_model/self_teaching.py [--workdir OUT] [--record]

Search-R1's warm start is made by the stages of run.py, once. From it each of three seeds trains twice, as
configs/small.py has it: by GRPO alone, and with `:opsd`, where the policy with the supporting passages in its prompt
teaches the one that must search. Then warm start and both answer the test questions, greedy, of articles that training
never saw. A killed stage goes on where it stopped, and with more --steps finished runs go on.
--record puts what has ended into self_teaching.json; python benchmarks/teacher.py --docs prints it (docs/teacher.md).
"""

import argparse
import itertools
import json
import pathlib
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from real_model import results, run

from ragrl_jax.data import readers
from ragrl_jax.evaluation import comparison
from ragrl_jax.store import jsonl

RECORD = pathlib.Path(__file__).with_name("self_teaching.json")
SYSTEM, ARMS, SEEDS = "search_r1", ("grpo", "opsd"), range(3)
SAID = dict(warm="warm start", grpo="GRPO", opsd="opsd")
MEASURES = {"em": "EM", "f1": "F1", results.FOUND: "answer found"}  # greedy, on the test questions
TRAINING = {  # of training's own episodes
  "zero_spread_groups": "groups without spread",
  "entropy/query": "entropy of a query's token",
  "teacher_kl": "divergence from the teacher (of queries, over all trained tokens)",
}
QUESTIONS = 500


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("out/real_model"))
  parser.add_argument("--gpu", action="store_true", help="whole paragraphs and larger steps")
  parser.add_argument("--steps", type=int, default=run.STEPS, help="steps of RL")
  parser.add_argument("--demonstrations", type=int, default=320)
  parser.add_argument("--record", action="store_true", help="record what has ended, and run nothing")
  args = parser.parse_args()
  if args.record:
    rows = ",\n".join(json.dumps(row) for row in recorded(args.workdir))
    RECORD.write_text(f"[{rows}]\n", encoding="utf-8")
    print(section())
    return 0
  return run.play(stages(args), args.gpu)


def stages(args: argparse.Namespace) -> list[run.Stage]:
  """All commands, in order."""
  given = dict(system=SYSTEM, seed=0, data="", model="", questions=QUESTIONS, smoke=False, flags=[])
  first = run.stages(argparse.Namespace(**given, **vars(args)))
  names = [stage.name for stage in first]
  plan = first[: names.index("fine-tune") + 1]
  shared, warm = args.workdir, args.workdir / SYSTEM / "seed_0" / "sft" / "model"
  data = [f"--config.data.train={shared}/questions/train.jsonl.gz", "--config.evaluate.every=0"]
  test = ["--data", f"{shared}/questions/test.jsonl.gz", f"--config.data.max_examples={QUESTIONS}"]
  small = f"small:{SYSTEM}" + ",gpu" * args.gpu

  def evaluate(arm, seed, checkpoint, steps):
    out = folder(shared, arm, seed)
    play = [run.ragrl(), "evaluate", f"--config={small}", "--checkpoint", str(checkpoint), *test, *common(seed)]
    play += ["--out", str(out / f"greedy_{steps}")]
    plan.append(run.Stage(f"evaluate {arm} {seed}", play, out / "done" / f"greedy_{steps}.json"))

  common = lambda seed: [f"--config.seed={seed}", f"--config.retrieval.index={shared / 'index'}"]
  evaluate("warm", 0, warm, 0)
  for seed in SEEDS:
    for arm in ARMS:
      out = folder(shared, arm, seed)
      train = [run.ragrl(), "train", f"--config={small}" + ",opsd" * (arm == "opsd"), f"--workdir={out / 'rl'}"]
      train += [*data, f"--config.model.path={warm}", *common(seed), f"--config.steps={args.steps}"]
      plan.append(run.Stage(f"reinforcement learning, {arm} {seed}", train, out / "done" / f"rl_{args.steps}.json"))
      evaluate(arm, seed, out / "rl", args.steps)
  return plan


def folder(workdir: pathlib.Path, arm: str, seed: int) -> pathlib.Path:
  return workdir / "self_teaching" / f"{arm}_{seed}"


def recorded(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """A row for each run that was evaluated, after its last step, and one for the warm start."""
  rows = []
  for arm, seed in (("warm", 0), *((arm, seed) for arm in ARMS for seed in SEEDS)):
    out = folder(workdir, arm, seed)
    ended = sorted(out.glob("greedy_*/predictions.jsonl"), key=lambda path: int(path.parent.name.partition("_")[2]))
    if not ended:
      continue
    trained = out / "rl" if arm in ARMS else workdir / SYSTEM / "seed_0" / "sft"
    config = json.loads((trained / "config.json").read_text())
    version = json.loads((trained / "versions.jsonl").read_text().splitlines()[-1])
    row = dict(arm=arm, seed=seed, steps=int(ended[-1].parent.name.partition("_")[2]))
    if arm in ARMS:
      row["episodes"] = config["rollout"]["prompts_per_step"] * config["rollout"]["group_size"]
      steps = list(jsonl.read(trained / "metrics.jsonl"))
      row["training"] = {key: statistics.fmean(step[key] for step in steps) for key in TRAINING if key in steps[0]}
    else:
      row["demonstrations"] = sum(1 for _ in readers.read_examples(str(trained.with_name("demonstrations.jsonl.gz"))))
    row |= {key: version[key] for key in ("commit", "jax", "devices")}
    rows.append(row | dict(questions=results.questions(ended[-1], SYSTEM)))
  return rows


def section() -> str:
  """What the record shows, in Markdown; empty without the warm start and a seed of both arms."""
  rows = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else []
  seeds = [{row["seed"] for row in rows if row["arm"] == arm} for arm in ARMS]
  both = sorted(set.intersection(*seeds))
  of = {arm: [row for row in rows if row["arm"] == arm and (arm not in ARMS or row["seed"] in both)] for arm in SAID}
  if not all(of.values()):
    return ""
  one, warm = of["grpo"][0], of["warm"][0]
  how = f"--steps {one['steps']} --demonstrations {warm['demonstrations']}"
  lines = [
    f"`python benchmarks/real_model/self_teaching.py {how}`:",
    f"Search-R1, {one['steps']} steps of {one['episodes']} episodes from one warm start ({warm['demonstrations']} "
    f"demonstrations), {one['devices']}; greedy, on {len(one['questions']['em'])} questions of articles that training "
    f"never saw, {len(both)} seed{'s' * (len(both) > 1)}. Differences are paired, with 95 % intervals over questions "
    "and seeds.",
    "",
    *(
      f"- {SAID[arm]} beside {SAID[other]}: {beside(of, arm, other)}." for other, arm in itertools.combinations(SAID, 2)
    ),
    *(f"- {SAID[arm]} in training, means over steps and seeds: {trained(of[arm])}." for arm in ARMS),
    "",
    f"| | seed | {' | '.join(MEASURES.values())} | searches |",
    "|---" * (3 + len(MEASURES)) + "|",
  ]
  for arm, shown in of.items():
    for row in shown:
      known = ([value for value in row["questions"][name] if value is not None] for name in (*MEASURES, "num_searches"))
      cells = " | ".join(f"{statistics.fmean(values):.3f}" for values in known)
      lines.append(f"| {SAID[arm]} | {row['seed']} | {cells} |")
  return "\n".join(lines)


def trained(rows: Sequence[Mapping[str, Any]]) -> str:
  """The means of TRAINING over an arm's seeds."""
  known = {said: [row["training"][key] for row in rows if key in row["training"]] for key, said in TRAINING.items()}
  return ", ".join(f"{said} {statistics.fmean(values):.2g}" for said, values in known.items() if values)


def beside(of: Mapping[str, Sequence[Mapping[str, Any]]], arm: str, other: str) -> str:
  """The paired differences of an arm to the other, of MEASURES."""
  rows = {name: results.rows_of([row["questions"] for row in of[name]]) for name in (other, arm)}
  rows = {name: [row | dict(terms={results.FOUND: row[results.FOUND]}) for row in some] for name, some in rows.items()}
  compared = comparison.compare(rows)
  keys = {said: name if name in compared else f"terms/{name}" for name, said in MEASURES.items()}
  return ", ".join(f"{said} {results.difference(compared[key])}" for said, key in keys.items())


if __name__ == "__main__":
  sys.exit(main())
