"""Chooses the episodes for an evaluation's page: as many as fit, evenly over the questions, in blocks.

Their texts are marked: quotes and their sources, cited passages, and judged steps with their premises. A text is in
runs, [text] or [text, kind, explanation]. The joined runs are the whole text. Kinds in the model's text: "found" (a
verbatim quote), "near" (a quote with other case or small changes), "missing" (a quote without a source), "cite". Kinds
in the environment's text: "found", "near", "cited".
"""

import itertools
import json
import pathlib
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax import structs
from ragrl_jax.core.metrics import searches
from ragrl_jax.core.rewards import faithful, quotes
from ragrl_jax.core.text import forms, tags
from ragrl_jax.recipes import steps as steps_lib
from ragrl_jax.store import episodes
from ragrl_jax.structs import MODEL

BLOCK = 32  # questions per block. The page loads a block on demand, and its passages are compressed together
TRIED = 64  # episodes from which the size of all is estimated
MAX_FACTS = 4_000  # characters
_STRIDE = 0.6180339887498949  # golden ratio − 1: its multiples modulo 1 are spread evenly


def chosen(
  questions: Sequence[tuple[Mapping[str, Any], ...]], folders: Sequence[pathlib.Path], max_bytes: int
) -> list[int]:
  """Indices of the questions whose episodes are kept, in order. Questions whose exact match changed come first.

  Args:
    questions: see `question_rows.joined`.
    max_bytes: most bytes of the episodes in the page. Their size is estimated from a few of them.
  """
  order = sorted(range(len(questions)), key=lambda place: place * _STRIDE % 1)
  changed = lambda rows: len({bool(row["em"]) for row in rows}) > 1
  order.sort(key=lambda place: not changed(questions[place]))  # stable
  candidates = order[:TRIED]
  # A block is compressed as a whole, since its episodes may have passages in common.
  sample = blocks(questions, folders, sorted(candidates))
  size = sum(len(zlib.compress(json.dumps(block).encode())) for block in sample)
  has_traces = any(trace is not None for block in sample for sides in block for trace in sides)
  size_each = max(1.0, size * 4 / 3 / max(1, len(candidates)))  # base64 turns three bytes into four
  return sorted(order[: int(max_bytes / size_each)]) if has_traces else []


def blocks(
  questions: Sequence[tuple[Mapping[str, Any], ...]], folders: Sequence[pathlib.Path], places: Sequence[int]
) -> list[list[list[dict[str, Any] | None]]]:
  """Traces of the questions with these indices, as nested lists: blocks, questions, sides. A missing trace is None."""
  found = [read(folder, {questions[place][side]["line"] for place in places}) for side, folder in enumerate(folders)]

  def trace(side: int, row: Mapping[str, Any]) -> dict[str, Any] | None:
    packed = found[side].get(row["line"])
    return None if packed is None else json.loads(zlib.decompress(packed))

  traces = [[trace(side, row) for side, row in enumerate(questions[place])] for place in places]
  return [traces[at : at + BLOCK] for at in range(0, len(traces), BLOCK)]


def read(folder: pathlib.Path, lines: set[int]) -> dict[int, bytes]:
  """Line number, from 0 → compressed trace, of these lines of episodes.jsonl; {} if the file does not exist.

  Raises:
    ValueError: a line is not a JSON object.
  """
  path = folder / episodes.PLAYED
  if not path.exists() or not lines:
    return {}
  result, last = {}, max(lines)
  with open(path, "rb") as file:  # most lines need not be parsed
    for number, line in enumerate(itertools.islice(file, last + 1)):
      if number in lines and line.endswith(b"\n"):
        try:
          row = json.loads(line)
        except (ValueError, RecursionError) as error:
          raise ValueError(f"{path}:{number + 1}: not a JSON object ({error}); correct or delete the line.") from error
        result[number] = zlib.compress(json.dumps(compact(row)).encode())
  return result


def compact(row: Mapping[str, Any]) -> dict[str, Any]:
  """An episode for the page: texts in runs (`marks`), gold and cited passages, judged steps, other facts."""
  golds, verdicts = set(row.get("gold_ids") or ()), iter(searches.verdicts(*searches.in_row(row)))
  segments = []
  for segment, more in zip(row["segments"], marked(row), strict=True):
    item: dict[str, Any] = {"owner": segment["owner"]}
    if segment["owner"] == structs.MODEL:
      item |= {"stop": segment.get("stop", ""), **more}
    elif segment.get("found") is None:
      item |= more
    else:
      item |= {"query": segment.get("query"), "verdict": next(verdicts)}
      item["found"] = [
        {"title": one["title"] or one["id"], "score": one["score"], "gold": one["id"] in golds, **own}
        for one, own in zip(segment["found"], more["found"], strict=True)
      ]
    segments.append(item)
  steps = judged(row)
  terms_shown = {structs.NO_VERDICT, *(one["term"] for one in steps)}
  others = {name: value for name, value in row["facts"].items() if name not in terms_shown}
  facts = json.dumps(others, ensure_ascii=False, indent=1) if others else ""
  return {
    "ended": row["ended"],
    "failure": row["failure"] or row["facts"].get(structs.NO_VERDICT, ""),
    "segments": segments,
    "judged": steps,
    "facts": facts if len(facts) <= MAX_FACTS else facts[:MAX_FACTS] + " …",
  }


Span = tuple[int, int, str, str]  # start, end, kind, explanation
Run = list[str]

QUOTING = ("retrieval", "quote", "extract", "evidence", "refine")  # tags around text from the passages
WORDS = 3  # fewest words of a quote
LONGEST = 60_000  # characters of a text that is searched for near matches of a quote
_SPOKEN = re.compile(r'"([^"\n]{16,600})"|“([^”\n]{16,600})”')
_SENTENCE = re.compile(r"[^\s.!?][^.!?\n]*(?:[.!?]+(?=\s|$)|$)|\S[^\n]*")
_CITED = re.compile(
  r"\[(\d{1,2}(?:\s*,\s*\d{1,2})*)\]|\b(?:[Dd]oc(?:ument)?|[Pp]assage|[Rr]eference)\s*\[?(\d{1,2})\b\]?"
)
_NUMBERED = re.compile(r"^(?:(?:Passage|Document|Doc|Reference)? *\[?(\d{1,2})\]?[.:)(]) ?.*$", re.MULTILINE)


def marked(row: Mapping[str, Any]) -> list[dict[str, Any]]:
  """An episode's segments with their runs: {"runs"}, and for results of a search {"found": [{"runs", "cited"}]}."""
  segments = row["segments"]
  told = [place for place, one in enumerate(segments) if one["owner"] != MODEL and one.get("found") is None]
  texts = {(place, None): _seen(segments[place]["text"]) for place in told}
  for place, segment in enumerate(segments):
    texts |= {(place, number): _seen(one["text"]) for number, one in enumerate(segment.get("found") or ())}
  names = {key: _name(segments, *key) for key in texts}
  spans: dict[tuple[int, int | None], list[Span]] = {key: [] for key in texts}
  cited_places: set[tuple[int, int | None]] = set()
  for place, segment in enumerate(segments):
    if segment["owner"] == MODEL:
      own_spans = spans[place, None] = []
      _quote(segment["text"], own_spans, texts, names, spans)
      _cite(_seen(segment["text"]), own_spans, segments[:place], spans, cited_places)
  passage = lambda key, text: {"runs": runs(text, spans[key]), "cited": key in cited_places}
  return [
    {"runs": runs(segment["text"], spans[place, None])}
    if segment.get("found") is None
    else {"found": [passage((place, number), one["text"]) for number, one in enumerate(segment["found"])]}
    for place, segment in enumerate(segments)
  ]


def _seen(text: str) -> str:
  """The text with its signs as `forms.typed` has them, except for signs that it writes as none or several."""
  return text.translate({ord(sign): typed for sign in set(text) if len(typed := forms.typed(sign)) == 1})


def judged(row: Mapping[str, Any]) -> list[dict[str, Any]]:
  """The judged steps: {"name", "term", "claim", "basis", "verdict": 0 to 1, or None without a verdict}."""
  facts = row["facts"]
  if not any(name in facts for name in steps_lib.TERMS):
    return []
  steps = steps_lib.steps(episodes.episode_of(row).turns, facts.get("action", "last"))
  return [
    {"name": steps_lib.TERMS[name], "term": name, "claim": claim, "basis": basis, "verdict": verdict}
    for name in steps_lib.TERMS
    if facts.get(name)
    for (basis, claim), verdict in zip(faithful.whole(getattr(steps, name)), facts[name])
  ]


def runs(text: str, spans: Sequence[Span]) -> list[Run]:
  """The text cut at its spans. If spans overlap, the one that begins first is used."""
  result, at = [], 0
  for start, end, kind, label in sorted(spans, key=lambda span: (span[0], -span[1])):
    if start < at or start == end:
      continue
    if start > at:
      result.append([text[at:start]])
    result.append([text[start:end], kind, label])
    at = end
  return [*result, [text[at:]]] if at < len(text) or not result else result


def _name(segments, place: int, number: int | None) -> str:
  if number is None:
    return "the prompt" if place == 0 else "a notice"
  passage = segments[place]["found"][number]
  return f"passage {number + 1}, {passage['title']}" if passage["title"] else f"passage {number + 1}"


def _quote(text_said: str, own_spans: list[Span], texts, names, spans) -> None:
  """Marks quotes in the model's text and in their sources."""
  for start, end, tagged in _quotes(text_said):
    quote, kind, where = _seen(text_said[start:end]), "missing" if tagged else "", "stands in no passage"
    for flags, better in ((0, "found"), (re.IGNORECASE, "near")):
      pattern = re.compile(r"\s+".join(map(re.escape, quote.split())), flags)
      hits = {key: hit for key, text in texts.items() if (hit := pattern.search(text))}
      if hits:
        kind, where = better, "stands in " + "; ".join(names[key] for key in hits)
        for key, hit in hits.items():
          spans[key].append((hit.start(), hit.end(), better, "quoted by the model"))
        break
    else:
      near = [key for key, text in texts.items() if tagged and len(text) <= LONGEST and quotes.soft(quote, text)]
      if near:
        kind, where = "near", "stands nearly so in " + "; ".join(names[key] for key in near)
    if kind:
      own_spans.append((start, end, kind, where))


def _quotes(text: str) -> list[tuple[int, int, bool]]:
  """(start, end, whether it is tagged) of a text's quotes: sentences in quoting tags, and texts in quotation marks.

  Texts between quotation marks may be names or queries, so they are quotes only if a source contains them.
  """
  result = []
  for pair in tags.pairs(text, QUOTING):
    start = pair.start + len(f"<{pair.name}>")
    result += [(start + one.start(), start + one.end(), True) for one in _SENTENCE.finditer(pair.body)]
  result += [(*one.span(1 if one[1] else 2), False) for one in _SPOKEN.finditer(text)]
  stripped = []
  for start, end, tagged in result:
    inside = text[start:end]
    start, end = start + len(inside) - len(inside.lstrip()), start + len(inside.rstrip())
    if quotes.words(text[start:end]) >= WORDS:
      stripped.append((start, end, tagged))
  return stripped


def _cite(text_said: str, own_spans: list[Span], before, spans, cited) -> None:
  """Marks citations in the model's text, and the cited passages: those of the newest search, or of the prompt."""
  newest = next((place for place in reversed(range(len(before))) if before[place].get("found")), None)
  prompt = before[0]["text"] if before else ""
  numbered = _NUMBERED.finditer(prompt) if newest is None and (0, None) in spans else ()
  lines = {int(one[1]): one.span() for one in numbered}
  for one in _CITED.finditer(text_said):
    numbers = [int(number) for number in re.findall(r"\d+", one[0])]
    named = []
    for number in numbers:
      if newest is not None and 0 < number <= len(before[newest]["found"]):
        cited.add((newest, number - 1))
        named.append(_name(before, newest, number - 1))
      elif number in lines:
        named.append(prompt[slice(*lines[number])][:90])
        spans[0, None].append((*lines[number], "cited", f"cited by the model: {number}"))
    if named:
      own_spans.append((one.start(), one.end(), "cite", "cites " + "; ".join(named)))
