"""The commands that fill a cell: training, and the evaluation or the scoring of transcripts."""

import re
import shlex

from ragrl_jax.evaluation import answer_recall
from ragrl_jax.evaluation.records import MODELS, SETS
from ragrl_jax.evaluation.tables.layout import Column, Paper, Run
from ragrl_jax.evaluation.tables.measures import JUDGES, MEASURES

# Settings by which runs of the same configs differ: their values are in the names of folders.
_APART = re.compile(
  r"--config\.(?:(?:switches|retrieval|rollout|evaluate)\.)?(top_k|group_size|batch|instructions|steps)=(.*)"
)
RATERS = "veritas:reward_model"  # the evaluation of a judge: its verdicts on labelled pairs


def evaluation(paper: Paper, column: Column, run: Run) -> str:
  """The command whose result fills a cell, behind those that make what it reads: extracted evidence, or scores."""
  (name,) = column.sets
  questions = column.data or paper.data.get(name) or SETS[name]["questions"]
  folder, place = _folder(paper, run), _place(paper, column, run)
  data, to, model = f"--data={questions}", f"--out={place}", MODELS.get(run.model, {})
  if run.reads is not None:
    extracted = _place(paper, column, run.reads)
    asked = f"{extracted}/asked.jsonl.gz"
    made = _ragrl("make-lear-generator", data, f"--predictions={extracted}/predictions.jsonl", f"--out={asked}")
    words = (f"--config={run.evaluate}", f"--checkpoint={folder}", f"--data={asked}", f"--out={extracted}/read")
    return " && ".join([evaluation(paper, column, run.reads), made, _ragrl("evaluate", *words)])
  if run.system == answer_recall.SYSTEM:
    return _ragrl("recall", data, to, *run.flags, *column.flags)
  if run.system:
    words = (f"--transcripts={name}.jsonl", data, run.model and f"--model={run.model}", to)
    commands = [_ragrl("score", f"--system={run.system}", *words)]
    for judge in MEASURES[column.measure].steps:
      words = ("--config=veritas", f"--episodes={place}", *JUDGES[judge].split(), f"--out={place}-{judge}.json")
      commands.append(_ragrl("faithfulness", *words))
    return " && ".join(commands)
  if run.evaluate == RATERS:
    path = f"{folder}/model" if run.train else model.get("hub")
    judge_flags = dict(kind="llm", model=model.get("served"), endpoint="ENDPOINT")
    judge = judge_flags if "served" in model else dict(kind="reward_model", path=path)
    flags = [f"--config.judge.{name}={value}" for name, value in judge.items()]
    return _ragrl("make-judge-data", "--config=veritas", *flags, f"--compare={questions}", to)
  if "served" in model and not run.train:
    any_tokenizer = f"--config.prompting.tokenizer={MODELS['qwen2.5-7b']['hub']}"
    answers = (f"--config.endpoint.model={model['served']}", any_tokenizer)
  else:
    step = f"/checkpoints/{run.checkpoint}" if run.checkpoint else ""
    checkpoint = f"{folder}{step}" if run.train else model["hub"]
    answers = (f"--checkpoint={checkpoint}", run.best and f"--best={run.best}")
  return _ragrl("evaluate", f"--config={run.evaluate}", *answers, data, to, *run.needs, *run.flags, *column.flags)


def training(paper: Paper, run: Run | None) -> str:
  """The command of the run that a row's evaluations need; "" for an untrained model."""
  if run is None or not run.train:
    return ""
  needs = (f"--config.data.train={run.transcripts}",) if run.transcripts else run.needs
  start = f"--config.model.path={run.start or MODELS[run.model]['hub']}"
  words = (f"--config={run.train}", f"--workdir={_folder(paper, run)}", start, *needs, *run.train_flags)
  return _ragrl("sft" if run.transcripts else "train", *words)


def _place(paper: Paper, column: Column, run: Run) -> str:
  """The folder of an evaluation."""
  parts = [_folder(paper, run), *([f"step{run.checkpoint}"] if run.checkpoint else []), *column.sets]
  parts += [str(column.where[fact]) for fact in ("split", "labels.max_pairs", "labels.by") if fact in column.where]
  parts += [*_apart(run.flags), *(re.sub(r"[^a-z0-9]+", "", flag.rpartition("=")[2].lower()) for flag in column.flags)]
  return "-".join(parts)


def _folder(paper: Paper, run: Run) -> str:
  name = run.system or (run.train or run.evaluate).replace(":", "-").replace(",", "-")
  return "-".join(filter(None, [f"out/{paper.name}/{name}", run.model, *_apart((*run.needs, *run.train_flags))]))


def _apart(flags: tuple[str, ...]) -> list[str]:
  return [f"{match[1].replace('_', '')}{match[2]}" for flag in flags if (match := _APART.fullmatch(flag))]


def _ragrl(*words: str) -> str:
  """The command line of these words without empty ones."""
  return shlex.join(["ragrl", *filter(None, words)])
