"""Audits a corpus: whether it contains the answers of questions, and the gold documents by id, title and text."""

import concurrent.futures
import dataclasses
import functools
import itertools
import multiprocessing
import pathlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tqdm import tqdm

from ragrl_jax.core.metrics import qa, stats
from ragrl_jax.core.text import aligned, tokens
from ragrl_jax.evaluation import answer_recall, comparison
from ragrl_jax.retrieval import corpus as corpus_lib
from ragrl_jax.store import episodes as episodes_lib, jsonl
from ragrl_jax.structs import Example, Passage

MANY = 100  # counts of passages with an answer stop here
PIECE = 10  # tokens in a piece of a gold document's text
SAMPLE = 2000  # passages from which word frequencies are estimated
PART = 200_000  # fewest passages for which another process is started
AUDIT, ROWS = "audit.json", "audit.jsonl"  # in an evaluation's folder
HELD = {"0": 0, "1": 1, "2 to 9": 2, "10 to 99": 10, "100 or more": MANY}  # label → smallest number of passages


@dataclasses.dataclass(frozen=True)
class Holdings:
  """Answers and gold documents found in a corpus.

  Attributes:
    phrases: answer or piece of text (`tokens.joined`) → number of passages that contain it: at most MANY for answers,
      1 for pieces.
    titles: titles (`tokens.joined`) of gold documents that occur in the corpus.
    ids: gold ids that passages of the corpus have, or the documents that they were cut from.
  """

  phrases: Mapping[str, int]
  titles: frozenset[str]
  ids: frozenset[str]
  passages: int

  def plus(self, other: "Holdings") -> "Holdings":
    """The sum over two parts of a corpus."""
    phrases = {phrase: min(MANY, count + other.phrases[phrase]) for phrase, count in self.phrases.items()}
    return Holdings(phrases, self.titles | other.titles, self.ids | other.ids, self.passages + other.passages)


def holdings(examples: Sequence[Example], passages: Iterable[Passage]) -> Holdings:
  """Searches the questions' answers and gold documents in one pass over the passages.

  Args:
    passages: the corpus; it is read as a stream.
  """
  documents = [document for example in examples for document in _documents(example)]
  enough = {piece: 1 for _, text in documents for piece in _pieces(text)}
  enough |= {answer: MANY for example in examples for answer in _answers(example)}
  wanted_titles = {title for title, _ in documents if title}
  wanted_ids = {name for example in examples for name in _ids(example)}
  stream, called, ids, number = iter(passages), set(), set(), 0
  head = list(itertools.islice(stream, SAMPLE))
  phrases = Phrases(enough, (tokens.joined(passage.text) for passage in head))
  for passage in itertools.chain(head, stream):
    number += 1
    phrases.add(tokens.joined(passage.text))
    title = tokens.joined(passage.title)
    if title in wanted_titles:
      called.add(title)
    if name := episodes_lib.gold_id(passage, wanted_ids):
      ids.add(name)
  return Holdings(phrases.counts, frozenset(called), frozenset(ids), number)


def of_folder(examples: Sequence[Example], folder: pathlib.Path, workers: int) -> Holdings:
  """`holdings` of an index's corpus, of which several processes read a part each."""
  size = len(corpus_lib.Corpus(folder))
  parts = min(4 * workers, size // PART)
  if workers == 1 or parts < 2:
    return _of_part(examples, folder, 0, size)
  edges = [size * number // parts for number in range(parts + 1)]
  # A forked process would share JAX's threads.
  with concurrent.futures.ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
    running = [pool.submit(_of_part, examples, folder, *pair) for pair in itertools.pairwise(edges)]
    parts_done = [one.result() for one in tqdm(running, desc="audit: corpus", unit="part")]
  return functools.reduce(Holdings.plus, parts_done)


def _of_part(examples: Sequence[Example], folder: pathlib.Path, first: int, last: int) -> Holdings:
  """`holdings` of the rows from `first` up to `last`."""
  stored = corpus_lib.Corpus(folder)
  return holdings(examples, (stored[row] for row in range(first, last)))


def row(example: Example, holdings_of: Holdings) -> dict[str, Any]:
  """The row of one question: which answers and gold documents the corpus has.

  Returns:
    source, id, question, golds: of the question.
    passages: the number of passages that contain a gold (`qa.has_answer`), at most MANY. With several golds, that of
      the most frequent one. None if the answer is yes or no: it cannot be searched as a string.
    gold: number of gold documents.
    by_title, by_text, by_id: [gold documents that the corpus has, gold documents with a title, a text, an id of the
      corpus (meta.gold_ids)]; left out if the second number is 0. A text counts as found if at least half of its runs
      of PIECE tokens are in passages, so other chunks of the same text count.
  """
  answers, documents = _answers(example), _documents(example)
  result: dict[str, Any] = dict(source=example.source, id=example.id, question=example.question, golds=example.golds)
  result["passages"] = max(holdings_of.phrases[answer] for answer in answers) if answers else None
  result["gold"] = len(documents) or len(_ids(example))
  pieces = [[holdings_of.phrases[piece] > 0 for piece in _pieces(text)] for _, text in documents if text]
  found_in = dict(
    by_title=[title in holdings_of.titles for title, _ in documents if title],
    by_text=[2 * sum(matches) >= len(matches) for matches in pieces],
    by_id=[name in holdings_of.ids for name in _ids(example)],
  )
  return result | {way: [sum(matches), len(matches)] for way, matches in found_in.items() if matches}


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Shares over questions, from `row`.

  Returns:
    questions: number of questions; with_string: those whose answer can be searched as a string.
    answerable: the share of the latter with an answer in some passage, and its 95 % interval.
    held_by: {number of passages with an answer: number of questions}.
    gold_documents: their number; by_title, by_text, by_id: the share of them in the corpus.
    complete_by_…: the share of questions with gold documents for which the corpus has all of them.
    A share of nothing is None.
  """
  known = [row["passages"] for row in rows if row["passages"] is not None]
  result: dict[str, Any] = dict(questions=len(rows), with_string=len(known))
  result["answerable"] = stats.mean_known(count > 0 for count in known)
  if known:
    result["answerable_interval"] = list(stats.bootstrap_interval([float(count > 0) for count in known], seed=0))
  labels = Counter(max((label for label in HELD if HELD[label] <= count), key=HELD.__getitem__) for count in known)
  result["held_by"] = {label: labels[label] for label in HELD}
  result["gold_documents"] = sum(row["gold"] for row in rows)
  for way in ("by_title", "by_text", "by_id"):
    pairs = [row[way] for row in rows if way in row]
    result[way] = sum(held for held, _ in pairs) / sum(of for _, of in pairs) if pairs else None
    result[f"complete_{way}"] = sum(held == of for held, of in pairs) / len(pairs) if pairs else None
  return result


def audited(
  examples: Sequence[Example], held: Holdings, rankings: Sequence[Sequence[Passage]] | None = None, *, k: int = 5
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
  """The audit of a corpus, and of an index over it.

  Args:
    rankings: the passages that the index finds for each question, best first; None without an index.

  Returns:
    (summary, rows). The summary has passages, top_k, and sets: {source: `totals`}; with several sources, "" has
    all questions. The rows are from `row`. With an index they also have by_answer (`answer_recall.answer_scores`; None
    if the answer cannot be searched) and by_gold (`answer_recall.gold_scores`; None if the documents are unknown).
  """
  rows = [row(example, held) for example in examples]
  if rankings is not None:
    for example, one, passages in zip(examples, rows, rankings, strict=True):
      known = one["passages"] is not None
      one["by_answer"] = answer_recall.answer_scores(example, passages, k) if known else None
      one["by_gold"] = answer_recall.gold_scores(example, passages, k)
  of_set: dict[str, list[dict[str, Any]]] = {}
  for one in rows:
    of_set.setdefault(one["source"], []).append(one)
  if len(of_set) > 1:
    of_set = comparison.named(of_set) | {"": rows}
  top_k = None if rankings is None else k
  sets = {name: totals(some, top_k) for name, some in of_set.items()}
  return dict(passages=held.passages, top_k=top_k, sets=sets), rows


def totals(rows: Sequence[Mapping[str, Any]], k: int | None) -> dict[str, Any]:
  """`summarise`, and with an index (k is not None) the scores of `answer_recall.measured`.

  Scores by answer are over questions whose answer can be searched, scores by gold document over all questions. missed@k
  is the share of the answerable questions without an answer among the first k passages.
  """
  result = summarise(rows)
  if k is None:
    return result
  if answered := [row["by_answer"] for row in rows if row["by_answer"] is not None]:
    result |= answer_recall.means(answered, k)
  able = [row["by_answer"]["recall"] for row in rows if row["passages"]]
  result[f"missed@{k}"] = 1 - sum(able) / len(able) if able else None
  return result | answer_recall.gold_means([row["by_gold"] for row in rows], k)


def beside(folder: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
  """The audit in an evaluation's folder, for the evaluation's questions; None without one.

  Args:
    rows: the evaluation's predictions without failed questions.

  Returns:
    audit.json with further keys: "totals" is `totals` of these questions. "em_answerable" and "em_others" are the mean
    exact match of the questions with an answer in some passage, and of the others; None without such questions.

  Raises:
    ValueError: the audit lacks some of these questions, or has others under their ids.
  """
  if not (summary := jsonl.read_object(folder / AUDIT)):
    return None
  by_question = {(row["source"], row["id"]): row for row in jsonl.read(folder / ROWS)}
  keys = [(row["source"] or "", row["id"]) for row in rows]
  if missing := [key for key in keys if key not in by_question]:
    raise ValueError(
      f"{folder / AUDIT}: {len(missing)} of the evaluation's {len(keys)} questions are not in the audit, the first is "
      f"{missing[0][1]!r}: run `ragrl audit` on the evaluation's --data, or delete the file."
    )
  own_rows = [by_question[key] for key in keys]
  scores: dict[bool, list[float]] = {True: [], False: []}
  for audit, row in zip(own_rows, rows):
    if (audit.get("question"), audit.get("golds")) != (row["question"], list(row["golds"])):
      raise ValueError(
        f"{folder / AUDIT}: question {row['id']!r} has another text or other golds there than in the evaluation: run "
        "`ragrl audit` again, or delete the file."
      )
    if audit["passages"] is not None:
      exact = 0.0 if row["prediction"] is None else qa.exact_match(row["prediction"], row["golds"])
      scores[audit["passages"] > 0].append(exact)
  means = {name: stats.mean_known(scores[able]) for name, able in (("em_answerable", True), ("em_others", False))}
  return summary | dict(totals=totals(own_rows, summary["top_k"]), **means)


def in_a_line(audit: Mapping[str, Any]) -> str:
  """The audit of an evaluation in one line."""
  of, k = audit["totals"], audit["top_k"]
  shares = {
    "of these have an answer in some passage": of["answerable"],
    "of the gold documents are in the corpus by id": of["by_id"],
    "by title": of["by_title"],
    "by text": of["by_text"],
    f"have an answer among the first {k}": of.get(f"recall@{k}"),
  }
  shares_known = [f"{100 * value:.1f} % {what}" for what, value in shares.items() if value is not None]
  scores = {"with an answer in a passage": audit["em_answerable"], "without": audit["em_others"]}
  em = [f"EM {value:.3f} {what}" for what, value in scores.items() if value is not None]
  number = f"{audit['passages']} passages; {of['with_string']} of {of['questions']} questions have a searchable answer"
  return "; ".join([number, *shares_known, *em])


def text(summary: Mapping[str, Any]) -> str:
  """The summary of `audited` as a plain table with one line per set."""
  k = summary["top_k"]
  columns = {"answerable": "answerable", "gold by id": "by_id", "by title": "by_title", "by text": "by_text"}
  columns |= {f"recall@{k}": f"recall@{k}", f"missed@{k}": f"missed@{k}", f"gold recall@{k}": f"gold_recall@{k}"}
  shown_columns = {head: name for head, name in columns.items() if any(name in of for of in summary["sets"].values())}
  lines = [("set", "questions", "with a string", *shown_columns)]
  for name, of in summary["sets"].items():
    numbers = ("–" if of.get(column) is None else f"{of[column]:.3f}" for column in shown_columns.values())
    lines.append((name or "(all)", str(of["questions"]), str(of["with_string"]), *numbers))
  return f"{aligned.columns(lines, left=1)}\n{summary['passages']} passages"


def _answers(example: Example) -> list[str]:
  """The golds as tokens; empty if one is yes or no, because many passages contain these words without answering."""
  golds = map(tokens.joined, example.golds if qa.searchable(example.golds) else ())
  return list(dict.fromkeys(filter(None, golds)))


def _documents(example: Example) -> list[tuple[str, str]]:
  """(title, text) of each gold passage, as tokens."""
  golds = episodes_lib.gold_passages(example)
  return list(dict.fromkeys((tokens.joined(gold.title), tokens.joined(gold.text)) for gold in golds))


def _ids(example: Example) -> list[str]:
  return [str(name) for name in example.meta.get("gold_ids") or ()]


def _pieces(text: str) -> list[str]:
  """The text's runs of PIECE tokens; a shorter rest only if the text has no other."""
  words = text.split()
  runs = [words[start : start + PIECE] for start in range(0, len(words), PIECE)]
  full = [run for run in runs if len(run) == PIECE] or runs
  return [" ".join(run) for run in full]


class Phrases:
  """Searches phrases in texts, as whole words. A phrase is dropped when enough texts contain it.

  A phrase is searched only in texts that contain its rarest pair of neighbouring words. So a text costs little more for
  a hundred thousand phrases than for ten.

  Attributes:
    counts: phrase → number of texts that contain it, at most its `enough`.
  """

  def __init__(self, enough: Mapping[str, int], sample: Iterable[str]):
    """
    Args:
      enough: phrase → the number of texts at which counting stops. Phrases and texts are normalised in the same way:
        words separated by one space. An empty phrase is in no text.
      sample: some of the texts, for the frequencies of words.
    """
    seen = Counter(word for text in itertools.chain(sample, enough) for word in set(text.split()))
    self.counts = dict.fromkeys(enough, 0)
    self._enough = enough
    self._words: set[str] = set()  # phrases of one word
    self._pairs: dict[tuple[str, str], list[str]] = {}  # rarest pair → " phrase " of each
    for phrase in filter(None, enough):
      words = phrase.split()
      if len(words) == 1:
        self._words.add(phrase)
      else:
        rarest = min(zip(words, words[1:]), key=lambda pair: seen[pair[0]] * seen[pair[1]])
        self._pairs.setdefault(rarest, []).append(f" {phrase} ")

  def add(self, text: str) -> None:
    """Counts a text."""
    words = text.split()
    for word in self._words.intersection(words):
      if self._held(word):
        self._words.remove(word)
    whole = f" {text} "
    for pair in self._pairs.keys() & set(zip(words, words[1:])):
      phrases = self._pairs[pair]
      for padded in [padded for padded in phrases if padded in whole]:
        if self._held(padded[1:-1]):
          phrases.remove(padded)
      if not phrases:
        del self._pairs[pair]

  def _held(self, phrase: str) -> bool:
    """Counts a text that contains the phrase. Returns whether the phrase is dropped now."""
    self.counts[phrase] += 1
    return self.counts[phrase] == self._enough[phrase]
