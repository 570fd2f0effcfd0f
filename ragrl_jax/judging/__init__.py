"""Judging pairs (premise, claim): `load(settings).judge(pairs)`; `of_terms` makes a run's judges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import config_dict

from ragrl_jax.judging import prompts
from ragrl_jax.judging.api import Judge, references

__all__ = ["KINDS", "Judge", "chosen", "load", "of_terms", "references", "unset"]

KINDS = ("none", "exact", "lexical", "nli", "llm", "reward_model")


def load(
  settings: Mapping[str, Any], *, dtype: str = "float32", mesh: Any = None, dispatch: Callable[..., Any] | None = None
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


def of_terms(
  settings: Mapping[str, Any], by_term: Mapping[str, Mapping[str, Any]], terms: Sequence[str] = (), **here: Any
) -> dict[str, Judge]:
  """The judges of a run: that of config.judge under "", and those of the terms.

  Terms with the same settings share their judge.

  Args:
    settings: config.judge.
    by_term: config.judges: term → fields of config.judge that are others for it; None leaves a field as it is.
    terms: those that the recipe asks for by name (`Recipe.judged`); for others no weights are loaded.
    **here: `load`'s.

  Raises:
    ValueError: see `load`; a field that is none of config.judge's.
  """
  made, judges = [], {}
  for term, its in chosen(settings, by_term, terms).items():
    judge = next((judge for known, judge in made if known == its), None)
    if judge is None and (judge := load(its, **here)) is not None:
      made.append((its, judge))
    if judge is not None:
      judges[term] = judge
  return judges


def chosen(
  settings: Mapping[str, Any], by_term: Mapping[str, Mapping[str, Any]], terms: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
  """The settings of each judge of a run, by term; arguments and errors are those of `of_terms`. Nothing is loaded."""
  found = {}
  for term in ("", *terms):
    changed = {field: value for field, value in by_term.get(term, {}).items() if value is not None}
    if unknown := sorted(set(changed) - set(settings)):
      raise ValueError(f"config.judges.{term} sets {', '.join(unknown)}: use fields of config.judge.")
    found[term] = {**settings, **changed}
  return found


def unset(settings: Mapping[str, Any]) -> dict[str, Any]:
  """A term's part of config.judges: every field of config.judge by name, unset. Set one, there or on the command line
  (`--config.judges.TERM.FIELD=value`), and it overrides config.judge's for that term."""
  return {field: config_dict.placeholder(type(value)) for field, value in settings.items()}


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
