"""Lines of cells as plain text, in columns."""

from collections.abc import Sequence

from ragrl_jax.core.text.forms import safe


def columns(lines: Sequence[Sequence[str]], *, left: int | None = None) -> str:
  """The lines, whose cells are aligned: those of the first `left` columns (None: of all) to the left, others right.

  Control characters become escapes (`forms.safe`), as names of sets and systems may come from anywhere.
  """
  lines = [[*map(safe, cells)] for cells in lines]
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  sides = [str.ljust if left is None or place < left else str.rjust for place in range(len(widths))]
  line_of = lambda cells: "   ".join(side(cell, width) for side, cell, width in zip(sides, cells, widths)).rstrip()
  return "\n".join(map(line_of, lines))
