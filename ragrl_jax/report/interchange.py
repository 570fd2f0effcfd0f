"""Writes episodes in formats that other programs read: one flat JSON object each, or ATIF trajectories.

The flat format has

    run step prompt_index sample version    identify the episode; an evaluation's episodes have only run and version
    id question golds source hops           the example
    messages                                {"role", "content"} in order: "user" for a prompt or a notice, "assistant"
                                            for the model, "tool" for a search result, with its "query" and the ids of
                                            its "passages"; "conversation", from 0, if an episode has several
    reward outcome advantage terms weights  as in the log
    verdicts                                questions to judges and other models, with their answers
    ended failure                           why the episode ended

ATIF is Harbor's Agent Trajectory Interchange Format, version 1.7 (harborframework.com/docs/trajectory-format). A step
of the agent has token ids and log-probabilities if the log has them. The ids of its prompt are all ids before the step.
"""

import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ragrl_jax
from ragrl_jax import structs
from ragrl_jax.report import page as page_lib
from ragrl_jax.store import episodes, jsonl

ATIF = "ATIF-v1.7"
_QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
SEARCH = {
  "type": "function",
  "function": {"name": "search", "description": "Searches the corpus.", "parameters": _QUERY},
}
_THOUGHT = re.compile(r"\s*<think>(.*?)</think>\s*(.*)", re.DOTALL)
_SCORES = ("reward", "outcome", "advantage", "terms", "weights")


def write(folder: str | pathlib.Path, form: str, out: str | pathlib.Path) -> int:
  """Writes all stored episodes of a run or of an evaluation, one JSON object per line. Returns their number.

  Args:
    form: a key of FORMS.
    out: the file to write. After a kill it is either complete or missing.

  Raises:
    FileNotFoundError: the folder has no episodes.
    ValueError: a file in the folder is damaged.
  """
  folder, number = pathlib.Path(folder), 0
  facts, kept = described(folder), episodes.read_folder(folder)

  def rows() -> Iterator[dict[str, Any]]:
    nonlocal number
    for row in kept:
      number += 1
      yield FORMS[form](row, facts)

  jsonl.write(out, rows())
  return number


def described(folder: pathlib.Path) -> dict[str, str]:
  """{"run", "recipe", "preset", "model"} of a run or an evaluation; a value that its files lack is ""."""
  config = jsonl.read_object(folder / "config.json")
  if config:
    model = page_lib.model_of(config.get("model") or {})
  else:
    config = jsonl.read_object(folder / "settings.json")
    model = str(config.get("checkpoint") or config.get("model") or "")
  names = {name: str(config.get(name) or "") for name in ("recipe", "preset")}
  # Only the last two parts of a path: the rest tells where files are on this machine.
  return {"run": folder.resolve().name, **names, "model": "/".join(pathlib.PurePath(model).parts[-2:])}


def flat(row: Mapping[str, Any], about: Mapping[str, str]) -> dict[str, Any]:
  """An episode in the flat format (see the module's docstring)."""
  keys = {name: row[name] for name in ("step", "prompt_index", "sample", "version") if name in row}
  question_fields = {name: row[name] for name in ("id", "question", "golds", "source", "hops")}
  several = len(_conversations(row)) > 1
  messages = []
  for number, segments in enumerate(_conversations(row)):
    for segment in segments:
      messages.append(_message(segment) | ({"conversation": number} if several else {}))
  scores = {name: row[name] for name in _SCORES if name in row}
  ends = {"verdicts": row["facts"], "ended": row["ended"], "failure": row["failure"]}
  return {"run": about["run"], **keys, **question_fields, "messages": messages, **scores, **ends}


def atif(row: Mapping[str, Any], about: Mapping[str, str]) -> dict[str, Any]:
  """An episode as an ATIF trajectory. Conversations after the first are embedded as trajectories of subagents.

  A thought in <think> at the beginning of a turn becomes its `reasoning_content`; the rest of the turn is its message.
  """
  place = [f"{name} {row[name]}" for name in ("step", "prompt_index", "sample") if name in row]
  name = ", ".join([*place, f"id {row['id']}"])
  first, *others = (
    _trajectory(segments, about, f"{name}{f', conversation {number}' if number else ''}")
    for number, segments in enumerate(_conversations(row))
  )
  keys = ("version", "id", "question", "golds", "source", "hops", "gold_ids", "ended", "failure", "facts")
  first["extra"] = {"run": about["run"]} | {name: row[name] for name in keys if name in row}
  if scores := {name: row[name] for name in _SCORES if name in row}:
    first["final_metrics"]["extra"] = scores
  if others:
    first["subagent_trajectories"] = others
  return first


FORMS: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, str]], dict[str, Any]]] = {"jsonl": flat, "atif": atif}


def _conversations(row: Mapping[str, Any]) -> list[Sequence[Mapping[str, Any]]]:
  """The segments of each conversation of an episode."""
  edges = (0, *row.get("starts", ()), len(row["segments"]))
  return [row["segments"][start:end] for start, end in zip(edges, edges[1:])]


def _searched(segment: Mapping[str, Any]) -> bool:
  return segment.get("query") is not None or segment.get("found") is not None


def _message(segment: Mapping[str, Any]) -> dict[str, Any]:
  if segment["owner"] == structs.MODEL:
    return {"role": "assistant", "content": segment["text"]}
  text = "".join(episodes.parts(segment))  # as the model saw it, with control tokens
  if not _searched(segment):
    return {"role": "user", "content": text}
  passages = [passage["id"] for passage in segment.get("found") or ()]
  return {"role": "tool", "content": text, "query": segment.get("query"), "passages": passages}


def _trajectory(segments: Sequence[Mapping[str, Any]], about: Mapping[str, str], name: str) -> dict[str, Any]:
  """One conversation as a trajectory."""
  steps: list[dict[str, Any]] = []
  before: list[int] = []
  calls = 0
  for segment in segments:
    ids = segment.get("ids", [])
    if segment["owner"] == structs.MODEL:
      steps.append({"step_id": len(steps) + 1, "source": "agent", **_said(segment), "llm_call_count": 1})
      if ids:
        steps[-1]["metrics"] = _metrics(segment, before)
    elif steps and steps[-1]["source"] == "agent":
      calls += _searched(segment)
      _observed(steps[-1], segment, f"call_{calls}")
    else:
      steps.append({"step_id": len(steps) + 1, "source": "user", "message": "".join(episodes.parts(segment))})
    before += ids
  agent = {"name": about["recipe"] or "unknown", "version": ragrl_jax.__version__}
  agent |= {"model_name": about["model"]} if about["model"] else {}
  agent |= {"tool_definitions": [SEARCH]} if calls else {}
  agent |= {"extra": {"library": "ragrl_jax", "preset": about["preset"]}}
  names = {"schema_version": ATIF, "session_id": about["run"], "trajectory_id": name}
  return names | {"agent": agent, "steps": steps, "final_metrics": _totals(steps)}


def _said(segment: Mapping[str, Any]) -> dict[str, Any]:
  match = _THOUGHT.fullmatch(segment["text"])
  return {"message": match[2], "reasoning_content": match[1].strip()} if match else {"message": segment["text"]}


def _metrics(segment: Mapping[str, Any], before: Sequence[int]) -> dict[str, Any]:
  ids, logprobs = segment["ids"], segment.get("logprobs") or []
  metrics = {"prompt_tokens": len(before), "completion_tokens": len(ids)}
  metrics |= {"prompt_token_ids": list(before), "completion_token_ids": list(ids)}
  has_all = len(logprobs) == len(ids) and None not in logprobs  # null is a value that was not finite
  return metrics | ({"logprobs": list(logprobs)} if has_all else {})


def _observed(step: dict[str, Any], segment: Mapping[str, Any], call: str) -> None:
  """Adds an answer of the environment to the agent's step. A search is a call of the tool `search`."""
  result: dict[str, Any] = {"content": "".join(episodes.parts(segment))}
  if _searched(segment):
    query = {"query": segment["query"]} if segment.get("query") is not None else {}
    step.setdefault("tool_calls", []).append({"tool_call_id": call, "function_name": "search", "arguments": query})
    passages = [{name: passage[name] for name in ("id", "title", "score")} for passage in segment.get("found") or ()]
    result = {"source_call_id": call, **result, "extra": {"passages": passages}}
  step.setdefault("observation", {"results": []})["results"].append(result)


def _totals(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  with_metrics = [step["metrics"] for step in steps if "metrics" in step]
  total = lambda name: sum(metrics[name] for metrics in with_metrics)
  totals = {f"total_{name}": total(name) for name in ("prompt_tokens", "completion_tokens")} if with_metrics else {}
  return {**totals, "total_steps": len(steps)}
