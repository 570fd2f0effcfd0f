r"""Questions that choose: each has a few short passages of one article, one of which holds the answer.

Run:    python benchmarks/real_model/questions.py --data ROWS --out FOLDER [--unit sentence] [--passages 4]

Reads rows of reading comprehension: question, answers, and the paragraph that holds the answer (a file, or SQuAD by its
name on the hub, hf:rajpurkar/squad/plain_text/train). Writes train.jsonl.gz, development.jsonl.gz and test.jsonl.gz,
which share no article, corpus.jsonl.gz: every unit of every article, to be searched, and hard.jsonl.gz: training
questions with twice the passages where an article has as many, for a curriculum. Prints their sizes as JSON.
"""

import argparse
import json
import pathlib
import random
import re
from collections.abc import Sequence

from ragrl_jax.core.metrics import qa
from ragrl_jax.data import readers, writers
from ragrl_jax.structs import Example, Passage

LONGEST = dict(sentence=200, paragraph=1000)  # characters of a passage
SHORTEST = 30
_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"“(])")


def units(passage: Passage, unit: str) -> list[Passage]:
  """The sentences of a paragraph, or the paragraph itself, if they are of fitting length."""
  texts = _END.split(passage.text) if unit == "sentence" else [passage.text]
  parts = [Passage(id=f"{passage.id}.{i}", title=passage.title, text=text.strip()) for i, text in enumerate(texts)]
  return [part for part in parts if SHORTEST <= len(part.text) <= LONGEST[unit]]


def with_choice(
  example: Example, article: Sequence[Passage], rng: random.Random, unit: str, count: int
) -> Example | None:
  """The question with `count` units of its article in random order, one with an answer; None if there are too few.

  Args:
    example: a question whose first supporting passage holds the answer.
    article: the paragraphs of its article.
    rng: chooses and orders.
    unit: "sentence" or "paragraph".
    count: passages of the new question. Up to half of the others are of the answer's own paragraph.
  """
  gold = example.passages[example.supporting[0] if example.supporting else 0]
  holds = [part for part in units(gold, unit) if qa.has_answer(part.text, example.golds)]
  if len(holds) != 1:  # several sentences with the answer: the supporting one is not known
    return None
  lacks = lambda parts: [part for part in parts if not qa.has_answer(part.text, example.golds)]
  near = lacks(units(gold, unit))
  far = lacks(part for passage in article if passage.id != gold.id for part in units(passage, unit))
  chosen = rng.sample(near, min(len(near), (count - 1 + 1) // 2))
  if len(far) < count - 1 - len(chosen):
    return None
  shown = [*holds, *chosen, *rng.sample(far, count - 1 - len(chosen))]
  rng.shuffle(shown)
  return Example(
    id=example.id,
    question=example.question,
    golds=example.golds,
    passages=tuple(shown),
    supporting=(shown.index(holds[0]),),
    hops=1,
  )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data", required=True, help="file, folder or hf: name of the rows")
  parser.add_argument("--out", required=True, type=pathlib.Path)
  parser.add_argument("--unit", choices=tuple(LONGEST), default="sentence")
  parser.add_argument("--passages", type=int, default=4)
  parser.add_argument("--test", type=int, default=600, help="least questions of the test articles")
  parser.add_argument("--development", type=int, default=100, help="least questions of the development articles")
  parser.add_argument("--seed", type=int, default=0)
  args = parser.parse_args()
  examples = list(readers.read_examples(args.data))
  articles: dict[str, dict[str, Passage]] = {}
  for example in examples:
    for passage in example.passages:
      articles.setdefault(passage.title, {})[passage.id] = passage
  rng, by_article = random.Random(args.seed), {}
  for example in examples:
    title = example.passages[0].title
    chosen = with_choice(example, list(articles[title].values()), rng, args.unit, args.passages)
    if chosen:
      by_article.setdefault(title, []).append(chosen)
  titles, parts = sorted(by_article), {}
  rng.shuffle(titles)
  for name, least in (("test", args.test), ("development", args.development), ("train", 0)):
    rows = parts.setdefault(name, [])
    while titles and (name == "train" or len(rows) < least):
      rows += by_article[titles.pop()]
    rng.shuffle(rows)
    writers.write_examples(args.out / f"{name}.jsonl.gz", rows)
  train = {row.id: row for row in parts["train"]}
  chosen = [example for example in examples if example.id in train]
  articles_of = (list(articles[example.passages[0].title].values()) for example in chosen)
  # A question of a short article is as hard as it was.
  parts["hard"] = [
    with_choice(example, article, rng, args.unit, 2 * args.passages) or train[example.id]
    for example, article in zip(chosen, articles_of)
  ]
  writers.write_examples(args.out / "hard.jsonl.gz", parts["hard"])
  corpus = [part for article in articles.values() for passage in article.values() for part in units(passage, args.unit)]
  writers.write_passages(args.out / "corpus.jsonl.gz", corpus)
  print(json.dumps({name: len(rows) for name, rows in parts.items()} | dict(corpus=len(corpus))))


if __name__ == "__main__":
  main()
