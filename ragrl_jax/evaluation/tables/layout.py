"""The layout of a paper's table: its columns and rows, the published numbers, and the run for each row."""

import dataclasses
import pathlib
import tomllib
from collections.abc import Mapping
from typing import Any

_NAMES = tomllib.loads(pathlib.Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))
MODELS: Mapping[str, Mapping[str, Any]] = _NAMES["models"]
SETS: Mapping[str, Mapping[str, str]] = _NAMES["sets"]
FOLDERS: Mapping[str, str] = _NAMES["folders"]


@dataclasses.dataclass(frozen=True)
class Run:
  """Describes the evaluation that fills a row. Omitted facts may have any value.

  Attributes:
    evaluate: config and variant of the evaluation, such as "arena:f1"; "" for transcripts made elsewhere.
    train: config and variant of the training; "" for an untrained model.
    model: a name in MODELS; "" for any.
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
    published: the printed number of each column; None where there is none.
    run, why_not: the run that fills the row, or the reason why none can.
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
    sets: names in SETS; an average has several.
    where: required facts of the cell's evaluation, in addition to the row's (see `Run`); of the one that extracted the
      evidence, if the row's run reads some.
    flags: flags of the evaluation's command for these facts.
    data, made: questions in the command, if they are not those of SETS, and the command that makes their file.
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
    name, title: "Table 3", and a description in our words.
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
    tables: the tables that can be filled.
    others: other table or figure → its content, and why it is not among `tables`.
    data: name in SETS → questions in the commands, if they are not FlashRAG's.
    source: source of the numbers.
  """

  name: str
  title: str
  tables: tuple[Table, ...]
  others: Mapping[str, str]
  source: str
  data: Mapping[str, str] = dataclasses.field(default_factory=dict)
