"""Transcripts of other systems: read into episodes, scored, and written as an evaluation's folder.

An adapter reads the text of another search agent → turns in Search-R1's tags, which the recipes' parsers read.

    R1-Searcher's  <|begin_of_query|>q<|end_of_query|><|begin_of_documents|>d<|end_of_documents|><answer>a</answer>
    read as        ("model", "<search>q</search>"), ("environment", "<information>d</information>"),
                   ("model", "<answer>a</answer>")

A block of results directly after a query belongs to the environment, as a notice after a turn without an action does.
Any other block was written by the model, and does not count. A text without the adapter's tags, or with the tags of
another system, is an error and never scores zero.
"""

import dataclasses
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax import recipes
from ragrl_jax.core.text import forms
from ragrl_jax.data import digests, writers
from ragrl_jax.evaluation import harness
from ragrl_jax.evaluation.answer_files import METRICS, PREDICTIONS, write_json
from ragrl_jax.recipes.released.agents import AGENTS, ANSWER, SEARCH, THOUGHT, Agent, boxed
from ragrl_jax.run import rewards
from ragrl_jax.store import episodes as episodes_lib, folders, jsonl, row_files
from ragrl_jax.structs import ENVIRONMENT, MODEL, Episode, Example

TEXTS = ("transcript", "response", "output", "generation", "Output", "messages")
ANSWERS = ("prediction", "pred", "pred_ans")
# Columns that are unknown: the tokenizer and the corpus are other ones, a block of results is one text, and transcripts
# have no log-probabilities.
_UNKNOWN = (
  "prompt_tokens", "response_tokens", "episode_tokens", "wasted_searches", "stale_searches", "found_gold", "confidence",
)  # fmt: skip
Turns = list[tuple[str, str]]
_ASSISTANT = re.compile(r"<\|im_start\|>assistant\n|<\|start_header_id\|>assistant<\|end_header_id\|>\n+")
# What Search-R1's environment, and those built on it, say after a turn without an action. It explains the tags.
_NOTICE = re.compile(r"((?:(?<!\s)\s+)?My previous action is invalid\..{,2000}?Let me try again\.\s*)", re.DOTALL)
_ENDS = re.compile(r"(?:<\|im_end\|>|<\|endoftext\|>|<\|eot_id\|>|\s)+")

# ---- adapters --------------------------------------------------------------------------------------------------------


def turns(text: str, system: str) -> Turns:
  """A transcript's turns, without its prompt.

  A block of results that was cut off ends before the next thought, query or answer.

  Args:
    text: everything after the prompt. If it has the assistant's mark of a chat template, only the text after the first
      mark is read.
    system: a name in AGENTS.

  Raises:
    ValueError: the text has none of the system's tags, or tags of another system.
  """
  adapter = AGENTS[system]
  if start := _ASSISTANT.search(text):
    text = text[start.end() :]
  text = forms.without_last(_ENDS, text)
  result: Turns = []
  opening = _opening(adapter)
  while begun := opening.search(text):
    before_results, after = text[: begun.start()] + adapter.query[1], text[begun.end() :]
    inside, text = _results(after, adapter)
    result += [(MODEL, before_results), (ENVIRONMENT, inside)]
  if text.strip() or not result:
    result.append((MODEL, text))
  spoken = "".join(part for owner, part in result if owner == MODEL)
  _check(spoken, system, adapter)
  return [turn for owner, part in result for turn in _translated(owner, part, adapter)]


def searched(text: str, system: str) -> bool:
  """Whether the text has a query that is followed by results."""
  return _opening(AGENTS[system]).search(text) is not None


def _opening(adapter: Agent) -> re.Pattern:
  return re.compile(re.escape(adapter.query[1]) + r"\s*" + re.escape(adapter.results[0]))


def _results(text: str, adapter: Agent) -> tuple[str, str]:
  """(the block's contents, the text after it)."""
  closed, following = text.find(adapter.results[1]), text.find(adapter.results[0])
  if closed >= 0 and (following < 0 or closed < following):
    return text[:closed], text[closed + len(adapter.results[1]) :]
  nexts = "|".join(map(re.escape, (THOUGHT[0], adapter.query[0], ANSWER[0], *adapter.others)))
  cut = re.search(rf"\n?(?:{nexts})", text)  # a line break that was results' may have been cut off, too
  return (text, "") if cut is None else (text[: cut.start()], text[cut.start() :])


def _check(spoken: str, system: str, adapter: Agent) -> None:
  """Refuses the model's text if it has none of the system's tags, or tags of another system."""
  own_tags = {*adapter.query, *adapter.results, *adapter.others}
  for name, other in AGENTS.items():
    foreign = {other.query[0], other.results[0], *other.others} - own_tags
    foreign_tags = sorted(tag for tag in foreign if tag in spoken)
    if foreign_tags:
      raise ValueError(f"it has {', '.join(foreign_tags)}, which {system} does not write: is it {name}'s?")
  marks = (adapter.query[0], r"\boxed{" if adapter.answered != "tags" else ANSWER[0], ANSWER[0], *THOUGHT)
  if not any(mark in spoken for mark in marks):
    raise ValueError(
      f"none of {system}'s tags is in it ({', '.join(dict.fromkeys(marks))}). If the model wrote this, give its row a "
      '"prediction", null for none.'
    )


def _translated(owner: str, text: str, adapter: Agent) -> Turns:
  """The turns of a part: one, or more if notices of the environment are in it."""
  if owner == ENVIRONMENT:
    return [(owner, block(text))]
  pieces = enumerate(_NOTICE.split(text))  # every second one is a notice
  return [(ENVIRONMENT, part) if at % 2 else (MODEL, said(part, adapter)) for at, part in pieces if part or not at]


def block(inside: str) -> str:
  """The environment's text with these results, in our tags."""
  inside = re.sub(r"</?information>", " ", inside)
  return f"\n\n<information>{inside}</information>\n\n"


def said(text: str, adapter: Agent) -> str:
  """The model's text with our tags."""
  for theirs_tag, own_tag in zip(adapter.query, SEARCH):
    text = text.replace(theirs_tag, own_tag)
  for theirs_tag, own_tag in zip(adapter.results, ("<information>", "</information>")):
    text = text.replace(theirs_tag, own_tag)  # a block written by the model: parsers ignore it
  if adapter.answered == "box" and not text.endswith(SEARCH[1]) and (answer := boxed(text)) is not None:
    text += f"{ANSWER[0]}{answer}{ANSWER[1]}"
  if adapter.answered == "boxed":
    answers, closing, rest = text.rpartition(ANSWER[1])  # a tag without an end would be searched to the end of the text
    text = re.sub(r"<answer>(.*?)</answer>", _unbox, answers + closing, flags=re.DOTALL) + rest
  return text


def _unbox(match: re.Match) -> str:
  answer = boxed(match[1])
  return match[0] if answer is None else f"{ANSWER[0]}{answer}{ANSWER[1]}"


# ---- scores ----------------------------------------------------------------------------------------------------------


def score(
  path: str | pathlib.Path,
  examples: Sequence[Example],
  out: str | pathlib.Path,
  *,
  system: str,
  settings: Mapping[str, Any],
) -> dict[str, Any]:
  """Scores every example's transcript and writes out/predictions.jsonl and out/metrics.json, as an evaluation does.

  For a system that thinks in `<think>` tags, out/episodes.jsonl has its turns, for `ragrl faithfulness` to judge.

  A row of the file has an "id" or a "question" of the examples, and either a text (one of TEXTS; a list of chat
  messages is joined from the assistant's first) or an answer (one of ANSWERS; null scores 0). Counts of tokens,
  wasted searches and the confidence are unknown.

  Args:
    path: the file (.jsonl or .json, also .gz).
    system: one of AGENTS.
    settings: stored with the scores; at least `data`.

  Returns:
    The metrics as written.

  Raises:
    ValueError: a transcript cannot be read (with file and line), has no question, an id of another question, or a
      question with another transcript; a question has no transcript; the whole file has queries but no results; or
      `out` holds an evaluation, a run, an index or the transcripts under a name that is written.
  """
  path, out = pathlib.Path(path), pathlib.Path(out)
  folders.refuse_others(out, folders.SCORES)
  writers.refuse_inputs([out / name for name in (PREDICTIONS, METRICS, episodes_lib.PLAYED)], [path])
  recipe = recipes.get(*recipes.OF_TRANSCRIPTS)
  episodes = _episodes(path, examples, recipe, system)
  rows = [_row(recipe, example, episodes[example.id], system) for example in examples]
  settings = dict(settings) | dict(recipe="transcripts", system=system, questions=len(examples))
  metrics = jsonl.plain(harness.summarise(rows) | dict(settings=settings))
  for name in (METRICS, episodes_lib.PLAYED):  # of earlier transcripts, which the new rows are not of
    (out / name).unlink(missing_ok=True)
  jsonl.write(out / PREDICTIONS, rows)
  if AGENTS[system].thinks:  # without the tags, steps have no thoughts to judge
    jsonl.write(out / episodes_lib.PLAYED, (episodes_lib.played(one, episodes[one.id]) for one in examples))
  write_json(out / METRICS, metrics)
  return metrics


def _row(recipe, example: Example, episode: Episode, system: str) -> dict[str, Any]:
  """The row of predictions.jsonl. Values that a transcript lacks are None."""
  (scored,) = rewards.score(recipe, [example], [episode], 0)
  row = harness.prediction(recipe, scored) | dict.fromkeys(_UNKNOWN)
  if "answer" in episode.facts:  # an answer without a transcript
    return row | dict(terms={}, outcome=row["em"], num_searches=None, ended="answer")
  if not AGENTS[system].thinks:
    row |= dict(terms=dict(row["terms"]) | {"think_answer": None}, pooled={})
  return row


def _episodes(path: pathlib.Path, examples: Sequence[Example], recipe, system: str) -> dict[str, Episode]:
  """Example's id → its episode."""
  by_id = {example.id: example for example in examples}
  if len(by_id) < len(examples):
    raise ValueError("--data: several of these sets use the same ids: score one set at a time.")
  by_question: dict[str, list[Example]] = {}
  for example in examples:
    by_question.setdefault(digests.key_of(example.question), []).append(example)
  result, places, queries = {}, {}, 0
  for where, row in row_files.read_rows(path):
    example = _example(where, row, by_id, by_question)
    if example.id in result:
      raise ValueError(f"{where}: question {example.id!r} has a transcript already, {places[example.id]}.")
    result[example.id], places[example.id] = _episode(where, row, example, recipe, system), where
    queries += sum("</search>" in segment.text for segment in result[example.id].segments[1:] if segment.owner == MODEL)
  if missing := [example.id for example in examples if example.id not in result]:
    raise ValueError(
      f"{path}: {len(missing)} of {len(examples)} questions have no transcript (first {missing[0]!r}): give --data a "
      "file with only the questions that have one."
    )
  if queries and not any(episode.num_searches for episode in result.values()):
    raise ValueError(
      f"{path}: {queries} queries, but no results in {' … '.join(AGENTS[system].results)}: these are not "
      f"transcripts of {system}, or the results were left out."
    )
  return result


def _example(where: str, row: Mapping[str, Any], by_id, by_question) -> Example:
  question = digests.key_of(str(row.get("question") or ""))
  if "id" in row and (example := by_id.get(str(row["id"]))) is not None:
    # Systems that number their own outputs may have another order than the data.
    if question and question != digests.key_of(example.question):
      raise ValueError(
        f"{where}: its id {row['id']!r} is that of the question {example.question!r} of --data, but its question is "
        f"{row['question']!r}: remove its id or its question, whichever is not of --data."
      )
    return example
  same = by_question.get(question, [])
  if len(same) != 1:
    raise ValueError(
      f"{where}: its id {row.get('id')!r} and question {row.get('question')!r} match {len(same)} questions of --data; "
      "they must match one."
    )
  return same[0]


def _episode(where: str, row: Mapping[str, Any], example: Example, recipe, system: str) -> Episode:
  text = next((row[name] for name in TEXTS if row.get(name) is not None), None)
  answers = [name for name in ANSWERS if name in row]
  if text is None and not answers:
    raise ValueError(f"{where}: it has none of {', '.join((*TEXTS, *ANSWERS))}.")
  if text is None:
    if not isinstance(answer := row[answers[0]], str | None):
      raise ValueError(f"{where}: the {answers[0]} is {answer!r:.80}; it must be a text, or null for none.")
    return Episode.from_text(recipe, example, [], facts={"answer": answer})
  if isinstance(text, list):
    text = _joined(where, text)
  if not isinstance(text, str):
    raise ValueError(f"{where}: the transcript is a {type(text).__name__}; it must be a text or a list of messages.")
  try:
    episode = Episode.from_text(recipe, example, turns(_without_prompt(text, row, example, system), system))
  except ValueError as error:
    raise ValueError(f"{where}: {error}") from error
  # An episode that was played ends by the name of what it did, a transcript by its stop string.
  return dataclasses.replace(episode, ended="answer") if episode.ended == ANSWER[1] else episode


def _without_prompt(text: str, row: Mapping[str, Any], example: Example, system: str) -> str:
  """The text after the prompt. The prompt is the row's, or the text up to the question, as in these systems' prompts.

  Prompts explain the tags, and some have an example with an answer. Neither must be taken for the model's text. After a
  search, the question is not the prompt's: the model repeats it.
  """
  prompt = row.get("prompt")
  if isinstance(prompt, str) and prompt and text.startswith(prompt):
    return text[len(prompt) :]
  pattern = re.escape(" ".join(example.question.split()).rstrip("? ")).replace(r"\ ", r"\s+")
  match = re.search(rf"(?:question|user):\s*{pattern}\s*\??\s*(?:assistant:)?", text, re.IGNORECASE)
  return text[match.end() :] if match and not searched(text[: match.start()], system) else text


def _joined(where: str, messages: Sequence[Any]) -> str:
  """All messages from the assistant's first on. A message whose content is null, as of a call, says nothing."""
  is_message = lambda one: isinstance(one, Mapping) and "role" in one and isinstance(one.get("content", 0), str | None)
  if not all(map(is_message, messages)):
    raise ValueError(f"{where}: a message must have role and content, which is a text or null.")
  first = next((place for place, one in enumerate(messages) if one["role"] == "assistant"), len(messages))
  return "".join(one["content"] or "" for one in messages[first:])
