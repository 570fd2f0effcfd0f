"""The declaration of a metric."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Metric:
  """One row of a table.

  Attributes:
    names: one name, or several names with a common explanation, separated by spaces. Capitals stand for any name
      (`term/NAME`), "…" for any continuation.
    unit: unit of the values.
    meaning: the meaning, in Markdown.
    bad: the meaning of a bad value, and what to change.
  """

  names: str
  unit: str
  meaning: str
  bad: str = ""
