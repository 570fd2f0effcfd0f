"""Measures of the evidence in an episode: overlap with the gold sentences, recall of the gold answers, and length."""

from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax.core.metrics import qa


def gold(example) -> str:
  """The gold sentences joined; "" if the data marks none."""
  return " ".join(sentence for _, sentence in example.evidence)


def bleu(evidence: Sequence[str], golds: Sequence[str]) -> float:
  """Corpus BLEU by sacrebleu, 0 to 100, with one reference per text.

  Source: CARE sec. 4.3; sacrebleu's defaults (13a tokens, exponential smoothing).
  """
  import sacrebleu  # slow to import, and few runs need it

  return sacrebleu.corpus_bleu(list(evidence), [list(golds)]).score


def rouge_l(evidence: Sequence[str], golds: Sequence[str]) -> float:
  """Mean ROUGE-L F1 by rouge-score, 0 to 1, without stemming."""
  from rouge_score import rouge_scorer  # imports nltk

  scorer = rouge_scorer.RougeScorer(["rougeL"])
  scores = [scorer.score(target, said)["rougeL"].fmeasure for said, target in zip(evidence, golds, strict=True)]
  return sum(scores) / len(scores)


def row(recipe, example, episode) -> dict[str, Any]:
  """The evidence's columns in a row of predictions; empty for a recipe without evidence and for a failed episode.

  Lengths are in the policy's tokens, from the episode's facts; None if they are missing there.
  """
  if recipe.evidence is None or episode.ended == "failed":
    return {}
  said = recipe.evidence(example, episode)
  return dict(
    evidence=said,
    gold_evidence=gold(example),
    answer_recall=qa.cover_em(said, example.golds),
    evidence_tokens=episode.facts.get("evidence_tokens"),
    passage_tokens=episode.facts.get("passage_tokens"),
  )


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
  """Means over the rows with evidence; empty without such rows.

  Returns:
    answer_recall (share of rows whose evidence contains a gold); over the rows with gold sentences evidence_bleu and
    evidence_rouge_l; over the rows with lengths compression (mean of passage tokens / evidence tokens) and
    compression_total (ratio of the two sums). A row with empty evidence counts in the sums only.
  """
  rows = [row for row in rows if "evidence" in row]
  if not rows:
    return {}
  found = {"answer_recall": sum(row["answer_recall"] for row in rows) / len(rows)}
  marked = [row for row in rows if row["gold_evidence"]]
  if marked:
    said, golds = [row["evidence"] for row in marked], [row["gold_evidence"] for row in marked]
    found |= {"evidence_bleu": bleu(said, golds), "evidence_rouge_l": rouge_l(said, golds)}
  measured = [(row["passage_tokens"], row["evidence_tokens"]) for row in rows if row["evidence_tokens"] is not None]
  ratios = [passages / evidence for passages, evidence in measured if evidence]
  if ratios:
    found["compression"] = sum(ratios) / len(ratios)
    found["compression_total"] = sum(p for p, _ in measured) / sum(e for _, e in measured)
  return found
