"""Reinforcement learning that teaches language models to use retrieved documents, in JAX.

    import ragrl_jax

    config = ragrl_jax.Config("arena:smoke")             # every setting; Config() has the defaults
    config.data.train = "TRAIN.jsonl"
    for row in ragrl_jax.train(config, "out/run"):       # a row of metrics per step
      print(row["step"], row["reward"])
    ragrl_jax.evaluate(None, "out/run", "DEV.jsonl", "out/dev")    # None: the run's own settings
    [(answer, episode)] = ragrl_jax.ask("out/run", ["Who was it?"])

Each name is imported when it is first used, so that `import ragrl_jax` takes no time.
"""

import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from ragrl_jax import recipes, testing
  from ragrl_jax.config import load as Config
  from ragrl_jax.jobs.checkpoints import ask
  from ragrl_jax.jobs.evaluate import evaluate, evaluator
  from ragrl_jax.jobs.sft import sft
  from ragrl_jax.jobs.train import train
  from ragrl_jax.retrieval import load_index
  from ragrl_jax.structs import Episode, Example, Passage

__version__ = "0.3.0"
__all__ = ["Config", "Episode", "Example", "Passage", "ask", "evaluate", "evaluator", "load_index"]
__all__ += ["recipes", "sft", "testing", "train"]

_PLACES = {
  "Config": "config:load",
  "Episode": "structs:Episode",
  "Example": "structs:Example",
  "Passage": "structs:Passage",
  "ask": "jobs.checkpoints:ask",
  "evaluate": "jobs.evaluate:evaluate",
  "evaluator": "jobs.evaluate:evaluator",
  "load_index": "retrieval:load_index",
  "recipes": "recipes",
  "sft": "jobs.sft:sft",
  "testing": "testing",
  "train": "jobs.train:train",
}


def __getattr__(name: str) -> Any:
  if name not in _PLACES:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  return pkgutil.resolve_name(f"{__name__}.{_PLACES[name]}")


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
