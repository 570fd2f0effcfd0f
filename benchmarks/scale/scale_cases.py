"""The models, recipes, TPU slices and GPUs of docs/scale.md."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import scale_estimate as estimate_lib
import scale_search as search

from ragrl_jax import config as config_lib
from ragrl_jax.models.shapes import SHAPES
from ragrl_jax.plan import gpus, workload

MODELS = ("qwen3-4b", "qwen2.5-7b", "qwen3-8b", "llama-3.1-8b", "qwen2.5-14b")
FILL = 0.5  # an episode's mean length over config.rollout.context
TRIES = 2  # plans of one case that may turn out not to fit
MARGIN = 0.1  # of a chip's memory, which a plan leaves free

# By Google's product names: a v5p's name counts two cores per chip.
SLICES = {
  "v5e-64": estimate_lib.Slice("v5e:8x8", 64),
  "v5e-256": estimate_lib.Slice("v5e:16x16", 256),
  "2 × v5e-256": estimate_lib.Slice("v5e:16x16", 512, 2),
  "v6e-64": estimate_lib.Slice("v6e:8x8", 64),
  "v5p-64": estimate_lib.Slice("v5p:2x4x4", 32),
  "v5p-128": estimate_lib.Slice("v5p:4x4x4", 64),
  "v5p-512": estimate_lib.Slice("v5p:4x8x8", 256),
  "v5p-1024": estimate_lib.Slice("v5p:8x8x8", 512),
  "1 × H100": estimate_lib.Slice("h100:1", 1),
  "8 × H100": estimate_lib.Slice("h100:8", 8),
  "16 × H100": estimate_lib.Slice("h100:2x8", 16),
  "1 × H200": estimate_lib.Slice("h200:1", 1),
  "8 × H200": estimate_lib.Slice("h200:8", 8),
  "16 × H200": estimate_lib.Slice("h200:2x8", 16),
}


@dataclasses.dataclass(frozen=True)
class Run:
  """A recipe's sizes.

  Attributes:
    file, variant: the config in configs/.
    searches: whether the model searches. Then it samples half of an episode; else one reply of max_new_tokens at most.
    note: other recipes with these sizes.
  """

  file: str
  variant: str = ""
  searches: bool = False
  note: str = ""

  def config(self) -> Any:
    return config_lib.load(f"configs/{self.file}.py", self.variant)

  def drawn(self, config: Any) -> float:
    """The share of an episode that the model writes."""
    return 0.5 if self.searches else min(0.5, config.rollout.max_new_tokens / (FILL * config.rollout.context))


RUNS = {
  "search_r1": Run("search_r1", searches=True, note="GRPO"),
  "veritas": Run("veritas", searches=True, note="PPO with a critic of its own; search_r1:ppo has the same sizes"),
  "care": Run("care"),
  "arena": Run("arena"),
  "lear": Run("lear"),
  "when_to_search": Run("when_to_search", searches=True, note="DAPO, no reference; before dynamic sampling"),
}

# The cases to compile, the most informative first: each recipe once, each model and slice, one recipe over all slices.
COMPILED = (
  ("qwen2.5-7b", "search_r1", "v5e-64"),
  ("qwen2.5-7b", "arena", "v6e-64"),
  ("qwen2.5-7b", "veritas", "v5p-64"),
  ("qwen2.5-14b", "care", "v5p-512"),
  ("qwen3-8b", "when_to_search", "v5p-512"),
  ("qwen3-4b", "care", "v5e-256"),
  ("qwen2.5-7b", "search_r1", "v5e-256"),
  ("qwen2.5-7b", "search_r1", "v6e-64"),
  ("qwen2.5-7b", "search_r1", "2 × v5e-256"),
  ("qwen2.5-7b", "search_r1", "v5p-512"),
  ("llama-3.1-8b", "lear", "v6e-64"),
  ("qwen2.5-14b", "search_r1", "v6e-64"),
  ("qwen3-4b", "when_to_search", "v6e-64"),
  ("llama-3.1-8b", "arena", "v5p-64"),
  ("qwen3-8b", "lear", "v5e-64"),
  ("qwen2.5-7b", "search_r1", "v5p-64"),
  ("qwen2.5-14b", "veritas", "v5p-512"),
  ("qwen2.5-7b", "care", "v5e-64"),
  ("qwen3-8b", "arena", "v5e-256"),
  ("llama-3.1-8b", "care", "v6e-64"),
  ("qwen2.5-7b", "search_r1", "8 × H200"),
  ("qwen2.5-7b", "arena", "8 × H100"),
  ("qwen2.5-7b", "when_to_search", "8 × H200"),
  ("qwen2.5-14b", "search_r1", "16 × H200"),
  ("llama-3.1-8b", "lear", "16 × H100"),
)


CHOSEN = [field.name for field in dataclasses.fields(search.Choice) if field.name != "axes"]


def choice_of(row: Mapping[str, Any]) -> search.Choice:
  """The plan that a stored row was compiled with."""
  return search.Choice(search.Axes(**row["axes"]), **{name: row[name] for name in CHOSEN})


def load_of(run: str) -> workload.Load:
  """The tokens of a recipe's step."""
  config = RUNS[run].config()
  return workload.load(config, fill=FILL, drawn=RUNS[run].drawn(config))


def plan(model: str, run: str, where: str, refused: frozenset[search.Choice] = frozenset(), *, kv_dtype: str = "model"):
  """(choice, report) of the best plan by arithmetic, with this config.rollout.kv_dtype; None if nothing fits."""
  config = RUNS[run].config()
  config.rollout.kv_dtype = kv_dtype
  return search.best(
    config, SHAPES[model], SLICES[where], margin=MARGIN, fill=FILL, drawn=RUNS[run].drawn(config), refused=refused
  )


def least(model: str, run: str, where: str) -> float:
  """Bytes per chip of the smallest plan."""
  return search.least(RUNS[run].config(), SHAPES[model], SLICES[where])


def estimate(model: str, run: str, where: str, choice: search.Choice):
  """The arithmetic's report on one plan."""
  config = RUNS[run].config()
  return estimate_lib.estimate(
    choice.into(config), SHAPES[model], SLICES[where], fill=FILL, drawn=RUNS[run].drawn(config)
  )


def missing(rows: Sequence[Mapping[str, Any]], level: str, *, on_gpus: bool = True) -> dict[str, Any] | None:
  """The next row to compile; None if all are compiled.

  Args:
    rows: those that are compiled.
    level: jax_optimization_level for TPUs. GPUs' programs are compiled as a run compiles them: for GPUs a level adds
      passes, and with those of O1 one program ends the compiler.
    on_gpus: whether GPUs' cases are compiled, too.
  """
  for model, run, where in COMPILED:
    of_gpus = gpus.is_gpu(SLICES[where].topology)
    if of_gpus and not on_gpus:
      continue
    mine = [row for row in rows if (row["model"], row["run"], row["slice"]) == (model, run, where)]
    if any(row.get("report", {}).get("fits") for row in mine) or len(mine) >= TRIES:
      continue
    result = plan(model, run, where, frozenset(choice_of(row) for row in mine))
    if result is not None:
      choice, _ = result
      return dict(
        model=model,
        run=run,
        slice=where,
        axes=dataclasses.asdict(choice.axes),
        **{name: getattr(choice, name) for name in CHOSEN},
        level="UNKNOWN" if of_gpus else level,
      )
  return None
