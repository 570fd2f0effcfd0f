"""The commands that fill a cell: training, and the evaluation or the scoring of transcripts."""

import re
import shlex

from ragrl_jax.evaluation import answer_recall
from ragrl_jax.evaluation.tables.layout import HUB, SERVED, SETS, Column, Paper, Run
from ragrl_jax.evaluation.tables.measures import MEASURES

# Settings by which runs of the same configs differ: their values are in the names of folders.
_APART = re.compile(
  r"--config\.(?:(?:switches|retrieval|rollout|evaluate)\.)?(top_k|group_size|batch|instructions|steps)=(.*)"
)

# The judges of the steps of transcripts (`measures.Measure.steps`): flags of `ragrl faithfulness`.
JUDGES = {
  "llm": (
    *("--config.judge.kind=llm", f"--config.judge.model={SERVED['claude-4.5-sonnet']}"),
    *("--config.judge.endpoint=ENDPOINT", "--terms=information_think", "--terms=think_search"),
  ),
  "automatic": (
    *("--config.judge.kind=reward_model", "--config.judge.path=JUDGE_FOLDER"),
    *("--config.judges.think_search.kind=nli", "--config.judges.think_search.path=NLI_FOLDER"),
  ),
  "nli": (
    *("--config.judges.think_answer.kind=nli", "--config.judges.think_answer.path=NLI_FOLDER"),
    "--terms=think_answer",
  ),
}
RATERS = "veritas:reward_model"  # the evaluation of a judge: its verdicts on labelled pairs


def evaluation(paper: Paper, column: Column, run: Run) -> str:
  """The command whose result fills a cell; joined by "&&", for a run that reads evidence all from its extraction, and
  for verdicts on the steps of transcripts all from their scoring.
  """
  (name,) = column.sets
  data = column.data or paper.data.get(name) or SETS[name][1]
  out = _folder(paper, run)
  place = _place(paper, column, run)
  if run.reads is not None:
    extracted = _place(paper, column, run.reads)
    asked = f"{extracted}/asked.jsonl.gz"
    words = [f"--data={data}", f"--predictions={extracted}/predictions.jsonl", f"--out={asked}"]
    read = ["ragrl", "evaluate", f"--config={run.evaluate}", f"--checkpoint={out}", f"--data={asked}"]
    steps = [_line(["ragrl", "make-lear-generator", *words]), _line([*read, f"--out={extracted}/read"])]
    return " && ".join([evaluation(paper, column, run.reads), *steps])
  if run.system == answer_recall.SYSTEM:
    return _line(["ragrl", "recall", f"--data={data}", f"--out={place}", *run.flags, *column.flags])
  if run.system:
    words = ["ragrl", "score", f"--system={run.system}", f"--transcripts={name}.jsonl", f"--data={data}"]
    steps = [_line([*words, *([f"--model={run.model}"] if run.model else []), f"--out={place}"])]
    asked = ["ragrl", "faithfulness", "--config=veritas", f"--episodes={place}"]
    steps += [_line([*asked, *JUDGES[name], f"--out={place}-{name}.json"]) for name in MEASURES[column.measure].steps]
    return " && ".join(steps)
  if run.evaluate == RATERS:
    served = SERVED.get(run.model)
    path = f"{out}/model" if run.train else HUB.get(run.model)
    judge = dict(kind="llm", model=served, endpoint="ENDPOINT") if served else dict(kind="reward_model", path=path)
    words = ["ragrl", "make-judge-data", "--config=veritas", *(f"--config.judge.{k}={v}" for k, v in judge.items())]
    return _line([*words, f"--compare={data}", f"--out={place}"])
  step = f"/checkpoints/{run.checkpoint}" if run.checkpoint else ""
  if not run.train and run.model in SERVED:
    any_tokenizer = f"--config.prompting.tokenizer={HUB['qwen2.5-7b']}"
    answers = [f"--config.endpoint.model={SERVED[run.model]}", any_tokenizer]
  else:
    checkpoint = f"{out}{step}" if run.train else HUB[run.model]
    answers = [f"--checkpoint={checkpoint}", *([f"--best={run.best}"] if run.best else [])]
  words = ["ragrl", "evaluate", f"--config={run.evaluate}", *answers, f"--data={data}"]
  return _line([*words, f"--out={place}", *run.needs, *run.flags, *column.flags])


def objective(run: Run) -> str:
  """The kind of a row's training (`config.OBJECTIVE`): "sft" if it reads transcripts, else "rl"."""
  return "sft" if run.transcripts else "rl"


def training(paper: Paper, run: Run | None) -> str:
  """The command of the run that a row's evaluations need; "" for an untrained model."""
  if run is None or not run.train:
    return ""
  command = dict(rl="train", sft="sft")[objective(run)]
  words = ["ragrl", command, f"--config={run.train}", f"--workdir={_folder(paper, run)}"]
  needs = (f"--config.data.train={run.transcripts}",) if command == "sft" else run.needs
  return _line([*words, f"--config.model.path={run.start or HUB[run.model]}", *needs, *run.train_flags])


def _place(paper: Paper, column: Column, run: Run) -> str:
  """The folder of an evaluation."""
  parts = [_folder(paper, run), *([f"step{run.checkpoint}"] if run.checkpoint else []), *column.sets]
  parts += [str(column.where[fact]) for fact in ("split", "labels.max_pairs", "labels.by") if fact in column.where]
  parts += [*_apart(run.flags), *(re.sub(r"[^a-z0-9]+", "", flag.rpartition("=")[2].lower()) for flag in column.flags)]
  return "-".join(parts)


def _folder(paper: Paper, run: Run) -> str:
  name = run.system or (run.train or run.evaluate).replace(":", "-").replace(",", "-")
  return "-".join(
    [f"out/{paper.name}/{name}", *([run.model] if run.model else []), *_apart((*run.needs, *run.train_flags))]
  )


def _apart(flags: tuple[str, ...]) -> list[str]:
  return [f"{match[1].replace('_', '')}{match[2]}" for flag in flags if (match := _APART.fullmatch(flag))]


def _line(words: list[str]) -> str:
  return shlex.join(words)
