"""Judges of pairs (premise, claim): `load(settings).judge(pairs)`; `of_terms` makes all judges of a run."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragrl_jax import settings as settings_lib
from ragrl_jax.judging import prompts
from ragrl_jax.judging.judge_api import Cached, Judge, references

__all__ = ["Judge", "check_of_answers", "chosen", "load", "of_steps", "of_terms", "references"]

WORDS = ("exact", "sub_em", "sub_em_words", "lexical")  # kinds that compare words and need no model
ASKED = ("llm", "reward_model")  # kinds that are asked a question in words


def load(
  settings: settings_lib.Judge,
  *,
  dtype: str = "float32",
  mesh: Any = None,
  dispatch: Callable[..., Any] | None = None,
  decoders: dict[Any, Any] | None = None,
) -> Judge | None:
  """Loads the judge of config.judge; None for "none".

  If the prompt judges answers (`prompts.Prompt.of_answers`), the judge is not asked about exact matches. Its verdicts
  are stored in the file `cache`, if config.judge names one.

  Args:
    dispatch: `dispatch(function, *arguments)` runs work on the accelerators; by default the calling thread does.
    decoders: reward models that other terms have loaded; a loaded one is added.

  Raises:
    ValueError: the judge cannot be loaded.
  """
  kind, prompt = settings.kind, prompts.get(settings.prompt)
  if kind == "none":
    return None
  judge = _make(kind, settings, dict(dtype=dtype, mesh=mesh, dispatch=dispatch), {} if decoders is None else decoders)
  if kind in WORDS:  # cheaper than a look-up in the cache
    return judge
  if settings.cache:
    judge = Cached(judge, settings.cache, **({} if kind == "llm" or dtype == "float32" else dict(dtype=dtype)))
  if prompt.of_answers and kind in ASKED:
    from ragrl_jax.judging.lexical import ExactFirst

    judge = ExactFirst(judge)
  return judge


def of_terms(
  settings: settings_lib.Judge, by_term: Mapping[str, Mapping[str, Any]], terms: Sequence[str] = (), **local: Any
) -> dict[str, Judge]:
  """The judges of a run by reward term, with the judge of config.judge under "".

  Terms with the same settings share one judge, and reward models that differ in their question share the weights.

  Args:
    by_term: config.judges: term → fields that override config.judge's for this term; None keeps a field.
    terms: the terms that the recipe has judged (`Recipe.judged`). Judges of other terms are not loaded.
    **local: keyword arguments of `load`.

  Raises:
    ValueError: see `load` and `chosen`.
  """
  return _load_judges(chosen(settings, by_term, terms), local)


def of_steps(
  settings: settings_lib.Judge, by_term: Mapping[str, Mapping[str, Any]], terms: Sequence[str], **local: Any
) -> dict[str, Judge]:
  """As `of_terms`, without the judge of config.judge, which need not be loadable."""
  settings_of = chosen(settings, by_term, terms)
  del settings_of[""]
  return _load_judges(settings_of, local)


def _load_judges(by_term: Mapping[str, settings_lib.Judge], local: Mapping[str, Any]) -> dict[str, Judge]:
  loaded, judges, local = [], {}, {**local, "decoders": {}}
  for term, its in by_term.items():
    judge = next((judge for past, judge in loaded if past == its), None)
    if judge is None and (judge := load(its, **local)) is not None:
      loaded.append((its, judge))
    if judge is not None:
      judges[term] = judge
  return judges


def chosen(
  settings: settings_lib.Judge, by_term: Mapping[str, Mapping[str, Any]], terms: Sequence[str] = ()
) -> dict[str, settings_lib.Judge]:
  """The settings of each judge of a run, by term, with config.judge's under "". Loads nothing.

  A term of `prompts.TERMS` is asked its own question: that of config.judges.TERM.prompt; without
  one, that of config.judge.prompt if it is about this term, as information_think_bare is about information_think; else
  the one named like the term. Other terms are asked config.judge.prompt. A wording belongs to the question that it was
  given for: config.judge.wording to config.judge.prompt, unless it is a folder, which has a file for each question.

  Args:
    settings, by_term, terms: see `of_terms`.

  Raises:
    ValueError: a field that config.judge does not have; a question or a kind that is not about the term; or a
      wording that no judge is asked in.
  """
  names = {field.name for field in dataclasses.fields(settings)}
  result = {}
  for term in ("", *terms):
    changed = {field: value for field, value in by_term.get(term, {}).items() if value is not None}
    if unknown := sorted(changed.keys() - names):
      raise ValueError(f"config.judges.{term} sets {', '.join(unknown)}: use fields of config.judge.")
    its = dataclasses.replace(settings, **changed)
    if term in prompts.TERMS:
      if not changed.get("prompt") and not its.prompt.startswith(term):
        its = dataclasses.replace(its, prompt=term)
      _check_term(term, its)
    if "wording" not in changed and its.prompt != settings.prompt and not prompts.is_folder(its.wording):
      its = dataclasses.replace(its, wording="")
    result[term] = its
  _check_wordings(settings, by_term, result)
  return result


def check_of_answers(settings: settings_lib.Judge, why: str = "") -> None:
  """Raises a ValueError, which begins with `why`, if config.judge does not compare an answer with the right ones."""
  kind, prompt = settings.kind, settings.prompt
  if kind in ("none", "sub_em", "sub_em_words", "lexical"):
    does = "judges no answers" if kind == "none" else "compares an answer with a thought, not with the right answers"
    raise ValueError(f"{why}config.judge.kind={kind!r} {does}: use llm, reward_model, nli or exact.")
  if kind != "exact" and not prompts.get(prompt).of_answers:
    prompt_names = ", ".join(name for name, prompt in prompts.PROMPTS.items() if prompt.of_answers)
    raise ValueError(f"{why}config.judge.prompt={prompt!r} does not judge answers: use one of {prompt_names}.")


def _check_term(term: str, its: settings_lib.Judge) -> None:
  if its.kind == "exact":
    raise ValueError(
      f"the judge of {term} is of kind 'exact', which compares an answer with right answers, but {term} has another "
      f"question: choose another kind (config.judge.kind, config.judges.{term}.kind)."
    )
  if prompts.get(its.prompt).of_answers or not its.prompt.startswith(term):
    raise ValueError(
      f"config.judges.{term}.prompt={its.prompt!r}: this is not the question of {term}. Use {term!r}, or leave it out."
    )


def _check_wordings(settings, by_term, found) -> None:
  """Refuses a wording in which nothing is asked."""
  for term, its in found.items():
    wording = by_term.get(term, {}).get("wording") if term else settings.wording
    if not wording or prompts.is_folder(wording):
      continue
    candidates = {name: judge for name, judge in found.items() if name == term or (name and not term)}
    if not term and len(candidates) > 1:  # config.judge itself is not asked if the terms have judges
      del candidates[""]
    if not any(judge.kind in (*ASKED, "none") and judge.wording == wording for judge in candidates.values()):
      listing = ", ".join(
        f"{name or 'config.judge'}: {judge.kind}" + f" asks {judge.prompt!r}" * (judge.kind in ASKED)
        for name, judge in candidates.items()
      )
      raise ValueError(
        f"config.{f'judges.{term}' if term else 'judge'}.wording={wording}: this is a wording of the question "
        f"{its.prompt!r}, but nothing is asked in it ({listing}). Give it to the term that it is for "
        "(config.judges.TERM.wording), or name a folder with a file QUESTION.txt for each question."
      )


def _make(kind: str, settings: settings_lib.Judge, here: Mapping[str, Any], decoders: dict[Any, Any]) -> Judge:
  fields = lambda *names: {name: getattr(settings, name) for name in names}
  if kind == "llm":
    from ragrl_jax.judging.llm import LLM

    return LLM(
      **fields("model", "prompt", "wording", "endpoint", "key_variable", "timeout_s", "retries", "concurrency")
    )
  if kind in WORDS:
    from ragrl_jax.judging import lexical

    if kind == "lexical":
      return lexical.Lexical(settings.threshold)
    return lexical.Exact() if kind == "exact" else lexical.SubEM(words=kind == "sub_em_words")
  local = fields("threshold", "batch", "max_tokens") | dict(here)
  from ragrl_jax.judging.local import NLI, RewardModel

  if kind == "nli":
    return NLI(settings.path, **local)
  labels = prompts.get(settings.prompt).labels
  key = (settings.path, labels, settings.threshold, settings.batch, settings.max_tokens)
  if (decoder := decoders.get(key)) is None:
    decoder = decoders[key] = RewardModel(settings.path, **fields("prompt", "wording"), **local)
  return decoder.asking(settings.prompt, settings.wording)
