"""Lines of cells as plain text, in columns."""

from collections.abc import Sequence


def columns(lines: Sequence[Sequence[str]], *, left: int | None = None) -> str:
  """The lines, whose cells are aligned: those of the first `left` columns (None: of all) to the left, others right."""
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  sides = [str.ljust if left is None or place < left else str.rjust for place in range(len(widths))]
  line_of = lambda cells: "   ".join(side(cell, width) for side, cell, width in zip(sides, cells, widths)).rstrip()
  return "\n".join(map(line_of, lines))
