"""The layout of a paper's table: its columns and rows, the published numbers, and the run for each row."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Run:
  """Describes the evaluation that fills a row. Omitted facts may have any value.

  Attributes:
    evaluate: config and variant of the evaluation, such as "arena:f1"; "" for transcripts made elsewhere.
    train: config and variant of the training; "" for an untrained model.
    model: a name in `results.MODELS` or SERVED; "" for any.
    where: facts of the evaluation (`results.Evaluation.facts`) → required value, or a tuple of allowed values. "~TEXT"
      requires that the fact contains TEXT.
    flags: flags of the evaluation's command.
    needs: flags of both commands: the required indexes and judges.
    train_flags: flags of the training's command.
    start: the model that the training starts from, if it is not the model itself.
    checkpoint: the evaluated step in RUN/checkpoints; 0 for the end of the training.
    best: the metric of held-out questions that chooses the checkpoint (`ragrl evaluate --best`), where the paper takes
      the best one; "" for the end of the training. The end still fits; a note names the checkpoint.
    transcripts, made: the file of fine-tuning, and the command that makes it.
    reads: the run that extracted the evidence from which this one answers, instead of passages.
    system: the adapter of the transcripts, for another system.
  """

  evaluate: str = ""
  train: str = ""
  model: str = ""
  where: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  flags: tuple[str, ...] = ()
  needs: tuple[str, ...] = ()
  train_flags: tuple[str, ...] = ()
  start: str = ""
  checkpoint: int = 0
  best: str = ""
  transcripts: str = ""
  made: str = ""
  reads: "Run | None" = None
  system: str = ""


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of a published table.

  Attributes:
    name: as printed.
    published: the printed number of each column; None where there is none.
    run: the run that fills the row; None if no run can.
    why_not: the reason if no run can.
    against: name of the row for the paired test.
    section: the heading above the row.
    versus: a second run with the same questions, for columns with `both`.
    measure: a name in `measures.MEASURES` instead of the columns' measure.
  """

  name: str
  published: tuple[str | None, ...]
  run: Run | None = None
  why_not: str = ""
  against: str = ""
  section: str = ""
  versus: Run | None = None
  measure: str = ""


@dataclasses.dataclass(frozen=True)
class Column:
  """A column of a published table.

  Attributes:
    head: the data set's heading.
    measure: a name in `measures.MEASURES`.
    sets: names in `SETS`; an average has several.
    where: required facts of the cell's evaluation, in addition to the row's (see `Run`); of the one that extracted the
      evidence, if the row's run reads some.
    flags: flags of the evaluation's command for these facts.
    data, made: questions in the command, if they are not those of `SETS`, and the command that makes their file.
    both: (whether the row's run is right, whether its second run is right): the column is the share of such questions.
  """

  head: str
  measure: str
  sets: tuple[str, ...]
  where: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  flags: tuple[str, ...] = ()
  data: str = ""
  made: str = ""
  both: tuple[bool, bool] | None = None

  @property
  def average(self) -> bool:
    """Whether the column is the mean of several sets."""
    return len(self.sets) > 1


@dataclasses.dataclass(frozen=True)
class Table:
  """A published table, or a figure as a table.

  Attributes:
    name: "Table 3".
    title: a description in our words.
    columns, rows: in the paper's order.
    scale: factor for values between 0 and 1: 1 or 100.
    digits: digits after the point of our values.
    transposed: the paper prints the systems as columns.
  """

  name: str
  title: str
  columns: tuple[Column, ...]
  rows: tuple[Row, ...]
  scale: float = 1.0
  digits: int = 3
  transposed: bool = False

  def of_row(self, row: Row) -> tuple[Column, ...]:
    """The columns, with the row's own measure if it has one."""
    if not row.measure:
      return self.columns
    return tuple(dataclasses.replace(column, measure=row.measure) for column in self.columns)

  def __post_init__(self):
    """Raises ValueError if a row has not one number per column, or is compared with an unknown row."""
    names = {row.name for row in self.rows}
    for row in self.rows:
      if len(row.published) != len(self.columns):
        raise ValueError(f"{self.name}, {row.name}: {len(row.published)} numbers, {len(self.columns)} columns.")
      if row.against and row.against not in names:
        raise ValueError(f"{self.name}, {row.name}: it is compared with {row.against!r}, which is no row.")
      if (row.run is None) != bool(row.why_not):
        raise ValueError(f"{self.name}, {row.name}: either a run fills the row, or a reason says why none does.")


@dataclasses.dataclass(frozen=True)
class Paper:
  """All tables and figures of a paper.

  Attributes:
    name: "arena".
    title: the paper's title.
    tables: the tables that can be filled.
    others: other table or figure → its content, and why it is not among `tables`.
    data: name in `SETS` → questions in the commands, if they are not FlashRAG's.
    source: source of the numbers.
  """

  name: str
  title: str
  tables: tuple[Table, ...]
  others: Mapping[str, str]
  source: str
  data: Mapping[str, str] = dataclasses.field(default_factory=dict)


# Name in `results.MODELS` → the model's name on the Hugging Face hub.
HUB: Mapping[str, str] = {
  **{f"qwen2.5-{size}b": f"Qwen/Qwen2.5-{size}B-Instruct" for size in ("1.5", 3, 7, 14)},
  **{f"qwen2.5-{size}b-base": f"Qwen/Qwen2.5-{size}B" for size in ("1.5", 3, 7, 14)},
  **{f"qwen3-{size}b": f"Qwen/Qwen3-{size}B" for size in (4, 8, 14)},
  "llama-3.1-8b": "meta-llama/Llama-3.1-8B-Instruct",
  "r1-distill-qwen-7b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
}
# Models in the commands that the hub lacks, or has as pickles only → what they are.
FOLDERS: Mapping[str, str] = {
  "JUDGE_FOLDER": "model/ of Table 10's training of Qwen/Qwen2.5-14B-Instruct; the paper's judge is not public",
  "NLI_FOLDER": "google/t5_xxl_true_nli_mixture, model and tokenizer saved by transformers as safetensors",
  "WARM_START_FOLDER": "the run of `ragrl sft --config=care:sft`, written by `ragrl export`",
}
# Model behind an API → the name that is asked for in the commands. `results.MODELS` has those in folders.
SERVED: Mapping[str, str] = {
  "gpt-4o": "gpt-4o-2024-11-20",
  "openai-o1": "o1-2024-12-17",
  "claude-3.7-sonnet": "claude-3-7-sonnet-20250219",
  "claude-4.5-sonnet": "claude-sonnet-4-5-20250929",
  "deepseek-r1": "deepseek-reasoner",
}

# Data set → (how its name is found in what an evaluation says, FlashRAG's questions).
_FLASHRAG = "hf:RUC-NLPIR/FlashRAG_datasets"
SETS: Mapping[str, tuple[re.Pattern[str], str]] = {
  "nq": (re.compile(r"(?<![a-z])nq(?![a-z])|natural.?questions"), f"{_FLASHRAG}/nq/test"),
  "triviaqa": (re.compile(r"trivia|(?<![a-z])tqa(?![a-z])"), f"{_FLASHRAG}/triviaqa/test"),
  "popqa": (re.compile(r"popqa"), f"{_FLASHRAG}/popqa/test"),
  "hotpotqa": (re.compile(r"hotpot"), f"{_FLASHRAG}/hotpotqa/dev"),
  "2wiki": (re.compile(r"2wiki"), f"{_FLASHRAG}/2wikimultihopqa/dev"),
  "musique": (re.compile(r"musique"), f"{_FLASHRAG}/musique/dev"),
  "bamboogle": (re.compile(r"bamboogle"), f"{_FLASHRAG}/bamboogle/test"),
  "multifieldqa": (re.compile(r"multifieldqa|mfqa"), "multifieldqa_en.jsonl"),
  "cofca": (re.compile(r"cofca"), "cofca.jsonl"),
  "pairs": (re.compile(r"pairs.of.steps"), "PAIRS/held_out.jsonl.gz"),  # of `ragrl make-judge-data`
}


def quadrants(heads: Mapping[str, str], measure: str, first: str, second: str) -> tuple[Column, ...]:
  """For each set, the shares of questions that both runs, only the first, only the second, and no run answer right.

  Args:
    heads: name of SETS → heading.
    measure: a measure of 0 (wrong) or 1 (right).
    first, second: names of the two runs.
  """
  kinds = {"both": (True, True), first: (True, False), second: (False, True), "neither": (False, False)}
  return tuple(
    Column(f"{head}, {kind}", measure, (name,), both=both)
    for name, head in heads.items()
    for kind, both in kinds.items()
  )


def columns(heads: Mapping[str, str], measures: tuple[str, ...], *, average: str = "") -> tuple[Column, ...]:
  """The columns of a table with the same measures for every set.

  Args:
    heads: name of SETS → heading.
    measures: names of measures, in order.
    average: heading of the last group of columns, with the mean of all sets; "" for none.
  """
  found = [Column(head, measure, (name,)) for name, head in heads.items() for measure in measures]
  if average:
    found += [Column(average, measure, tuple(heads)) for measure in measures]
  return tuple(found)
