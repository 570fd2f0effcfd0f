"""Judging pairs (premise, claim): `load(settings).judge(pairs)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ragrl_jax.judging import prompts
from ragrl_jax.judging.api import Judge, references

__all__ = ["KINDS", "load", "references"]

KINDS = ("none", "exact", "lexical", "nli", "llm", "reward_model")


def load(
    settings: Mapping[str, Any], *, dtype: str = "float32", mesh: Any = None,
    dispatch: Callable[..., Any] | None = None,
) -> Judge | None:
  """The judge of config.judge; None for "none".

  One that is asked about answers (`prompts.Prompt.of_answers`) is spared those that are exactly right; what it says is
  kept in the file `cache`, if one is named.

  Args:
    settings: config.judge, all of its fields.
    dtype: of the weights and matmuls of judges that run here.
    mesh: the devices that share their weights.
    dispatch: runs what needs the accelerator, `dispatch(function, *arguments)`; by default it runs where it is called.

  Raises:
    ValueError: an unknown kind, or settings it cannot be made of.
  """
  kind, prompt = settings["kind"], prompts.get(settings["prompt"])
  if kind not in KINDS:
    raise ValueError(f"config.judge.kind={kind!r}: it must be one of {', '.join(KINDS)}.")
  if kind == "none":
    return None
  judge = _made(kind, settings, dict(dtype=dtype, mesh=mesh, dispatch=dispatch))
  if kind in ("exact", "lexical"):  # cheaper than asking a file
    return judge
  if settings["cache"]:
    from ragrl_jax.judging.cache import Cached
    judge = Cached(judge, settings["cache"])
  if prompt.of_answers and kind != "nli":
    from ragrl_jax.judging.lexical import ExactFirst
    judge = ExactFirst(judge)
  return judge


def _made(kind: str, settings: Mapping[str, Any], here: Mapping[str, Any]) -> Judge:
  chosen = lambda *names: {name: settings[name] for name in names}
  if kind == "llm":
    from ragrl_jax.judging.llm import LLM
    return LLM(**chosen("model", "prompt", "endpoint", "key_variable", "timeout_s", "retries", "concurrency"))
  if kind in ("exact", "lexical"):
    from ragrl_jax.judging import lexical
    return lexical.Exact() if kind == "exact" else lexical.Lexical(settings["threshold"])
  local = chosen("threshold", "batch", "max_tokens") | dict(here)
  if kind == "nli":
    from ragrl_jax.judging.nli import NLI
    return NLI(settings["path"], **local)
  from ragrl_jax.judging.reward_model import RewardModel
  return RewardModel(settings["path"], prompt=settings["prompt"], **local)
