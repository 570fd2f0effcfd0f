"""Converts a row of a public QA data set into an Example. A bad row raises a ValueError that names the fault."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragrl_jax.structs import Example, Passage

Row = Mapping[str, Any]


def example(row: Row, *, identity: str, source: str) -> Example:
  """Reads a row, with the layout chosen by its columns.

  Args:
    row: one question.
    identity: the id, if the row has none.
    source: the name of the data set, if the row has none.

  Raises:
    ValueError: the row is invalid; the message says what it must be.
  """
  for columns, layout in LAYOUTS:
    if all(column in row for column in columns):
      made = layout(row, identity, source)
      _check_text(made)
      return made
  raise ValueError(
    f"a row with the columns {sorted(row)} has an unknown layout: it needs 'question' and 'answers' (ours), "
    "'golden_answers' (FlashRAG), "
    "'answer' with 'context' (HotpotQA, 2WikiMultihopQA) or with 'paragraphs' (MuSiQue), 'input' with "
    "'context' and 'answers' (LongBench), 'passage' with 'answers_spans' (DROP), 'query' with 'passages' (MS MARCO)."
  )


def ours(row: Row, identity: str, source: str) -> Example:
  """Our own rows: {"id", "question", "answers", "passages", "supporting", "hops", "meta"}; other columns go to meta."""
  passages = tuple(_passage(p, f"passages[{i}]") for i, p in enumerate(_list(row, "passages")))
  supporting = tuple(_position(p, len(passages), "supporting") for p in _list(row, "supporting"))
  hops = row.get("hops")
  if hops is not None and (not isinstance(hops, int) or isinstance(hops, bool)):
    raise ValueError(f"'hops' must be a whole number or null, this is {hops!r}.")
  meta = _object(row, "meta")
  known = {"id", "question", "answers", "passages", "supporting", "hops", "meta", "source"}
  meta |= {column: value for column, value in row.items() if column not in known}
  pairs = meta.pop("evidence", ())
  if not all(isinstance(p, Sequence) and len(p) == 2 and isinstance(p[1], str) for p in pairs):
    raise ValueError("'meta.evidence' must be a list of [position, sentence] pairs.")
  evidence = tuple((_position(place, len(passages), "meta.evidence"), sentence) for place, sentence in pairs)
  return Example(
    _identity(row, ("id",), identity),
    _question(row),
    _golds(row, "answers"),
    passages,
    supporting,
    str(row.get("source") or source),
    hops,
    evidence,
    meta,
  )


def flashrag(row: Row, identity: str, source: str) -> Example:
  """FlashRAG's rows: {"id", "question", "golden_answers", "metadata"}. Golds may be positions in "choices"."""
  meta = _object(row, "metadata")
  choices, golds = row.get("choices"), row["golden_answers"]
  if choices and isinstance(golds, list) and all(isinstance(gold, int) for gold in golds):
    golds = [_list(row, "choices")[_position(gold, len(choices), "golden_answers")] for gold in golds]
  golds = _golds(dict(golden_answers=golds), "golden_answers")
  name, question = _identity(row, ("id",), identity), _question(row)
  rest = {c: v for c, v in row.items() if c not in ("id", "question", "golden_answers", "metadata")}
  passages = supporting = evidence = ()
  if meta.get("context") and meta.get("supporting_facts"):
    passages, supporting, evidence = _by_title(_contexts(meta.pop("context")), _facts(meta["supporting_facts"]))
  return Example(
    name, question, golds, passages, supporting, source, len(supporting) or None, evidence, {**meta, **rest}
  )


def hotpotqa(row: Row, identity: str, source: str) -> Example:
  """Rows of HotpotQA and 2WikiMultihopQA, as published and as on the Hugging Face hub.

  A passage is its sentences joined. Supporting passages are found by title. A supporting title that no passage has
  (fullwiki) appears only in meta["gold_titles"].
  """
  facts = _facts(row.get("supporting_facts"))
  passages, supporting, evidence = _by_title(_contexts(row["context"]), facts)
  titles = list(dict.fromkeys(title for title, _ in facts))
  known = {"_id", "id", "question", "answer", "context", "supporting_facts"}
  meta = {column: value for column, value in row.items() if column not in known}
  return Example(
    _identity(row, ("_id", "id"), identity),
    _question(row),
    _golds(row, "answer"),
    passages,
    supporting,
    source,
    len(titles) or None,
    evidence,
    {**meta, "gold_titles": titles},
  )


def musique(row: Row, identity: str, source: str) -> Example:
  """MuSiQue's rows as published: paragraphs with is_supporting, a decomposition, aliases."""
  passages, supporting, place = [], [], {}
  for i, paragraph in enumerate(_list(row, "paragraphs")):
    if not isinstance(paragraph, Mapping) or not isinstance(paragraph.get("paragraph_text"), str):
      raise ValueError(f"'paragraphs[{i}]' must be an object with a text 'paragraph_text'.")
    passages.append(_made(paragraph.get("title") or "", paragraph["paragraph_text"]))
    place[paragraph.get("idx", i)] = i
    if paragraph.get("is_supporting"):
      supporting.append(i)
  steps = [
    dict(question=step.get("question"), answer=step.get("answer"), passage=place.get(step.get("paragraph_support_idx")))
    for step in _list(row, "question_decomposition")
  ]
  answers = [*_golds(row, "answer"), *_list(row, "answer_aliases")]
  meta = dict(decomposition=steps, answerable=row.get("answerable", True))
  evidence = tuple((i, passages[i].text) for i in supporting)
  return Example(
    _identity(row, ("id",), identity),
    _question(row),
    _golds(dict(answer=answers), "answer"),
    tuple(passages),
    tuple(supporting),
    source,
    len(steps) or None,
    evidence,
    meta,
  )


def longbench(row: Row, identity: str, source: str) -> Example:
  """LongBench's rows, {"input", "context", "answers", "length", "dataset", …, "_id"}: the context is one passage."""
  context = row["context"]
  if not isinstance(context, str):
    raise ValueError(f"'context' must be text, this is {context!r:.80}.")
  known = {"_id", "input", "context", "answers", "dataset"}
  meta = {column: value for column, value in row.items() if column not in known}
  return Example(
    _identity(row, ("_id",), identity),
    _question(row, "input"),
    _golds(row, "answers"),
    (_made("", context),),
    source=str(row.get("dataset") or source),
    meta=meta,
  )


def drop(row: Row, identity: str, source: str) -> Example:
  """DROP's rows on the Hugging Face hub: {"section_id", "query_id", "passage", "question", "answers_spans"}.

  Every span counts as a right answer, since the rows do not separate answers of several people from parts of one.
  """
  if not isinstance(row["passage"], str):
    raise ValueError(f"'passage' must be text, this is {row['passage']!r:.80}.")
  answers = _object(row, "answers_spans")
  meta = dict(section_id=row.get("section_id"), answer_types=list(dict.fromkeys(_list(answers, "types"))))
  return Example(
    _identity(row, ("query_id",), identity),
    _question(row),
    _golds(dict(spans=answers.get("spans")), "spans"),
    (_made("", row["passage"]),),
    (0,),
    source,
    1,
    meta=meta,
  )


def ms_marco(row: Row, identity: str, source: str) -> Example:
  """MS MARCO's rows on the Hugging Face hub: {"query_id", "query", "answers", "passages": {columns}}.

  A question without an answer keeps the published gold "No Answer Present.", and its meta["answerable"] is False.
  """
  columns = _object(row, "passages")
  texts, selected = _list(columns, "passage_text"), _list(columns, "is_selected")
  if len(texts) != len(selected) or not all(isinstance(text, str) for text in texts):
    raise ValueError("'passages' must have the columns 'passage_text' (texts) and 'is_selected', of the same length.")
  golds = _golds(row, "answers")
  meta = dict(answerable=golds != ("No Answer Present.",), query_type=row.get("query_type"), urls=_list(columns, "url"))
  supporting = tuple(i for i, chosen in enumerate(selected) if chosen)
  return Example(
    _identity(row, ("query_id",), identity),
    _question(row, "query"),
    golds,
    tuple(_made("", text) for text in texts),
    supporting,
    source,
    len(supporting) or None,
    meta=meta,
  )


def plain(row: Row, identity: str, source: str) -> Example:
  """Rows without passages, as in NQ-open: {"question", "answer"}; the answer is a string or a list of strings."""
  meta = {column: value for column, value in row.items() if column not in ("id", "question", "answer")}
  return Example(_identity(row, ("id",), identity), _question(row), _golds(row, "answer"), source=source, meta=meta)


# (columns, layout): the first entry whose columns all occur in the row decides.
LAYOUTS: tuple[tuple[tuple[str, ...], Callable[[Row, str, str], Example]], ...] = (
  (("golden_answers",), flashrag),
  (("input", "context", "answers"), longbench),
  (("query", "query_id", "passages", "answers"), ms_marco),
  (("passage", "answers_spans"), drop),
  (("answers",), ours),
  (("paragraphs", "answer"), musique),
  (("context", "answer"), hotpotqa),
  (("answer",), plain),
)


def passage_id(title: str, text: str) -> str:
  """An id for a passage without one: a hash of title and text."""
  return hashlib.sha1(f"{title}\n{text}".encode(errors="surrogatepass")).hexdigest()[:12]


def _made(title: str, text: str) -> Passage:
  return Passage(passage_id(title, text), title, text)


def _contexts(value: Any) -> list[tuple[str, list[str]]]:
  """[(title, sentences), …] from [[title, sentences], …], from a dict of the two columns, from a list of dicts with
  these keys, or from any of these as JSON text."""
  value = _unpacked(value, "context")
  if isinstance(value, Mapping):
    value = list(zip(value.get("title", ()), value.get("sentences", value.get("content", ())), strict=False))
  made = []
  for i, item in enumerate(value):
    title, sentences = (item.get("title"), item.get("sentences")) if isinstance(item, Mapping) else tuple(item)[:2]
    if not isinstance(title, str) or not isinstance(sentences, Sequence) or isinstance(sentences, str):
      raise ValueError(f"'context[{i}]' must be a title and a list of sentences.")
    made.append((title, [str(sentence) for sentence in sentences]))
  return made


def _facts(value: Any) -> list[tuple[str, int]]:
  """[(title, sentence number), …] from the same kinds of values as in `_contexts`."""
  value = _unpacked(value or (), "supporting_facts")
  if isinstance(value, Mapping):
    value = list(zip(value.get("title", ()), value.get("sent_id", ()), strict=False))
  pairs = [(item.get("title"), item.get("sent_id")) if isinstance(item, Mapping) else tuple(item) for item in value]
  if not all(len(p) == 2 and isinstance(p[0], str) and isinstance(p[1], int) for p in pairs):
    raise ValueError("'supporting_facts' must be a list of [title, sentence number] pairs.")
  return pairs


def _unpacked(value: Any, column: str) -> Any:
  if isinstance(value, str):
    try:
      value = json.loads(value)
    except json.JSONDecodeError as error:
      raise ValueError(f"{column!r} is text, but not JSON: {error}.") from error
  if not isinstance(value, Sequence | Mapping) or isinstance(value, str):
    raise ValueError(f"{column!r} must be a list or an object, this is {type(value).__name__}.")
  return value


def _by_title(contexts: list[tuple[str, list[str]]], facts: list[tuple[str, int]]):
  """(passages, supporting, evidence). A sentence number beyond its passage is left out of the evidence."""
  passages, first = [], {}
  for place, (title, sentences) in enumerate(contexts):
    # HotpotQA's sentences bring their leading space along, 2WikiMultihopQA's do not.
    glue = "" if any(sentence[:1].isspace() for sentence in sentences[1:]) else " "
    passages.append(_made(title, glue.join(sentences).strip()))
    first.setdefault(title, place)
  supporting = sorted({first[title] for title, _ in facts if title in first})
  evidence = tuple(
    (first[title], contexts[first[title]][1][number].strip())
    for title, number in facts
    if title in first and 0 <= number < len(contexts[first[title]][1])
  )
  return tuple(passages), tuple(supporting), evidence


def _passage(value: Any, where: str) -> Passage:
  if not isinstance(value, Mapping) or not isinstance(value.get("text"), str):
    raise ValueError(f"{where!r} must be an object with a text 'text' (and 'id', 'title').")
  title = value.get("title") or ""
  if not isinstance(title, str):
    raise ValueError(f"the title of {where!r} must be text, this is {title!r}.")
  return Passage(str(value.get("id") or passage_id(title, value["text"])), title, value["text"])


def _question(row: Row, column: str = "question") -> str:
  question = row.get(column)
  if not isinstance(question, str) or not question.strip():
    raise ValueError(f"{column!r} must be text, this is {question!r}.")
  return question


def _golds(row: Row, column: str) -> tuple[str, ...]:
  golds = row[column]
  golds = [golds] if isinstance(golds, str) else golds
  if not isinstance(golds, Sequence) or not golds or not all(isinstance(g, str) and g.strip() for g in golds):
    raise ValueError(f"{column!r} must hold at least one answer, each of them text; this is {golds!r}.")
  return tuple(dict.fromkeys(golds))


def _identity(row: Row, columns: Sequence[str], default: str) -> str:
  found = next((row[column] for column in columns if row.get(column) is not None), default)
  if isinstance(found, bool) or not isinstance(found, str | int) or found == "":
    raise ValueError(f"{columns[0]!r} must be text or a number, this is {found!r}.")
  return str(found)


def _list(row: Row, column: str) -> list:
  value = row.get(column)
  if value is not None and not isinstance(value, list | tuple):
    raise ValueError(f"{column!r} must be a list, this is {value!r:.80}.")
  return list(value or ())


def _object(row: Row, column: str) -> dict[str, Any]:
  value = row.get(column)
  if value is not None and not isinstance(value, Mapping):
    raise ValueError(f"{column!r} must be an object, this is {value!r:.80}.")
  return dict(value or {})


def _position(value: Any, size: int, column: str) -> int:
  if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < size:
    raise ValueError(f"{column!r} holds {value!r}: it must be a position from 0 to {size - 1}.")
  return value


def _check_text(made: Example) -> None:
  """Refuses half a surrogate pair, which JSON allows and UTF-8 cannot encode."""
  try:
    for text in (made.id, made.question, *made.golds):
      text.encode()
    for passage in made.passages:
      f"{passage.id}{passage.title}{passage.text}".encode()
  except UnicodeEncodeError as error:
    raise ValueError(f"the row's text is not valid Unicode: {error}.") from error
