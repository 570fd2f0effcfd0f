"""Measures how well a retriever finds passages that contain an answer, and the gold documents."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax.core.metrics import qa, retrieval, stats
from ragrl_jax.evaluation import answer_files
from ragrl_jax.store import episodes as episodes_lib, jsonl
from ragrl_jax.structs import Example, Passage

SYSTEM = "retrieval"  # the name of retrieval alone among the systems of the papers' tables
METRICS = dict(recall=retrieval.recall, ndcg=retrieval.ndcg, mrr=retrieval.reciprocal_rank)


def measured(examples: Sequence[Example], rankings: Sequence[Sequence[Passage]], k: int) -> dict[str, float]:
  """Recall@k, nDCG@k and MRR@k over the questions, by answer and by gold document, with 95 % bootstrap intervals.

  By answer, a passage is relevant if its text contains a gold (`qa.has_answer`). Recall is the share of questions with
  a relevant passage among the first k. nDCG has one grade. Its ideal ranking has the retrieved relevant passages first,
  because the number of relevant passages in the corpus is unknown. A question without a relevant passage counts 0 in
  all three. Questions whose only golds are yes or no are left out: no passage can be searched for these.

  By gold document (`gold_…`), the documents are those of `meta["gold_ids"]`, or else the articles of the supporting
  passages (`store.episodes.content`). Recall is the share of a question's documents among the first k. A second passage
  of a document does not count. Questions without known documents are left out. If no question has any, these measures
  are left out.

  Args:
    rankings: the passages of each question, best first.

  Returns:
    n, recall@k, ndcg@k, mrr@k; gold_n, gold_recall@k, gold_ndcg@k, gold_mrr@k; each measure with `_interval`. `n` is 0
    and stands alone if no answer can be searched for.

  Raises:
    ValueError: there are no questions.

  Source: LEAR Table 3; DPR's evaluation (arXiv 2004.04906).
  """
  if not examples:
    raise ValueError("there are no questions: recall is a mean over questions.")
  pairs = [*zip(examples, rankings, strict=True)]
  scores = [score for pair in pairs if (score := answer_scores(*pair, k)) is not None]
  return (means(scores, k) if scores else dict(n=0)) | gold_means([gold_scores(*pair, k) for pair in pairs], k)


def write(
  out: pathlib.Path, examples: Sequence[Example], scores: Mapping[str, Any], settings: Mapping[str, Any]
) -> None:
  """Writes the scores of each question by its answers as a folder that `ragrl tables` reads, of the system SYSTEM.

  Questions that `measured` leaves out have no row.

  Args:
    settings: all that the scores depend on, "data" and "top_k" among it.
  """
  rows = [
    dict(id=example.id, question=example.question, golds=example.golds, prediction=None, ended="retrieved")
    | dict(source=example.source, terms=score)
    for example in examples
    if (score := answer_scores(example, example.passages, settings["top_k"])) is not None
  ]
  jsonl.write(out / answer_files.PREDICTIONS, rows)
  answer_files.write_json(
    out / answer_files.METRICS, dict(scores, settings=dict(settings, recipe=SYSTEM, system=SYSTEM))
  )


def answer_scores(example: Example, passages: Sequence[Passage], k: int) -> dict[str, float] | None:
  """{"recall", "ndcg", "mrr"} of a question by its answers. Each is 0 without a relevant passage.

  None if no gold can be searched for (`qa.searchable`); other golds beside such a one are searched for.
  """
  golds = [gold for gold in example.golds if qa.searchable([gold])]
  if not golds:
    return None
  ranks = [str(rank) for rank in range(len(passages))]
  relevance = {rank: int(qa.has_answer(passage.text, golds)) for rank, passage in zip(ranks[:k], passages)}
  scores = {name: metric(ranks, relevance, k) or 0.0 for name, metric in METRICS.items()}
  return scores | {"recall": float(any(relevance.values()))}


def gold_scores(example: Example, passages: Sequence[Passage], k: int) -> Mapping[str, float] | None:
  """`answer_scores` by gold documents instead of answers; None if the documents are unknown."""
  if ids := example.meta.get("gold_ids"):
    relevance = {str(name): 1 for name in ids}
    ranked = [episodes_lib.gold_id(passage, relevance) or passage.id for passage in passages]
  else:
    named = lambda passage: " ".join(episodes_lib.content(passage))
    relevance, ranked = (
      {named(gold): 1 for gold in episodes_lib.gold_passages(example)},
      [named(passage) for passage in passages],
    )
  return {name: metric(ranked, relevance, k) or 0.0 for name, metric in METRICS.items()} if relevance else None


def means(scores: Sequence[Mapping[str, float]], k: int, prefix: str = "") -> dict[str, float]:
  """n and the means of the questions' scores, at least one, with 95 % bootstrap intervals."""
  result: dict = {f"{prefix}n": len(scores)}
  for name in METRICS:
    values = [score[name] for score in scores]
    result[f"{prefix}{name}@{k}"] = sum(values) / len(values)
    result[f"{prefix}{name}@{k}_interval"] = stats.bootstrap_interval(values, seed=0)
  return result


def gold_means(scores: Sequence[Mapping[str, float] | None], k: int) -> dict[str, float]:
  """`means` of `gold_scores`, with the prefix "gold_"; empty if no question has known documents."""
  scored = [score for score in scores if score is not None]
  return means(scored, k, "gold_") if scored else {}
