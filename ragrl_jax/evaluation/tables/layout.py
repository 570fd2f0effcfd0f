"""The layout of a paper's table: its columns and rows, the published numbers, and the run for each row."""

import dataclasses
from collections.abc import Mapping
from typing import Any

Facts = Mapping[str, Any]  # facts of an evaluation (`records.Evaluation`) → values


@dataclasses.dataclass(frozen=True)
class Run:
  """Describes the evaluation that fills a row. Omitted facts may have any value.

  `where` has required values, or tuples of allowed ones; "~TEXT" requires that the fact contains TEXT. The end of a
  training fits a run with `best`, too: a note names the checkpoint.
  """

  evaluate: str = ""  # config and variant of the evaluation, such as "arena:f1"; "" for transcripts made elsewhere
  train: str = ""  # config and variant of the training; "" for an untrained model
  model: str = ""  # a name in MODELS; "" for any
  where: Facts = dataclasses.field(default_factory=dict)
  flags: tuple[str, ...] = ()  # of the evaluation's command
  needs: tuple[str, ...] = ()  # flags of both commands: the required indexes and judges
  train_flags: tuple[str, ...] = ()
  start: str = ""  # the model that the training starts from, if it is not the model itself
  checkpoint: int = 0  # the evaluated step in RUN/checkpoints; 0 for the end of the training
  best: str = ""  # the metric of held-out questions that chooses the checkpoint (`ragrl evaluate --best`)
  transcripts: str = ""  # the file of fine-tuning
  made: str = ""  # the command that makes this file
  reads: "Run | None" = None  # the run that extracted the evidence from which this one answers, instead of passages
  system: str = ""  # the adapter of the transcripts, for another system


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of a published table. It has a run that fills it, or the reason why none can."""

  name: str
  published: tuple[str | None, ...]  # the printed number of each column; None where there is none
  run: Run | None = None
  why_not: str = ""
  against: str = ""  # name of the row for the paired test
  section: str = ""  # the heading above the row
  versus: Run | None = None  # a second run with the same questions, for columns with `both`
  measure: str = ""  # a name in `measures.MEASURES` instead of the columns' measure


@dataclasses.dataclass(frozen=True)
class Column:
  """A column of a published table."""

  head: str  # the data set's heading
  measure: str  # a name in `measures.MEASURES`
  sets: tuple[str, ...]  # names in SETS; an average has several
  where: Facts = dataclasses.field(default_factory=dict)  # as a run's; of the one that extracted the evidence, if any
  flags: tuple[str, ...] = ()  # flags of the evaluation's command for these facts
  data: str = ""  # the questions in the command, if they are not those of SETS
  made: str = ""  # the command that makes their file
  both: tuple[bool, bool] | None = None  # (row's run is right, second run is right): the share of such questions

  average = property(lambda self: len(self.sets) > 1)  # whether it is the mean of several sets


@dataclasses.dataclass(frozen=True)
class Table:
  """A published table, or a figure as a table, with columns and rows in the paper's order."""

  name: str  # "Table 3"
  title: str  # a description in our words
  columns: tuple[Column, ...]
  rows: tuple[Row, ...]
  scale: float = 1.0  # factor for values between 0 and 1: 1 or 100
  digits: int = 3  # digits after the point of our values
  transposed: bool = False  # the paper prints the systems as columns

  def of_row(self, row: Row) -> list[Column]:
    """The columns, with the row's own measure if it has one."""
    return [dataclasses.replace(column, measure=row.measure or column.measure) for column in self.columns]


@dataclasses.dataclass(frozen=True)
class Paper:
  """All tables and figures of a paper."""

  name: str
  title: str
  tables: tuple[Table, ...]  # those that can be filled
  others: Mapping[str, str]  # other table or figure → its content, and why it is not among `tables`
  source: str  # of the numbers
  data: Mapping[str, str] = dataclasses.field(default_factory=dict)  # set → questions, if they are not FlashRAG's
  judge: str = ""  # config whose judge asks the paper's question about an answer
