"""Reinforcement learning that teaches language models to use retrieved documents, in JAX.

    import ragrl_jax

    def reward(example, episode):
      return float(example.golds[0] in episode.model_text)

    run = ragrl_jax.train(model="MODEL", questions="TRAIN.jsonl", corpus="DOCUMENTS", reward=reward, steps=100)
    ragrl_jax.evaluate(run, "DEV.jsonl", "out/dev")
    [(answer, episode)] = ragrl_jax.ask(run, ["Who was it?"])

Each name is imported when it is first used, so that `import ragrl_jax` takes no time.
"""

import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from ragrl_jax import recipes, testing
  from ragrl_jax.config import load as Config
  from ragrl_jax.jobs.checkpoints import ask
  from ragrl_jax.jobs.from_python import compare, evaluate, probe, sft, train
  from ragrl_jax.retrieval import load_index
  from ragrl_jax.structs import Episode, Example, Passage

__version__ = "0.3.0"
__all__ = ["Config", "Episode", "Example", "Passage", "ask", "compare", "evaluate", "load_index"]
__all__ += ["probe", "recipes", "sft", "testing", "train"]

_PLACES = {
  "Config": "config:load",
  "Episode": "structs:Episode",
  "Example": "structs:Example",
  "Passage": "structs:Passage",
  "ask": "jobs.checkpoints:ask",
  "compare": "jobs.from_python:compare",
  "evaluate": "jobs.from_python:evaluate",
  "load_index": "retrieval:load_index",
  "probe": "jobs.from_python:probe",
  "recipes": "recipes",
  "sft": "jobs.from_python:sft",
  "testing": "testing",
  "train": "jobs.from_python:train",
}


def __getattr__(name: str) -> Any:
  if name not in _PLACES:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  return pkgutil.resolve_name(f"{__name__}.{_PLACES[name]}")


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
