"""Judges of pairs (premise, claim): `load(settings).judge(pairs)`; `of_terms` makes all judges of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import config_dict

from ragrl_jax import settings as settings_lib
from ragrl_jax.judging import prompts
from ragrl_jax.judging.judge_api import Judge, references

__all__ = ["KINDS", "Judge", "chosen", "load", "of_steps", "of_terms", "references", "unset"]

KINDS = settings_lib.JUDGES

WORDS = ("exact", "sub_em", "sub_em_words", "lexical")  # kinds that compare words and need no model


def load(
  settings: Mapping[str, Any], *, dtype: str = "float32", mesh: Any = None, dispatch: Callable[..., Any] | None = None
) -> Judge | None:
  """Loads the judge of config.judge; None for "none".

  If the prompt judges answers (`prompts.Prompt.of_answers`), the judge is not asked about exact matches. Its verdicts
  are stored in the file `cache`, if config.judge names one.

  Args:
    settings: all fields of config.judge.
    dtype: dtype of weights and matmuls, for judges that run in this process.
    mesh: the devices that share the weights.
    dispatch: `dispatch(function, *arguments)` runs work on the accelerators; by default the calling thread does.

  Raises:
    ValueError: an unknown kind, or invalid settings.
  """
  kind, prompt = settings["kind"], prompts.get(settings["prompt"], settings["wording"])
  if kind not in KINDS:
    raise ValueError(f"config.judge.kind={kind!r}: it must be one of {', '.join(KINDS)}.")
  if kind == "none":
    return None
  judge = _made(kind, settings, dict(dtype=dtype, mesh=mesh, dispatch=dispatch))
  if kind in WORDS:  # cheaper than a look-up in the cache
    return judge
  if settings["cache"]:
    from ragrl_jax.judging.verdict_cache import Cached

    judge = Cached(judge, settings["cache"])
  if prompt.of_answers and kind != "nli":
    from ragrl_jax.judging.lexical import ExactFirst

    judge = ExactFirst(judge)
  return judge


def of_terms(
  settings: Mapping[str, Any], by_term: Mapping[str, Mapping[str, Any]], terms: Sequence[str] = (), **here: Any
) -> dict[str, Judge]:
  """The judges of a run by reward term, with the judge of config.judge under "".

  Terms with the same settings share one judge.

  Args:
    settings: config.judge.
    by_term: config.judges: term → fields that override config.judge's for this term; None keeps a field.
    terms: the terms that the recipe has judged (`Recipe.judged`). Judges of other terms are not loaded.
    **here: keyword arguments of `load`.

  Raises:
    ValueError: see `load`; or a field that config.judge does not have.
  """
  return _loaded(chosen(settings, by_term, terms), here)


def of_steps(
  settings: Mapping[str, Any], by_term: Mapping[str, Mapping[str, Any]], terms: Sequence[str], **here: Any
) -> dict[str, Judge]:
  """The judges of the steps of episodes, by term. Arguments as for `of_terms`.

  A judge is asked with the prompt of config.judges.TERM.prompt; without one, with that of config.judge.prompt if it is
  of this term, as information_think_bare is of information_think; else with the prompt named like the term.

  Raises:
    ValueError: see `of_terms`; or the prompt of a term asks about right answers.
  """
  found = chosen(settings, by_term, terms)
  del found[""]
  for term, its in found.items():
    if not by_term.get(term, {}).get("prompt") and not its["prompt"].startswith(term):
      its["prompt"] = term
    if prompts.get(its["prompt"]).of_answers:
      raise ValueError(
        f"config.judges.{term}.prompt={its['prompt']!r}: it compares an answer with right answers, but {term} is about "
        f"two steps of an episode. Use {term!r}, or leave it out."
      )
  return _loaded(found, here)


def _loaded(by_term: Mapping[str, Mapping[str, Any]], here: Mapping[str, Any]) -> dict[str, Judge]:
  made, judges = [], {}
  for term, its in by_term.items():
    judge = next((judge for known, judge in made if known == its), None)
    if judge is None and (judge := load(its, **here)) is not None:
      made.append((its, judge))
    if judge is not None:
      judges[term] = judge
  return judges


def chosen(
  settings: Mapping[str, Any], by_term: Mapping[str, Mapping[str, Any]], terms: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
  """The settings of each judge of a run, by term. Loads nothing. Arguments and errors are those of `of_terms`."""
  found = {}
  for term in ("", *terms):
    changed = {field: value for field, value in by_term.get(term, {}).items() if value is not None}
    if unknown := sorted(set(changed) - set(settings)):
      raise ValueError(f"config.judges.{term} sets {', '.join(unknown)}: use fields of config.judge.")
    found[term] = {**settings, **changed}
  return found


def unset(settings: Mapping[str, Any]) -> dict[str, Any]:
  """A term's entry in config.judges: every field of config.judge, unset.

  A field that is set there, or by `--config.judges.TERM.FIELD=value`, overrides config.judge's for that term.
  """
  return {field: config_dict.placeholder(type(value)) for field, value in settings.items()}


def _made(kind: str, settings: Mapping[str, Any], here: Mapping[str, Any]) -> Judge:
  chosen = lambda *names: {name: settings[name] for name in names}
  if kind == "llm":
    from ragrl_jax.judging.llm import LLM

    return LLM(
      **chosen("model", "prompt", "wording", "endpoint", "key_variable", "timeout_s", "retries", "concurrency")
    )
  if kind in WORDS:
    from ragrl_jax.judging import lexical

    if kind == "lexical":
      return lexical.Lexical(settings["threshold"])
    return lexical.Exact() if kind == "exact" else lexical.SubEM(words=kind == "sub_em_words")
  local = chosen("threshold", "batch", "max_tokens") | dict(here)
  if kind == "nli":
    from ragrl_jax.judging.nli import NLI

    return NLI(settings["path"], **local)
  from ragrl_jax.judging.reward_model import RewardModel

  return RewardModel(settings["path"], **chosen("prompt", "wording"), **local)
