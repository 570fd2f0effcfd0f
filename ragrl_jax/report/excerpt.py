"""A part of a run's episode logs, limited in bytes, in the format of the page's episode browser."""

import dataclasses
import json
import os
import pathlib
import zlib
from collections.abc import Mapping
from typing import Any

from ragrl_jax import structs
from ragrl_jax.core.metrics import searches, stats
from ragrl_jax.store import episodes, jsonl

MAX_STEPS = 32
MAX_BYTES = 12_000_000


def excerpt(workdir: str | os.PathLike, *, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
  """Chooses steps evenly over the run, with the first and the last, and whole groups in the order of their draw.

  Groups of the last step are taken first, up to half of max_bytes. Then one group is taken from each step, then a
  second one from each, and so on, until the next group does not fit. The first group is always taken.

  Args:
    max_bytes: size of the episodes in the page, if each is compressed on its own. The page compresses all episodes of a
      step together, to about half of this size.

  Returns:
    {"steps": [{"step", "file", "groups": [...], "episodes", "taken", "reward", "outcome"}], "logged": number of steps
    with a log, "episodes", "taken"}. A chosen step lists all its groups; `samples` is None for groups of which only the
    summary is taken. Reward and outcome are means over the whole file.
  """
  files = episodes.steps(workdir)
  count = min(len(files), MAX_STEPS)
  places = sorted({round(i * (len(files) - 1) / max(1, count - 1)) for i in range(count)})
  steps_taken = [list(files)[place] for place in places]
  even = 2 * max_bytes // max(1, count)
  read = {step: _read(files[step], max_bytes if step == steps_taken[-1] else even) for step in steps_taken}
  _take(list(read.values()), max_bytes)
  steps = [_step(step, files[step], read[step]) for step in steps_taken]
  totals = {name: sum(step[name] for step in steps) for name in ("episodes", "taken")}
  return {"steps": steps, "logged": len(files)} | totals


@dataclasses.dataclass
class _Group:
  """A group while its file is read: its summary, and its samples as compressed JSON (None if they do not fit)."""

  about: dict[str, Any]
  prompt: dict[str, Any]
  ends: list[tuple[Any, Any, str]] = dataclasses.field(default_factory=list)  # (reward, outcome, ended) of each sample
  samples: list[bytes] | None = dataclasses.field(default_factory=list)
  taken: bool = False

  @property
  def size(self) -> int:
    """Size in the page, in bytes; base64 turns three bytes into four."""
    return sum(map(len, self.samples)) * 4 // 3


def _read(path: pathlib.Path, most_bytes: int) -> list[_Group]:
  """The groups of a file, in its order. Groups that begin beyond `most_bytes` lose their samples, to save memory."""
  groups: dict[int, _Group] = {}
  size = 0
  for row in jsonl.read(path):
    if (group := groups.get(row["prompt_index"])) is None:
      about = {name: row.get(name) for name in ("prompt_index", "id", "question", "golds", "hops")}
      group = _Group(about, {"tokens": 0, "text": ""}, samples=[] if size <= most_bytes else None)
      groups[row["prompt_index"]] = group
    if not group.prompt["tokens"] and row["segments"]:  # a sample without segments failed before its prompt was made
      group.prompt = {"tokens": len(row["segments"][0]["ids"])} | _text(row["segments"][0])
    group.ends.append((row["reward"], row["outcome"], row["ended"]))
    if group.samples is not None:
      group.samples.append(zlib.compress(json.dumps(compact(row)).encode()))
      size += len(group.samples[-1]) * 4 // 3
  return list(groups.values())


def _take(steps: list[list[_Group]], max_bytes: int) -> None:
  """Marks the groups to take, by the rule in `excerpt`."""
  bytes_left = max_bytes
  for group in steps[-1] if steps else ():
    if group.samples is None or (bytes_left < max_bytes and group.size > bytes_left - max_bytes // 2):
      break
    group.taken, bytes_left = True, bytes_left - group.size
  for place in range(max(map(len, steps), default=0)):
    for group in (groups[place] for groups in steps if place < len(groups) and not groups[place].taken):
      if group.samples is None or group.size > bytes_left:
        return
      group.taken, bytes_left = True, bytes_left - group.size


def _step(step: int, path: pathlib.Path, groups: list[_Group]) -> dict[str, Any]:
  ends = [end for group in groups for end in group.ends]
  return {
    "step": step,
    "file": f"{path.parent.name}/{path.name}",
    "groups": [_group(group) for group in groups],
    "episodes": len(ends),
    "taken": sum(len(group.ends) for group in groups if group.taken),
    "reward": _round(stats.mean_known(reward for reward, _, _ in ends)),
    "outcome": _round(stats.mean_known(outcome for _, outcome, _ in ends)),
  }


def _group(group: _Group) -> dict[str, Any]:
  """A group's entry in the page's list, with its samples if they are taken."""
  samples = None
  if group.taken:
    samples = sorted((json.loads(zlib.decompress(raw)) for raw in group.samples), key=lambda sample: sample["sample"])
  rewards = [reward for reward, _, _ in group.ends if reward is not None]
  return group.about | {
    "count": len(group.ends),
    "reward": _round(stats.mean_known(rewards)),
    "spread": _round(max(rewards) - min(rewards)) if rewards else None,
    "right": sum((outcome or 0) > 0 for _, outcome, _ in group.ends),
    "kinds": sorted({(_verdict(reward, outcome), ended) for reward, outcome, ended in group.ends}),
    "prompt": group.prompt if group.taken else None,
    "samples": samples,
  }


def _verdict(reward: float | None, outcome: float | None) -> str:
  return "unscored" if reward is None or outcome is None else "right" if outcome > 0 else "wrong"


def compact(row: Mapping[str, Any]) -> dict[str, Any]:
  """One row of the log for the page: without token ids and prompt, numbers to three digits, gold passages marked."""
  golds = set(row.get("gold_ids") or ())
  verdicts = iter(searches.verdicts(*searches.in_row(row)))
  segments = []
  if row["segments"] and row["segments"][0].get("found") is not None:
    next(verdicts)  # of a search before the prompt
  for segment in row["segments"][1:]:
    item = {"owner": segment["owner"], "tokens": len(segment["ids"])}
    if segment["owner"] == structs.MODEL:
      item["stop"] = segment.get("stop", "")
      item |= {"pieces": segment["pieces"]} if "pieces" in segment else {"text": segment["text"]}
      item["logprobs"] = [_round(value) for value in segment["logprobs"]]
      item |= {"control": {place: name for place, _, name in segment["control"]}} if "control" in segment else {}
      if "advantages" in segment:
        own = segment["advantages"]
        item["advantages"] = [_round(value) for value in own] if isinstance(own, list) else _round(own)
    else:
      item |= _text(segment)
      item["query"] = segment.get("query")
      if segment.get("found") is not None:
        item["found"] = [passage | {"gold": passage["id"] in golds} for passage in segment["found"]]
        item["verdict"] = next(verdicts)
    segments.append(item)
  sample = {name: row[name] for name in ("sample", "version", "ended", "failure", "facts", "outcome", "weights")}
  sample |= {name: _round(row[name]) for name in ("reward", "advantage")}
  for name, values in (("terms", row["terms"]), ("signs", row.get("signs", {}))):
    sample[name] = {key: _round(value) for key, value in values.items()}
  return sample | {"segments": segments}


def _text(segment: Mapping[str, Any]) -> dict[str, Any]:
  """The text of an environment's segment. If it has control tokens, `parts` alternates between text and token."""
  parts = episodes.parts(segment)
  return {"text": segment["text"]} | ({"parts": parts} if len(parts) > 1 else {})


def _round(value):
  return None if value is None else float(f"{value:.3g}")
