"""A bounded share of a run's episode logs, in the form the page's browser reads."""

import json
import os
from collections.abc import Mapping
from typing import Any

from ragrl_jax import structs
from ragrl_jax.evaluation import tables
from ragrl_jax.store import episodes, jsonl

MAX_STEPS = 16


def excerpt(workdir: str | os.PathLike, *, max_episodes: int = 480, max_bytes: int = 12_000_000) -> dict[str, Any]:
  """Chooses steps evenly over the run, first and last among them, and whole groups in the order they were drawn.

  Every chosen step gives one group, then each a second, and so on, until the next group would pass a limit. One group
  is always taken, however big.

  Returns:
    {"steps": [{"step", "groups": [...], "in_file": groups}], "logged": steps with a log, "taken": episodes}.
  """
  files = episodes.steps(workdir)
  count = min(len(files), MAX_STEPS, max(1, max_episodes))
  places = sorted({round(i * (len(files) - 1) / max(1, count - 1)) for i in range(count)}) if files else []
  chosen = [list(files)[place] for place in places]
  # Enough for an even share of the episodes, were every group of two samples; the rest is dropped as it is read.
  most = max(1, max_episodes // max(1, 2 * len(chosen)))
  read = {step: _groups(files[step], most, 2 * max_bytes // len(chosen)) for step in chosen}
  taken, used, spent = {step: [] for step in chosen}, 0, 0
  rounds = range(max((len(groups) for groups, _ in read.values()), default=0))
  for place, step in ((place, step) for place in rounds for step in chosen if place < len(read[step][0])):
    group = read[step][0][place]
    size = len(json.dumps(group))
    if used and (used + len(group["samples"]) > max_episodes or spent + size > max_bytes):
      break
    taken[step].append(group)
    used, spent = used + len(group["samples"]), spent + size
  return {"steps": [{"step": step, "groups": taken[step], "in_file": read[step][1]} for step in chosen if taken[step]],
          "logged": len(files), "taken": used}


def _groups(path, most: int, most_bytes: int) -> tuple[list[dict[str, Any]], int]:
  """The first groups of a file, and how many it has. Rows of further groups are not kept: a file may be huge."""
  groups: dict[int, dict[str, Any]] = {}
  seen, spent = set(), 0
  for row in jsonl.read(path):
    index = row["prompt_index"]
    seen.add(index)
    if index not in groups:
      if len(groups) == most or spent > most_bytes:
        continue
      groups[index] = {
        "prompt_index": index, "id": row["id"], "question": row["question"], "golds": row["golds"],
        "hops": row.get("hops"), "source": row.get("source") or "", "prompt": _prompt(row), "samples": []}
    sample = compact(row)
    spent += len(json.dumps(sample))
    groups[index]["samples"].append(sample)
  for group in groups.values():
    group["samples"].sort(key=lambda sample: sample["sample"])
  return list(groups.values()), len(seen)


def _prompt(row: Mapping[str, Any]) -> dict[str, Any]:
  first = row["segments"][0]
  return {"text": first["text"], "tokens": len(first["ids"])}


def compact(row: Mapping[str, Any]) -> dict[str, Any]:
  """One row without its ids and its prompt, numbers at three digits, each search with its gold passages marked."""
  golds = set(row.get("gold_ids") or ())
  verdicts = iter(tables.searches(row))
  segments = []
  for segment in row["segments"][1:]:
    item = {"owner": segment["owner"], "tokens": len(segment["ids"])}
    if segment["owner"] == structs.MODEL:
      item["stop"] = segment.get("stop", "")
      item |= {"pieces": segment["pieces"]} if "pieces" in segment else {"text": segment["text"]}
      item["logprobs"] = [_round(value) for value in segment["logprobs"]]
      if "advantages" in segment:
        item["advantages"] = [_round(value) for value in segment["advantages"]]
    else:
      item["text"] = segment["text"]
      item["query"] = segment.get("query")
      if segment.get("found") is not None:
        item["found"] = [passage | {"gold": passage["id"] in golds} for passage in segment["found"]]
        item["verdict"] = next(verdicts)
    segments.append(item)
  kept = ("sample", "version", "ended", "failure", "facts")
  return {name: row[name] for name in kept} | {
    "reward": _round(row["reward"]), "outcome": row["outcome"], "advantage": _round(row["advantage"]),
    "terms": {name: _round(value) for name, value in row["terms"].items()}, "weights": row["weights"],
    "segments": segments}


def _round(value):
  return None if value is None else float(f"{value:.3g}")
