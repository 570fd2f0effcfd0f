"""Results as a notebook shows them. A page of the report is put into a frame that can reach nothing outside itself."""

import dataclasses
import html
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ragrl_jax.report import evaluation_page, page as page_lib, rendering, traces
from ragrl_jax.store import metrics

MAX_BYTES = 200_000  # of episodes in a cell's output; a notebook stores it


def framed(page: str) -> str:
  """A page as an element of another one."""
  style = "width: 100%; height: 640px; border: 1px solid #8884; border-radius: 8px"
  return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{html.escape(page)}"></iframe>'


@dataclasses.dataclass(frozen=True)
class Run:
  """A training run. Wherever a folder or a checkpoint is named, the run itself can be given."""

  workdir: pathlib.Path

  def __fspath__(self) -> str:
    return str(self.workdir)

  @property
  def model(self) -> str:
    """The folder of its model, at its end."""
    return str(self.workdir / "model")

  @property
  def page(self) -> pathlib.Path:
    """The file of its page."""
    return self.workdir / "report.html"

  @property
  def rows(self) -> list[dict[str, Any]]:
    """Its metrics, a row a step."""
    return metrics.read_metrics(self.workdir)

  def _repr_html_(self) -> str:
    return framed(rendering.run(page_lib.gather(self.workdir, max_bytes=MAX_BYTES)))


def _framed(places: Sequence[str | os.PathLike]) -> str:
  """The page of evaluations; of one with several seeds, that of its first seed."""
  first = [pathlib.Path(place) / "seed_0" for place in places]
  shown = [seed if seed.is_dir() else place for seed, place in zip(first, places)]
  return framed(rendering.evaluation(evaluation_page.gather(shown, max_bytes=MAX_BYTES)))


class Evaluation(dict):
  """The scores of an evaluation by name (metrics.json). Its folder is `out`."""

  def __init__(self, scores: Mapping[str, Any], out: str | os.PathLike):
    super().__init__(scores)
    self.out = pathlib.Path(out)

  def __fspath__(self) -> str:
    return str(self.out)

  def _repr_html_(self) -> str:
    return _framed([self.out])


class Probe(Evaluation):
  """What `ragrl probe` finds, by name (probe.json). Its text is the command's."""

  def __repr__(self) -> str:
    return self["text"]


class Comparison(dict):
  """What `ragrl compare` finds, by measure. Its text is the command's; in a notebook, two systems have their page."""

  def __init__(self, measures: Mapping[str, Any], places: Sequence[str], text: str):
    super().__init__(measures)
    self.places, self.text = places, text

  def __repr__(self) -> str:
    return self.text

  def _repr_html_(self) -> str:
    markup = f"<pre>{html.escape(self.text)}</pre>"
    if len(self.places) > 2 or not all(map(evaluation_page.is_folder, self.places)):
      return markup
    return markup + _framed(self.places)


class Answers(list):
  """Answers with their episodes: (answer or None, episode) each. In a notebook, every episode is shown.

  Args:
    rows: the episodes as `store.episodes.row` makes them.
  """

  def __init__(self, answers: Iterable[tuple[str | None, Any]], rows: Sequence[Mapping[str, Any]]):
    super().__init__(answers)
    self._rows = rows

  def __repr__(self) -> str:
    return "\n\n".join(map(traces.trace, self._rows))

  def _repr_html_(self) -> str:
    return f"<pre>{html.escape(repr(self))}</pre>"
