"""Builds the tools of episodes from a config: retriever, judges, encoder of queries."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from ragrl_jax import judging, retrieval
from ragrl_jax.judging import local, prompts
from ragrl_jax.models import hub
from ragrl_jax.recipes import steps
from ragrl_jax.recipes.recipe import Recipe
from ragrl_jax.retrieval import encoders
from ragrl_jax.rollout import dispatch, tools as tools_lib
from ragrl_jax.settings import Retrieval, Settings


def tools(
  config: Settings,
  recipe: Recipe,
  queue: dispatch.Dispatch,
  mesh: jax.sharding.Mesh | None = None,
  *,
  judged: Sequence[str] = (),
) -> tuple[Any, Mapping[str, judging.Judge], tools_lib.RetrievalTools]:
  """(retriever or None, judges by term, the tools of episodes that use them).

  Args:
    queue: to the thread that dispatches JAX programs.
    mesh: the devices of judges that run in this process.
    judged: terms that need a judge although the recipe asks none about them.
  """
  retriever = None
  if config.retrieval.index:
    # Searches come from a pool of threads. Encoders and on-device indexes must run on the thread that runs the engine.
    retriever = retrieval.load_index(config.retrieval.index, dispatch=queue.call, **remote(config.retrieval))
  terms = tuple(dict.fromkeys((*recipe.judged, *judged)))
  judges = judging.of_terms(
    config.judge, config.judges, terms, dtype=config.model.dtype, mesh=mesh, dispatch=queue.call
  )
  encode = _encode(config.retrieval.query_encoder, queue)
  episode_tools = tools_lib.RetrievalTools(
    retriever, top_k=config.retrieval.top_k, timeout_s=_longest(config.retrieval), judges=judges, encode=encode
  )
  return retriever, judges, episode_tools


def _encode(folder: str, queue: dispatch.Dispatch):
  """Texts → vectors, computed on the thread that runs the engine; None without an encoder."""
  if not folder:
    return None
  encoder = encoders.load_model(folder, setting="config.retrieval.query_encoder")
  return lambda texts: queue.call(encoder.queries, list(texts))


def _longest(settings: Retrieval) -> float:
  """Longest duration of a search in seconds: its calls, the wait for a retriever that is down, and a last call.

  A search in this process may have to wait for the accelerator, as a local judge may.
  """
  longest = settings.timeout_s * (settings.retries + 2) + settings.wait_s * bool(remote(settings))
  in_process = bool(settings.query_encoder) or not settings.index.startswith(("http://", "https://"))
  return max(longest, local.DEADLINE_S) if in_process else longest


def remote(settings: Retrieval) -> dict[str, Any]:
  """The arguments of `load_index` for a server, or for FUSED.json, which may name some; else {}.

  Raises:
    ValueError: the environment variable that should hold its token is empty.
  """
  if not retrieval.is_served(settings.index) and not settings.index.endswith(".json"):
    return {}
  key = os.environ.get(settings.key_variable, "")
  if settings.key_variable and not key:
    raise ValueError(
      f"the environment variable {settings.key_variable!r} holds no token (config.retrieval.key_variable)."
    )
  return dict(timeout_s=settings.timeout_s, retries=settings.retries, wait_s=settings.wait_s, key=key)


def check_judges(config: Settings, terms: Sequence[str]) -> None:
  """Raises a ValueError if a judge's settings are invalid, or a term has none. Loads nothing."""
  all_terms = {*terms, *steps.TERMS}  # `ragrl faithfulness` asks the latter of any recipe's episodes
  if unknown := sorted(set(config.judges) - all_terms):
    raise ValueError(
      f"config.judges.{unknown[0]}: no judge is asked for this term. Terms are {', '.join(sorted(all_terms))}."
    )
  for term, judge in judging.chosen(config.judge, config.judges, terms).items():
    if term and judge.kind == "none":
      raise ValueError(f"the recipe asks a judge about {term}: set config.judge.kind, or config.judges.{term}.kind.")
    if judge.kind in judging.ASKED:
      wording = term and config.judges.get(term, {}).get("wording")
      prompts.get(
        judge.prompt, judge.wording, setting=f"config.judges.{term}.wording" if wording else "config.judge.wording"
      )
    section = f"config.judges.{term}" if term else "config.judge"
    if judge.kind == "llm" and not judge.model:
      raise ValueError(f"{section}.model is empty: name the model that the judge's server is to use.")
    if judge.kind in ("nli", "reward_model"):
      if not judge.path:
        raise ValueError(f"{section}.path is empty: name the judge's model, a folder or OWNER/NAME on the hub.")
      hub.folder(judge.path, f"{section}.path", part="config")
