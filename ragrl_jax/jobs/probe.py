"""Probes whether a policy really searches: the same questions with its retriever, and with swapped results."""

import pathlib
from collections.abc import Callable
from typing import Any

from ragrl_jax.evaluation import search_probe
from ragrl_jax.evaluation.answer_files import write_json
from ragrl_jax.jobs import evaluate
from ragrl_jax.run import prepared
from ragrl_jax.store import folders


def probe(
  config,
  checkpoint: str | pathlib.Path | None,
  data: str,
  out: str | pathlib.Path,
  *,
  sample: bool = False,
  progress: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, Any]:
  """Plays the questions with each retriever of `search_probe.played`; writes and returns numbers, verdict and text.

  After a kill the same call continues. The drawing of passages depends on config.seed.

  Args:
    config, checkpoint, data, out, sample: as in `jobs.evaluate.evaluate`. `out` gets probe.json, and a folder of each
      retriever's evaluation.
    progress: called with (answers, total).

  Raises:
    ValueError: the system never searches, or as in `jobs.evaluate.evaluate`.
    harness.TooManyFailures: a tool is down.
  """
  folders.refuse_others(out)
  config = evaluate.settled(config, checkpoint)
  recipe = prepared.recipe(config)
  if not recipe.searches or not config.retrieval.index:
    why = "the run has no retriever (config.retrieval.index)" if recipe.searches else "its episodes have no searches"
    raise ValueError(f"recipe {recipe.name}: {why}, so there is nothing to probe: name a run that may search.")
  config, player, examples, answers = evaluate.opened(config, checkpoint, data, out)
  settings = dict(**answers, data=str(data), **evaluate.described(config, player, sample=sample))

  def play_with(play):
    player.rollout.play = play
    return evaluate.play(player, greedy=not sample)

  numbers = search_probe.played(
    examples,
    play_with,
    player.recipe,
    getattr(player.retriever, "corpus", None),
    pathlib.Path(out),
    settings=settings,
    top_k=config.retrieval.top_k,
    seed=config.seed,
    progress=progress,
    **evaluate.limits(config),
  )
  numbers["text"] = search_probe.text(numbers)
  write_json(pathlib.Path(out) / search_probe.RESULT, numbers)
  return numbers
