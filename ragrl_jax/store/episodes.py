"""The log of a run's episodes, one JSON line per episode, for readers and for the report.

A step's file, `episodes/step_000012.jsonl`, is whole or absent. A row has these keys:

    step prompt_index sample version            which episode: step of training, prompt, sample in its group
    id question golds source hops gold_ids      the example
    segments                                    in order: owner, text, ids; model: logprobs, stop, pieces, advantages
                                                (one number if all tokens have it, else one per token; if trained on);
                                                environment: query, found (id, title, text, score); control: tokens that
                                                are not in the text (index in ids, index in text, name), if any
    starts                                      segments that begin another conversation, if there are several
    facts ended failure                         answers of judges and probes; why the episode ended
    terms weights reward outcome advantage      unweighted terms (null: not scorable), their weights, the weighted sum;
                                                advantage: mean over the model's tokens
    signs                                       what the run's detectors watch, by the names of its metrics

An evaluation writes its episodes to `episodes.jsonl`, beside its predictions: the same rows without token ids,
log-probabilities and scores. `read_folder` reads both.
"""

import base64
import codecs
import dataclasses
import os
import pathlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ragrl_jax import structs
from ragrl_jax.core.text.normalize import normalize
from ragrl_jax.store import jsonl, lossless_json

FOLDER = "episodes"
PLAYED = "episodes.jsonl"  # file of an evaluation
GOLDS = "lost_gold_passages"  # key of an example's meta: its supporting passages, if it has lost its passages


def row(
  example: structs.Example,
  episode: structs.Episode,
  *,
  step: int = 0,
  terms: Mapping[str, float | None],
  weights: Mapping[str, float],
  reward: float | None,
  outcome: float | None,
  advantages: Sequence[np.ndarray] = (),
  signs: Mapping[str, float] | None = None,
  tokenizer=None,
) -> dict[str, Any]:
  """The log's row of one episode.

  Args:
    step: number of training steps done after training on this episode, as in metrics.jsonl.
    terms: unweighted reward terms; None where one cannot be scored.
    weights: the weight of each term at this step.
    reward: their weighted sum; None if the episode was not scored.
    outcome: unshaped correctness, 0 or 1.
    advantages: of the tokens of each model segment, in order; empty if the episode is not trained on.
    tokenizer: gives the text of each sampled token (`pieces`) and the names of control tokens (`control`), for display.
      Without it the row has neither.

  Raises:
    ValueError: advantages that do not match the model segments.
  """
  segments = [_segment(segment, tokenizer) for segment in episode.segments]
  if len(advantages):
    _add_advantages(segments, advantages)
  return {
    "step": step,
    "prompt_index": episode.prompt_index,
    "sample": episode.sample,
    "version": episode.version,
    "id": example.id,
    "question": example.question,
    "golds": example.golds,
    "source": example.source,
    "hops": example.hops,
    "gold_ids": gold_ids(example, episode),
    "ended": episode.ended,
    "failure": episode.failure,
    "reward": reward,
    "outcome": outcome,
    "advantage": mean_advantage(advantages),
    "terms": dict(terms),
    "weights": dict(weights),
    "signs": dict(signs or {}),
    "facts": episode.facts,
    "segments": segments,
    **_starts(episode),
  }


def played(example: structs.Example, episode: structs.Episode) -> dict[str, Any]:
  """The row of an evaluation's episode: question, segments as text, and facts; without ids, which are for training."""
  full = row(example, episode, terms={}, weights={}, reward=None, outcome=None)
  segments = [
    {name: value for name, value in item.items() if name not in ("ids", "logprobs")} for item in full["segments"]
  ]
  keys = ("version", "id", "question", "golds", "source", "hops", "gold_ids", "ended", "failure", "facts")
  return {name: full[name] for name in keys} | dict(segments=segments, **_starts(episode))


def gold_passages(example: structs.Example) -> tuple[structs.Passage, ...]:
  """The gold passages: those that the example has lost, or else its supporting ones."""
  return tuple(example.meta.get(GOLDS) or (example.passages[place] for place in example.supporting))


def gold_ids(example: structs.Example, episode: structs.Episode) -> list[str] | None:
  """Ids of the gold passages: those of `meta["gold_ids"]`, or else those found by content; None if there are none.

  `meta["gold_ids"]` has ids of the corpus, or of its documents: then the passages that the searches found of them are
  gold, too. By content, the gold passages are the example's supporting passages, and
  those that the episode's searches found and whose `content` is equal. The id of a supporting passage is made from its
  question, so no corpus has it.
  """
  found = [passage for search in episode.searches for passage in search.found or ()]
  if (ids := example.meta.get("gold_ids")) is not None:
    names = [str(i) for i in ids]
    return list(dict.fromkeys([*names, *(passage.id for passage in found if gold_id(passage, names))]))
  golds = gold_passages(example)
  known = {content(passage) for passage in golds}
  matches = [passage for passage in found if content(passage) in known]
  return list(dict.fromkeys(passage.id for passage in (*golds, *matches))) or None


def gold_id(passage: structs.Passage, golds: Collection[str]) -> str | None:
  """The one of these ids that the passage has, or the document that it was cut from; None if there is none."""
  return next((name for name in (passage.id, structs.document_of(passage.id)[0]) if name in golds), None)


def searched(episode: structs.Episode) -> list[tuple[str, list[str]]]:
  """(query, ids of the passages) of each executed search, as `core.metrics.searches` takes them."""
  return [(search.query or "", [passage.id for passage in search.found or ()]) for search in episode.searches]


def content(passage: structs.Passage) -> tuple[str, str]:
  """The key of a passage across corpora: ("title", its title), or ("text", its text) if it has no title; normalized."""
  title = normalize(passage.title, "squad")
  return ("title", title) if title else ("text", normalize(passage.text, "squad"))


def pieces(tokenizer, ids: Sequence[int]) -> list[str]:
  """The text of each token; the joined texts equal `tokenizer.decode(ids)`.

  A character whose bytes span several tokens belongs to the last of them.
  """
  decoder = codecs.getincrementaldecoder("utf-8")("replace")
  texts = [decoder.decode(tokenizer.token_bytes(int(token))) for token in ids]
  if texts:
    texts[-1] += decoder.decode(b"", final=True)
  return texts


def control(tokenizer, ids: Sequence[int]) -> list[tuple[int, int, str]]:
  """(index in ids, index in the text, name) of every control token."""
  names = tokenizer.control_names
  if names.keys().isdisjoint(ids):
    return []
  result, at = [], 0
  for place, (token, piece) in enumerate(zip(ids, pieces(tokenizer, ids))):
    if token in names:
      result.append((place, at, names[token]))
    at += len(piece)
  return result


def parts(segment: Mapping[str, Any]) -> list[str]:
  """Text of a row's segment, split at its control tokens: [text, name, text, name, …, text]."""
  result, last = [], 0
  for _, at, name in segment.get("control", ()):
    result += [segment["text"][last:at], name]
    last = at
  return [*result, segment["text"][last:]]


def write_episodes(workdir: str | os.PathLike, step: int, rows: Iterable[Mapping[str, Any]]) -> pathlib.Path:
  """Writes a step's rows to episodes/step_*.jsonl, whole or not at all. Returns the file's path."""
  return jsonl.write_step(pathlib.Path(workdir) / FOLDER, step, rows)


def read_episodes(path: str | os.PathLike) -> list[dict[str, Any]]:
  """The rows of one step's file. Raises ValueError: a line is not a JSON object; the message names file and line."""
  return list(jsonl.read(path))


def read_folder(folder: str | os.PathLike) -> Iterator[dict[str, Any]]:
  """The rows of a run's episodes, step by step, or those of an evaluation.

  Raises:
    FileNotFoundError: the folder has neither.
    ValueError: see `read_episodes`.
  """
  files = [*steps(folder).values()] or [pathlib.Path(folder) / PLAYED]
  if not files[0].exists():
    raise FileNotFoundError(f"{folder} has no episodes: name a run's folder, or an evaluation's, which has {PLAYED}.")
  for path in files:
    yield from jsonl.read(path, torn_end=path.name == PLAYED)


def steps(workdir: str | os.PathLike) -> dict[int, pathlib.Path]:
  """The logged steps of a run, in order, with their files."""
  return jsonl.step_files(pathlib.Path(workdir) / FOLDER)


def cut(workdir: str | os.PathLike, restored: int | None) -> None:
  """Removes the files of steps after the restored one (all, if None): the resumed run writes them again."""
  jsonl.cut_steps(pathlib.Path(workdir) / FOLDER, restored)


def episode_of(logged: Mapping[str, Any]) -> structs.Episode:
  """The episode of a row. Its facts are JSON values: tuples have become lists, for example.

  An evaluation's row has texts only: segments without token ids.
  """
  return structs.Episode(
    tuple(_segment_of(item) for item in logged["segments"]),
    facts=logged["facts"],
    version=logged["version"],
    ended=logged["ended"],
    failure=logged["failure"],
    prompt_index=logged.get("prompt_index", 0),
    sample=logged.get("sample", 0),
    example_id=logged["id"],
    starts=tuple(logged.get("starts", ())),
  )


def record(episode: structs.Episode) -> dict[str, Any]:
  """The episode as JSON, for training on it later. `of_record` restores it exactly, facts included."""
  return {
    "id": episode.example_id,
    "prompt_index": episode.prompt_index,
    "sample": episode.sample,
    "version": episode.version,
    "ended": episode.ended,
    "failure": episode.failure,
    "facts": lossless_json.encode(episode.facts),
    "segments": [_segment(segment, None) for segment in episode.segments],
    **_starts(episode),
  }


def of_record(stored: Mapping[str, Any]) -> structs.Episode:
  """The episode that `record` encoded."""
  return dataclasses.replace(episode_of(stored), facts=lossless_json.decode(stored["facts"]))


def mean_advantage(advantages: Sequence[np.ndarray]) -> float | None:
  """Mean over the tokens of all model segments; None without tokens."""
  tokens = np.concatenate(advantages) if len(advantages) else np.zeros(0)
  return float(tokens.mean()) if tokens.size else None


def _starts(episode: structs.Episode) -> dict[str, Any]:
  return {"starts": list(episode.starts)} if episode.starts else {}


def _segment_of(item: Mapping[str, Any]) -> structs.Segment:
  passages = item.get("found")
  logprobs = np.asarray(item.get("logprobs") or (), np.float32)  # the file has the shortest decimal of each float32
  return structs.Segment(
    owner=item["owner"],
    ids=tuple(item.get("ids", ())),
    text=item["text"],
    logprobs=tuple(logprobs.tolist()),
    stop=item.get("stop", ""),
    query=item.get("query"),
    found=None if passages is None else tuple(structs.Passage(**passage) for passage in passages),
    routes=base64.b64decode(item.get("routes", "")),
  )


def _segment(segment: structs.Segment, tokenizer) -> dict[str, Any]:
  item: dict[str, Any] = {"owner": segment.owner, "text": segment.text, "ids": [int(i) for i in segment.ids]}
  if tokenizer is not None and (names := control(tokenizer, item["ids"])):
    item["control"] = names
  if segment.owner == structs.MODEL:
    item |= {"logprobs": jsonl.plain(np.asarray(segment.logprobs, np.float32)), "stop": segment.stop}
    if tokenizer is not None:
      item["pieces"] = pieces(tokenizer, segment.ids)
    elif segment.routes:  # a record that is trained on later; logs leave them out
      item["routes"] = base64.b64encode(segment.routes).decode()
  elif segment.found is not None or segment.query is not None:
    item["query"] = segment.query
    if segment.found is not None:
      item["found"] = [{"id": p.id, "title": p.title, "text": p.text, "score": p.score} for p in segment.found]
  return item


def _add_advantages(segments: list[dict[str, Any]], advantages: Sequence[np.ndarray]) -> None:
  """Adds to each model segment the advantages of its tokens: one number if all are equal."""
  model_items = [item for item in segments if item["owner"] == structs.MODEL]
  sizes, advantage_counts = [len(item["ids"]) for item in model_items], [len(values) for values in advantages]
  if sizes != advantage_counts:
    raise ValueError(f"advantages of {advantage_counts} tokens for model segments of {sizes}: give one for each token.")
  for item, values in zip(model_items, advantages):
    values = jsonl.plain(np.asarray(values, np.float32))
    item["advantages"] = values[0] if len(set(values)) == 1 else values
