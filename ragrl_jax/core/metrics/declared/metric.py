"""A metric as it is declared."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Metric:
  """One row of a table.

  Attributes:
    names: one name, or several that are explained together, with spaces between. A part in capitals stands for any
      (`term/NAME`), "…" for all that may follow.
    unit: of the values.
    meaning: what it is, in Markdown.
    bad: what a bad value means, and what to change.
  """

  names: str
  unit: str
  meaning: str
  bad: str = ""
