"""Converts a row of a public QA data set into an Example. A bad row raises a ValueError that names the fault."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragrl_jax.data import columns
from ragrl_jax.store import episodes
from ragrl_jax.structs import Example

Row = Mapping[str, Any]


def example(row: Row, *, identity: str, source: str) -> Example:
  """Reads a row, with the layout chosen by its columns.

  Args:
    identity: the id, if the row has none.
    source: the name of the data set, if the row has none.

  Raises:
    ValueError: the row is invalid; the message says what it must be.
  """
  for required, layout in LAYOUTS:
    if all(column in row for column in required):
      layout = reading if layout is hotpotqa and columns.is_text(row["context"]) else layout
      result = _with_known_columns(layout(row, identity, source))
      _check_text(result)
      return result
  raise ValueError(
    f"a row with the columns {sorted(row)!s:.300} has an unknown layout: it needs 'question' and 'answers' (ours), "
    "'golden_answers' (FlashRAG), 'data_source' with 'reward_model' (Search-R1, verl), "
    "'answer' with 'context' (HotpotQA, 2WikiMultihopQA, or one text) or with 'paragraphs' (MuSiQue), 'input' with "
    "'context' and 'answers' (LongBench), 'passage' with 'answers_spans' (DROP), 'query' with 'passages' (MS MARCO), "
    "'prompt' with 'answer' (CARE's), 'query' with 'answer' and 'evidence_docs' (BrowseComp-Plus)."
  )


def ours(row: Row, identity: str, source: str) -> Example:
  """Our own rows: {"id", "question", "answers", "passages", "supporting", "hops", "meta"}; other columns go to meta.

  Without passages, they are the `ctxs` of DPR's, FiD's and Contriever's files, whose `has_answer` marks no supporting
  passage; or a `context` that is one text, as in SQuAD and MRQA on the hub.
  """
  read = lambda row, column: tuple(
    columns.passage(p, f"{column}[{i}]") for i, p in enumerate(columns.listed(row, column))
  )
  listed = "passages" if row.get("passages") or not row.get("ctxs") else "ctxs"
  own_columns = {"id", "question", "answers", "passages", "supporting", "hops", "meta", "source", listed}
  passages, context = read(row, listed), row.get("context")
  if context and not passages and columns.is_text(context):  # as in `reading`
    passages, own_columns = (columns.make_passage("", context),), own_columns | {"context"}
  supporting = tuple(columns.position(p, len(passages), "supporting") for p in columns.listed(row, "supporting"))
  hops = row.get("hops")
  if isinstance(hops, str) and (not hops or hops.isdecimal()):  # as in a file of plain values
    hops = int(hops) if hops else None
  if hops is not None and (not isinstance(hops, int) or isinstance(hops, bool)):
    raise ValueError(f"'hops' must be a whole number or null, this is {hops!r:.80}.")
  meta = columns.mapping(row, "meta")
  meta |= {column: value for column, value in row.items() if column not in own_columns}
  lost = read(meta, episodes.GOLDS)
  meta.pop(episodes.GOLDS, None)
  meta |= {episodes.GOLDS: lost} if lost else {}
  pairs = columns.listed(meta, "evidence", "meta")
  meta.pop("evidence", None)
  if not all(isinstance(p, Sequence) and len(p) == 2 and isinstance(p[1], str) for p in pairs):
    raise ValueError("'meta.evidence' must be a list of [position, sentence] pairs.")
  evidence = tuple((columns.position(place, len(passages), "meta.evidence"), sentence) for place, sentence in pairs)
  basics = _asked(row, identity, ("id",), "question", "answers")
  return Example(*basics, passages, supporting, str(row.get("source") or source), hops, evidence, meta)


def flashrag(row: Row, identity: str, source: str) -> Example:
  """FlashRAG's rows: {"id", "question", "golden_answers", "metadata"}. Golds may be positions in "choices"."""
  meta = columns.mapping(row, "metadata")
  choices, golds = row.get("choices"), row["golden_answers"]
  if choices and isinstance(golds, list) and all(isinstance(gold, int) for gold in golds):
    choices = columns.listed(row, "choices")
    golds = [choices[columns.position(gold, len(choices), "golden_answers")] for gold in golds]
  golds = columns.golds(dict(golden_answers=golds), "golden_answers")
  name, question = columns.identified(row, ("id",), identity), columns.question(row)
  # In a file of Search-R1 several sets have the same ids. Its prompts are left out: recipes write their own.
  used = "id question golden_answers metadata data_source prompt ability reward_model".split()
  others = {column: value for column, value in row.items() if column not in used}
  source = str(row.get("data_source") or source)
  passages = supporting = evidence = ()
  if meta.get("context") and meta.get("supporting_facts"):
    passages, supporting, evidence = columns.by_title(
      columns.contexts(meta.pop("context")), columns.facts(meta["supporting_facts"])
    )
  return Example(
    name, question, golds, passages, supporting, source, len(supporting) or None, evidence, {**meta, **others}
  )


def verl(row: Row, identity: str, source: str) -> Example:
  """The training files of Search-R1 and verl: {"data_source", "prompt", "ability", "reward_model", "extra_info"}.

  The question is extra_info's; without one, it is what follows the last "Question:" of the last user message, or all of
  this message. The answers are the reward model's ground truth, or its "target". The id is made of extra_info's split
  and index, as FlashRAG's are.
  """
  extra, truth = columns.mapping(row, "extra_info"), columns.mapping(row, "reward_model").get("ground_truth")
  truth = truth.get("target") if isinstance(truth, Mapping) else truth
  answers = columns.golds({"reward_model.ground_truth": truth}, "reward_model.ground_truth")
  question = row.get("question") or extra.get("question")
  if not question:
    turns = [turn for turn in columns.listed(row, "prompt") if isinstance(turn, Mapping) and turn.get("role") == "user"]
    question = columns.question(turns[-1] if turns else {}, "content").rpartition("Question:")[2].strip()
  place = [extra.get("split"), extra.get("index")]
  name = columns.identified(row, ("id",), identity if None in place else "_".join(map(str, place)))
  return flashrag({**row, "id": name, "question": question, "golden_answers": answers}, identity, source)


def hotpotqa(row: Row, identity: str, source: str) -> Example:
  """Rows of HotpotQA and 2WikiMultihopQA, as published and as on the Hugging Face hub.

  A passage is its sentences joined. Supporting passages are found by title. A supporting title that no passage has
  (fullwiki) appears only in meta["gold_titles"].
  """
  facts = columns.facts(row.get("supporting_facts"))
  passages, supporting, evidence = columns.by_title(columns.contexts(row["context"]), facts)
  titles = list(dict.fromkeys(title for title, _ in facts))
  used = {"_id", "id", "question", "answer", "context", "supporting_facts"}
  meta = {column: value for column, value in row.items() if column not in used}
  basics = _asked(row, identity, ("_id", "id"), "question", "answer")
  meta["gold_titles"] = titles
  return Example(*basics, passages, supporting, source, len(titles) or None, evidence, meta)


def musique(row: Row, identity: str, source: str) -> Example:
  """MuSiQue's rows as published: paragraphs with is_supporting, a decomposition, aliases.

  MuSiQue-Full has each question twice under one id, with and without all its supporting paragraphs. The id of the
  unanswerable one gets "/unanswerable".
  """
  passages, supporting, place = [], [], {}
  for i, paragraph in enumerate(columns.listed(row, "paragraphs")):
    if not isinstance(paragraph, Mapping) or not isinstance(paragraph.get("paragraph_text"), str):
      raise ValueError(f"'paragraphs[{i}]' must be an object with a text 'paragraph_text'.")
    if not isinstance(title := paragraph.get("title") or "", str) or not isinstance(paragraph.get("idx", i), str | int):
      raise ValueError(f"'paragraphs[{i}]' must have a text as 'title' and a number as 'idx'.")
    passages.append(columns.make_passage(title, paragraph["paragraph_text"]))
    place[str(paragraph.get("idx", i))] = i
    if columns.truth(paragraph, "is_supporting"):
      supporting.append(i)
  steps = []
  for step in columns.listed(row, "question_decomposition"):
    if not isinstance(step, Mapping) or not isinstance(at := step.get("paragraph_support_idx"), str | int | None):
      raise ValueError("'question_decomposition' must be a list of objects with a number 'paragraph_support_idx'.")
    steps.append(dict(question=step.get("question"), answer=step.get("answer"), passage=place.get(str(at))))
  meta = dict(decomposition=steps, answerable=columns.truth(row, "answerable") is not False)
  evidence = tuple((i, passages[i].text) for i in supporting)
  name, *basics = _asked(row, identity, ("id",), "question", "answer")
  name += "/unanswerable" * (not meta["answerable"])
  return Example(name, *basics, tuple(passages), tuple(supporting), source, len(steps) or None, evidence, meta)


def longbench(row: Row, identity: str, source: str) -> Example:
  """LongBench's rows, {"input", "context", "answers", "length", "dataset", …, "_id"}: the context is one passage."""
  if not isinstance(context := row["context"], str):
    raise ValueError(f"'context' must be text, this is {context!r:.80}.")
  source = str(row.get("dataset") or source)
  return _simple(row, identity, source, ("_id",), "input", "answers", context, ignored=("context", "dataset"))


def drop(row: Row, identity: str, source: str) -> Example:
  """DROP's rows on the Hugging Face hub: {"section_id", "query_id", "passage", "question", "answers_spans"}.

  Several spans are the parts of one answer, which is one gold: "red, blue". Several numbers or dates are answers of
  several people, and so are spans of which one occurs twice (the hub's validation rows): each of them is a gold.
  """
  if not isinstance(row["passage"], str):
    raise ValueError(f"'passage' must be text, this is {row['passage']!r:.80}.")
  answers = columns.mapping(row, "answers_spans")
  types = list(dict.fromkeys(map(str, columns.listed(answers, "types", "answers_spans"))))
  meta = dict(section_id=row.get("section_id"), answer_types=types)
  golds = columns.golds(dict(spans=answers.get("spans")), "spans")
  if types == ["span"] and len(golds) == len(answers["spans"]):
    golds = (", ".join(golds),)
  name, question = columns.identified(row, ("query_id",), identity), columns.question(row)
  return Example(name, question, golds, (columns.make_passage("", row["passage"]),), (0,), source, 1, meta=meta)


def ms_marco(row: Row, identity: str, source: str) -> Example:
  """MS MARCO's rows on the Hugging Face hub: {"query_id", "query", "answers", "passages": {columns}}.

  A question without an answer keeps the published gold "No Answer Present.", and its meta["answerable"] is False.
  """
  passages = columns.mapping(row, "passages")
  texts, selected = columns.listed(passages, "passage_text"), columns.listed(passages, "is_selected")
  if len(texts) != len(selected) or not all(isinstance(text, str) for text in texts):
    raise ValueError("'passages' must have the columns 'passage_text' (texts) and 'is_selected', of the same length.")
  name, question, golds = _asked(row, identity, ("query_id",), "query", "answers")
  meta = dict(
    answerable=golds != ("No Answer Present.",), query_type=row.get("query_type"), urls=columns.listed(passages, "url")
  )
  supporting = tuple(i for i, gold in enumerate(selected) if columns.truth(dict(is_selected=gold), "is_selected"))
  passages = tuple(columns.make_passage("", text) for text in texts)
  return Example(name, question, golds, passages, supporting, source, len(supporting) or None, meta=meta)


def reading(row: Row, identity: str, source: str) -> Example:
  """Rows whose context is one text: {"question", "context", "answer"}; the answer is a string or a list of strings.

  CofCA's questions can be brought into this layout, and those of any reading test.
  """
  return _simple(row, identity, source, ("_id", "id"), "question", "answer", row["context"], ignored=("context",))


def prompted(row: Row, identity: str, source: str) -> Example:
  """Rows with a whole user's message: {"prompt", "answer"}, as in the data of CARE's code.

  The message is the question and, since it holds the context, the one passage. meta["prompt"] is True: CARE's prompt
  shows such a message as it is. A row with a "question" that is not in the message is `plain`.
  """
  asked, prompt = row.get("question"), row["prompt"]
  if isinstance(asked, str) and asked.strip() and not (isinstance(prompt, str) and asked.strip() in prompt):
    return plain(row, identity, source)
  result = _simple(row, identity, source, ("id",), "prompt", "answer", columns.question(row, "prompt"))
  return dataclasses.replace(result, meta={**result.meta, "prompt": True})


def plain(row: Row, identity: str, source: str) -> Example:
  """Rows without passages, as in NQ-open: {"question", "answer"}; the answer is a string or a list of strings."""
  return _simple(row, identity, source, ("id",), "question", "answer")


def _simple(
  row: Row,
  identity: str,
  source: str,
  ids: Sequence[str],
  question: str,
  answer: str,
  text: str | None = None,
  *,
  ignored: Sequence[str] = (),
) -> Example:
  """An example from the columns of its id, question and answer, with this text as its passage; columns that are none of
  these, nor `ignored` them, go to meta."""
  meta = {column: value for column, value in row.items() if column not in {*ids, question, answer, *ignored}}
  passages = () if text is None else (columns.make_passage("", text),)
  return Example(*_asked(row, identity, ids, question, answer), passages, source=source, meta=meta)


def _asked(row: Row, identity: str, ids: Sequence[str], question: str, answer: str) -> tuple[str, str, tuple[str, ...]]:
  """(id, question, golds) from these columns, and from "answer_aliases"."""
  golds = [*columns.golds(row, answer), *columns.listed(row, "answer_aliases")]
  return columns.identified(row, ids, identity), columns.question(row, question), columns.golds({answer: golds}, answer)


def browsecomp_plus(row: Row, identity: str, source: str) -> Example:
  """BrowseComp-Plus's rows, decrypted by its own script: {"query_id", "query", "answer", "gold_docs", "evidence_docs"}.

  The documents' texts are left to the corpus: meta["gold_ids"] has the ids of the evidence, meta["answer_ids"] those of
  the documents that hold the answer.
  """

  def ids(column: str) -> list[str]:
    documents = columns.listed(row, column)
    if not all(isinstance(document, Mapping) and isinstance(document.get("docid"), str) for document in documents):
      raise ValueError(f"'{column}' must be a list of documents with a text 'docid'.")
    return [document["docid"] for document in documents]

  meta = dict(gold_ids=ids("evidence_docs"), answer_ids=ids("gold_docs"))
  return Example(*_asked(row, identity, ("query_id",), "query", "answer"), source=source, meta=meta)


# (columns, layout): the first entry whose columns all occur in the row decides.
LAYOUTS: tuple[tuple[tuple[str, ...], Callable[[Row, str, str], Example]], ...] = (
  (("golden_answers",), flashrag),
  (("data_source", "reward_model"), verl),
  (("input", "context", "answers"), longbench),
  (("query", "query_id", "passages", "answers"), ms_marco),
  (("passage", "answers_spans"), drop),
  (("answers",), ours),
  (("query", "answer", "evidence_docs", "gold_docs"), browsecomp_plus),
  (("paragraphs", "answer"), musique),
  (("context", "answer"), hotpotqa),
  (("prompt", "answer"), prompted),
  (("answer",), plain),
)


def _with_known_columns(example: Example) -> Example:
  """The example, whose meta has "gold_ids" as a list and "answerable" as a bool, or lacks what the row leaves empty."""
  if not {"gold_ids", "answerable"} & example.meta.keys():
    return example
  gold_ids = None
  if example.meta.get("gold_ids") not in (None, ""):
    gold_ids = columns.listed(example.meta, "gold_ids")
    if not all(isinstance(name, str | int) for name in gold_ids):
      raise ValueError(f"'gold_ids' must be a list of passages' ids, this is {gold_ids!r:.80}.")
  known = dict(gold_ids=gold_ids, answerable=columns.truth(example.meta, "answerable"))
  meta = {**example.meta, **known}
  return dataclasses.replace(example, meta={n: v for n, v in meta.items() if n not in known or v is not None})


def _check_text(example: Example) -> None:
  """Refuses half a surrogate pair, which JSON allows and UTF-8 cannot encode."""
  try:
    for text in (example.id, example.question, *example.golds):
      text.encode()
    for passage in example.passages:
      f"{passage.id}{passage.title}{passage.text}".encode()
  except UnicodeEncodeError as error:
    raise ValueError(f"the row's text is not valid Unicode: {error}.") from error
