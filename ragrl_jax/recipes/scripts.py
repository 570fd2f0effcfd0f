"""What scripts of the recipes share: the sentences that answer an example, and the next query of a search agent.

A script plays the model's part in a demonstration (`Recipe.script`). It knows the supporting passages of the row.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from ragrl_jax.core.metrics import qa
from ragrl_jax.core.rewards.queries import FUNCTION_WORDS
from ragrl_jax.prompting import passages
from ragrl_jax.structs import MODEL, Example, Segment

_SENTENCES = re.compile(r"(?<!\b[^\W\d_]\.)(?<!\b[A-Z]\w\.)(?<=[.!?])\s+|\n+|(?<=[。！？।؟])")
_WORDS = re.compile(r"\w+(?:[-'’.,]\w+)*")
MOST_KEYWORDS = 12


class NotShown(Exception):
  """The example cannot be demonstrated. The text is the reason; examples are counted by it."""


@dataclasses.dataclass(frozen=True)
class Fact:
  """A sentence that the answer is based on.

  Attributes:
    number: number of its passage, from 1: in the prompt, or among the results of a search.
    sentence: as the passage shows it, word for word.
    golds: what the sentence says of the answer: the golds, or the answer to a step of the decomposition; () if unknown.
    question: the step's question, or the whole one.
  """

  number: int
  title: str
  sentence: str
  golds: tuple[str, ...]
  question: str


def facts(example: Example) -> tuple[Fact, ...]:
  """One fact of each supporting passage, in the order of the decomposition, or the one with the answer last.

  Raises:
    NotShown: the row is marked as unanswerable; no passage is marked as supporting, or no sentence of those has the
      answer (unless it is yes or no).
  """
  if not example.golds or not example.supporting:
    raise NotShown("no answer in the row" if not example.golds else "no passage marked as supporting")
  if not example.meta.get("answerable", True):
    raise NotShown("marked as unanswerable")
  result = list(_of_steps(example))
  if {fact.number - 1 for fact in result} != {*example.supporting}:
    result = [_fact(example, place, example.golds, example.question) for place in sorted({*example.supporting})]
    result.sort(key=lambda fact: bool(fact.golds))
  if (golds := _searched(example.golds)) and not qa.has_answer(result[-1].sentence, golds):
    raise NotShown("no sentence of a supporting passage has the answer")
  return tuple(result)


def answer(example: Example) -> str:
  """The gold that the last fact's sentence has; the first one if it has none."""
  sentence = facts(example)[-1].sentence
  return next((gold for gold in example.golds if qa.has_answer(sentence, [gold])), example.golds[0])


def keywords(text: str, but: str = "") -> str:
  """The text's words without function words and those of `but`; at most MOST_KEYWORDS."""
  left_out = {word.lower() for word in _WORDS.findall(but)}
  words = [word for word in _WORDS.findall(text) if word.lower() not in FUNCTION_WORDS | left_out]
  return " ".join(words[:MOST_KEYWORDS])


def next_query(example: Example, segments: Sequence[Segment]) -> tuple[list[Fact], str]:
  """(facts that the last results state and no earlier ones did, the next query; "" when every fact was found).

  Queries are the question, or those of the decomposition; then the title of the missing passage.

  Raises:
    NotShown: see `facts`; or no query finds a fact.
  """
  remaining, new, queries = facts(example), [], set()
  for search in (segment for segment in segments if segment.found is not None):
    read = [(fact, _told(fact, search)) for fact in remaining]
    remaining, new = [fact for fact, told in read if told is None], [told for _, told in read if told is not None]
    queries.add(search.query)
  if not remaining:
    return new, ""
  title, question = remaining[0].title, remaining[0].question
  for query in (question, f"{title} {keywords(question, title)}".strip(), title):
    if query and query not in queries and keywords(query) not in queries:
      return new, query
  raise NotShown("the searches do not find the supporting passages")


def quoted(stated: Iterable[Fact], name: str) -> str:
  """The facts as text: `NAME 2 says: …`, one after the other."""
  return " ".join(f"{name} {fact.number} says: {fact.sentence}" for fact in stated)


def answer_directly(examples: Iterable[Example]) -> list[list[tuple[str, str]]]:
  """Transcripts for SFT whose whole reply is the first gold, in `<answer>`.

  Source: ARENA's SFT-direct, and LEAR's generator (sec. 4).
  """
  return [[(MODEL, f"<answer> {example.golds[0]} </answer>")] for example in examples]


def _of_steps(example: Example) -> Iterable[Fact]:
  """The facts of a decomposition as in MuSiQue: {"question", "answer", "passage": position}; #1 is the first answer."""
  known, answers = example.meta.get("decomposition"), []
  steps = known if isinstance(known, list) else []
  for step in steps:
    if not isinstance(step, Mapping) or step.get("passage") not in example.supporting:
      return
    question = str(step.get("question") or example.question).replace(" >> ", " ")
    for number, said in enumerate(answers, 1):
      question = question.replace(f"#{number}", said)
    answers.append(str(step.get("answer") or ""))
    golds = example.golds if len(answers) == len(steps) else (answers[-1],)
    yield _fact(example, step["passage"], golds, question)


def _fact(example: Example, place: int, golds: Sequence[str], question: str) -> Fact:
  passage = example.passages[place]
  sentences = [sentence for at, sentence in example.evidence if at == place and sentence.strip() in passage.text]
  golds = _searched(golds)
  sentence = _sentence(sentences or [passage.text], golds, question)
  return Fact(place + 1, passage.title, sentence, golds if qa.has_answer(sentence, golds) else (), question)


def _searched(golds: Sequence[str]) -> tuple[str, ...]:
  """The golds that a sentence can have. The "no" in "World No. 3" is not the answer no."""
  return tuple(gold for gold in golds if qa.searchable([gold]))


def _sentence(texts: Sequence[str], golds: Sequence[str], question: str) -> str:
  """The sentence with a gold that has most of the question's keywords; without a gold if there is none."""
  words = {*keywords(question).lower().split()}
  shared = lambda part: len(words & {word.lower() for word in _WORDS.findall(part)})
  parts = [part.strip() for text in texts for part in _SENTENCES.split(text) if part.strip()] or [""]
  return passages.neutral(max(parts, key=lambda part: (qa.has_answer(part, golds), shared(part))))


def _told(fact: Fact, search: Segment) -> Fact | None:
  """The fact as these results state it: in its own words, else in those of the passage with its title; or None."""
  own_sentence = lambda passage: fact.sentence if fact.sentence in passages.neutral(passage.text) else ""
  same = lambda passage: fact.title and fact.title.casefold() == passage.title.casefold()
  other_sentence = lambda passage: _sentence([passage.text], fact.golds, fact.question) if same(passage) else ""
  for said in (own_sentence, other_sentence):
    for number, passage in enumerate(search.found or (), 1):
      sentence = said(passage)
      if sentence and sentence in search.text and (not fact.golds or qa.has_answer(sentence, fact.golds)):
        return dataclasses.replace(fact, number=number, sentence=sentence)
  return None
