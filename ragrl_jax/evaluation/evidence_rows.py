"""Measures of the evidence in an episode: overlap with the gold sentences, recall of the gold answers, and length."""

import hashlib
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
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
  """The columns of evidence and of the recipe's own measures in a row of predictions; empty for a failed episode.

  The evidence holds a gold as whole words, unless the recipe's switch `recall` says otherwise.

  Lengths are in the policy's tokens, from the episode's facts; None if they are missing there.
  """
  if episode.ended == "failed":
    return {}
  found: dict[str, Any] = {} if recipe.measures is None else dict(measures=dict(recipe.measures(example, episode)))
  if "extraction" in example.meta:  # its passage is evidence that another policy extracted
    found["extraction"] = example.meta["extraction"]
  if recipe.evidence is None:
    return found
  said = recipe.evidence(example, episode)
  return found | dict(
    evidence=said,
    gold_evidence=gold(example),
    answer_recall=float(qa.CONTAINS[recipe.switches.get("recall", "words")](said, example.golds)),
    evidence_tokens=episode.facts.get("evidence_tokens"),
    passage_tokens=episode.facts.get("passage_tokens"),
  )


def digest(rows: Iterable[Mapping[str, Any]], settings: Mapping[str, Any]) -> str:
  """A hash that identifies an extraction: of the evidence in its rows, whatever their order, and of its settings."""
  said = sorted((row.get("source") or "", str(row["id"]), row.get("evidence") or "") for row in rows)
  return hashlib.sha256(json.dumps([said, settings], sort_keys=True).encode()).hexdigest()[:16]


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
  """Means over the rows that have the measured values; empty without such rows.

  Returns:
    measure: {name: mean over the rows in which it is known}, for a recipe with measures.
    answer_recall: over rows with evidence, the share whose evidence contains a gold.
    evidence_bleu, evidence_rouge_l: over rows with gold sentences.
    evidence_empty: over rows with lengths, the share with empty evidence. The following are over the other ones:
    evidence_tokens, evidence_tokens_std: mean and standard deviation of the length.
    compression: mean of passage tokens / evidence tokens; compression_total: ratio of the two sums.
  """
  found: dict[str, Any] = {}
  if measured := _measures([row["measures"] for row in rows if "measures" in row]):
    found["measure"] = measured
  rows = [row for row in rows if "evidence" in row]
  if not rows:
    return found
  found["answer_recall"] = sum(row["answer_recall"] for row in rows) / len(rows)
  marked = [row for row in rows if row["gold_evidence"]]
  if marked:
    said, golds = [row["evidence"] for row in marked], [row["gold_evidence"] for row in marked]
    found |= {"evidence_bleu": bleu(said, golds), "evidence_rouge_l": rouge_l(said, golds)}
  lengths = [(row["passage_tokens"], row["evidence_tokens"]) for row in rows if row["evidence_tokens"] is not None]
  # Empty evidence compresses nothing: with its passages in the sum, a policy that extracts less would compress more.
  written = [(passages, evidence) for passages, evidence in lengths if evidence]
  if lengths:
    found["evidence_empty"] = 1 - len(written) / len(lengths)
  if written:
    sizes = [evidence for _, evidence in written]
    found |= {"evidence_tokens": statistics.fmean(sizes), "evidence_tokens_std": statistics.pstdev(sizes)}
    found["compression"] = statistics.fmean(passages / evidence for passages, evidence in written)
    found["compression_total"] = sum(passages for passages, _ in written) / sum(sizes)
  return found


def _measures(rows: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
  names = dict.fromkeys(name for row in rows for name in row)
  known = {name: [value for row in rows if (value := row.get(name)) is not None] for name in names}
  return {name: statistics.fmean(values) for name, values in known.items() if values}
