"""How well a retriever finds passages that hold an answer: recall and nDCG by the answer's string."""

from collections.abc import Sequence

from ragrl_jax.core.metrics import qa, retrieval, stats
from ragrl_jax.structs import Example, Passage


def measured(examples: Sequence[Example], found: Sequence[Sequence[Passage]], k: int) -> dict[str, float]:
  """Recall@k and nDCG@k over the questions, with 95 % bootstrap intervals.

  A passage is relevant if it holds a gold as whole words (title included). Recall is the share of questions with a
  relevant passage among the first k. nDCG has one grade, and its ideal ranking is the retrieved relevant passages
  first: how many the corpus holds is not known. A question without any counts 0 in both.

  Args:
    examples: the questions.
    found: the passages of each, best first.
    k: number of ranks that count.

  Raises:
    ValueError: no question.

  Source: LEAR Table 3; DPR's evaluation (arXiv 2004.04906).
  """
  if not examples:
    raise ValueError("no questions: recall is a mean over questions.")
  recalled, gains = [], []
  for example, passages in zip(examples, found, strict=True):
    ranks = [str(rank) for rank in range(len(passages))]
    relevance = {
      rank: int(qa.has_answer(f"{passage.title} {passage.text}", example.golds))
      for rank, passage in zip(ranks[:k], passages)
    }
    recalled.append(float(any(relevance.values())))
    gains.append(retrieval.ndcg(ranks, relevance, k) or 0.0)
  names = {f"recall@{k}": recalled, f"ndcg@{k}": gains}
  return {"n": len(examples)} | {
    key: value
    for name, values in names.items()
    for key, value in (
      (name, sum(values) / len(values)),
      (f"{name}_interval", stats.bootstrap_interval(values, seed=0)),
    )
  }
