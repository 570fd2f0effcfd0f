r"""Self-teaching at 135M against GRPO alone: python benchmarks/real_model/self_teaching.py [--workdir OUT] [--record]

Search-R1's warm start is made by the stages of run.py, once. From it each of three seeds trains twice, as
configs/small.py has it: by GRPO alone, and with `:opsd`, where the policy with the supporting passages in its prompt
teaches the one that must search. Then both answer the test questions, greedy, of articles that training never saw. A
killed stage goes on where it stopped, and with more --steps finished runs go on.
--record puts what has ended into self_teaching.json; python benchmarks/teacher.py --docs prints it (docs/teacher.md).
"""

import argparse
import json
import pathlib
import sys
from typing import Any

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from real_model import results, run

from ragrl_jax.evaluation import comparison

RECORD = pathlib.Path(__file__).with_name("self_teaching.json")
SYSTEM, ARMS, SEEDS = "search_r1", ("grpo", "opsd"), range(3)
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
    RECORD.write_text(json.dumps(recorded(args.workdir), indent=1) + "\n", encoding="utf-8")
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
  for seed in SEEDS:
    for arm in ARMS:
      out = folder(shared, arm, seed)
      small = f"small:{SYSTEM}" + ",gpu" * args.gpu
      common = [f"--config.seed={seed}", f"--config.retrieval.index={shared / 'index'}"]
      train = [run.ragrl(), "train", f"--config={small}" + ",opsd" * (arm == "opsd"), f"--workdir={out / 'rl'}"]
      train += [*data, f"--config.model.path={warm}", *common, f"--config.steps={args.steps}"]
      play = [run.ragrl(), "evaluate", f"--config={small}", "--checkpoint", str(out / "rl"), *test, *common]
      play += ["--out", str(out / f"greedy_{args.steps}")]
      plan.append(run.Stage(f"reinforcement learning, {arm} {seed}", train, out / "done" / f"rl_{args.steps}.json"))
      plan.append(run.Stage(f"evaluate {arm} {seed}", play, out / "done" / f"greedy_{args.steps}.json"))
  return plan


def folder(workdir: pathlib.Path, arm: str, seed: int) -> pathlib.Path:
  return workdir / "self_teaching" / f"{arm}_{seed}"


def recorded(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """A row for each run that was evaluated, after its last step."""
  rows = []
  for arm in ARMS:
    for seed in SEEDS:
      out = folder(workdir, arm, seed)
      ended = sorted(out.glob("greedy_*/predictions.jsonl"), key=lambda path: int(path.parent.name.partition("_")[2]))
      if not ended:
        continue
      config = json.loads((out / "rl/config.json").read_text())
      version = json.loads((out / "rl/versions.jsonl").read_text().splitlines()[-1])
      size = config["rollout"]["prompts_per_step"] * config["rollout"]["group_size"]
      row = dict(arm=arm, seed=seed, steps=int(ended[-1].parent.name.partition("_")[2]), episodes=size)
      row |= {key: version[key] for key in ("commit", "jax", "devices")}
      rows.append(row | dict(questions=results.questions(ended[-1], SYSTEM)))
  return rows


def section() -> str:
  """What the record shows, in Markdown; empty without one."""
  rows = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else []
  seeds = [{row["seed"] for row in rows if row["arm"] == arm} for arm in ARMS]
  both = sorted(set.intersection(*seeds))
  if not both:
    return ""
  of = {arm: [row for row in rows if row["arm"] == arm and row["seed"] in both] for arm in ARMS}
  compared = comparison.compare({arm: results.rows_of([row["questions"] for row in of[arm]]) for arm in ARMS})
  one, mean = of["grpo"][0], lambda row, name: sum(row["questions"][name]) / len(row["questions"][name])
  gaps = ", ".join(results.difference(measure, compared[measure]) for measure in ("em", "f1"))
  lines = [
    f"Search-R1, {one['steps']} steps of {one['episodes']} episodes from one warm start, {one['devices']}; greedy, on "
    f"{len(one['questions']['em'])} questions of articles that training never saw, {len(both)} seeds. Beside GRPO, "
    f"`:opsd` has {gaps} (95 %, paired, over questions and seeds).",
    "",
    "| | seed | EM | F1 | searches |",
    "|---|---|---|---|---|",
  ]
  for arm in ARMS:
    for row in of[arm]:
      cells = " | ".join(f"{mean(row, name):.3f}" for name in ("em", "f1", "num_searches"))
      lines.append(f"| {dict(grpo='GRPO', opsd='opsd')[arm]} | {row['seed']} | {cells} |")
  return "\n".join(lines)


if __name__ == "__main__":
  sys.exit(main())
