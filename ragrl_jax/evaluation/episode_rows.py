"""Columns of an episode's row beside its answer's scores: its searches, tokens, confidence and evidence."""

import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ragrl_jax import structs
from ragrl_jax.core.metrics import qa, searches, stats
from ragrl_jax.evaluation import answer_recall

MEANS = ("precision", "recall", "repeated_searches", "stale_searches", "found_answer", "found_gold", "confidence")


def conduct(example: structs.Example, episode: structs.Episode, answer_text: str | None) -> dict[str, Any]:
  """Columns about searches and the answer; empty for a failed episode. `answer_text` is its answer, or None.

  precision, recall: of the answer's words (`qa.overlap`); 0 without an answer.
  repeated_searches, stale_searches: see `core.metrics.searches`. Passages are compared by title and text.
  found_answer: whether a retrieved passage's text contains a gold (`qa.has_answer`). None without a search, or if the
  gold is yes or no.
  found_gold: the share of the gold documents (`answer_recall.gold_scores`) among the retrieved passages. None without a
  search, or if the documents are unknown.
  confidence: see `confidence`.
  """
  if episode.ended == "failed":
    return {}
  passages = [passage for search in episode.searches for passage in search.found or ()]
  queries = [(s.query or "", [f"{p.title}\n{p.text}" for p in s.found or ()]) for s in episode.searches]
  has_gold = any(qa.has_answer(passage.text, example.golds) for passage in passages)
  by_gold = answer_recall.gold_scores(example, passages, max(len(passages), 1)) if queries else None
  words = qa.overlap(answer_text or "", example.golds)
  return dict(
    precision=words.precision,
    recall=words.recall,
    repeated_searches=searches.repeated_searches(queries),
    stale_searches=searches.stale_searches(queries),
    found_answer=float(has_gold) if queries and qa.searchable(example.golds) else None,
    found_gold=None if by_gold is None else by_gold["recall"],
    confidence=confidence(episode),
  )


def confidence(episode: structs.Episode) -> float | None:
  """exp of the mean log-probability of the tokens of the model's last turn, which holds the answer.

  None if log-probabilities are unknown, or if another generator answered.
  """
  last = next((s for s in reversed(episode.segments) if s.owner == structs.MODEL), None)
  if last is None or not last.logprobs or "answer" in episode.facts:
    return None
  return min(1.0, math.exp(math.fsum(last.logprobs) / len(last.logprobs)))


def gold(example) -> str:
  """The gold sentences joined; "" if the data marks none."""
  return " ".join(sentence for _, sentence in example.evidence)


def bleu(evidence: Sequence[str], golds: Sequence[str]) -> float:
  """Corpus BLEU by sacrebleu, 0 to 100, with one reference per text.

  Source: CARE sec. 5.4; sacrebleu's defaults (13a tokens, exponential smoothing).
  """
  import sacrebleu  # slow to import, and few runs need it

  return sacrebleu.corpus_bleu(list(evidence), [list(golds)]).score


def rouge_l(evidence: Sequence[str], golds: Sequence[str]) -> float:
  """Mean ROUGE-L F1 by rouge-score, 0 to 1, without stemming."""
  from rouge_score import rouge_scorer  # imports nltk

  scorer = rouge_scorer.RougeScorer(["rougeL"])
  scores = [scorer.score(target, text)["rougeL"].fmeasure for text, target in zip(evidence, golds, strict=True)]
  return sum(scores) / len(scores)


def evidence(recipe, example, episode) -> dict[str, Any]:
  """The columns of evidence and of the recipe's own measures in a row of predictions; empty for a failed episode.

  The evidence holds a gold as whole words, unless the recipe's switch `recall` says otherwise.

  Lengths are in the policy's tokens, from the episode's facts; None if they are missing there.
  """
  if episode.ended == "failed":
    return {}
  result: dict[str, Any] = {} if recipe.measures is None else dict(measures=dict(recipe.measures(example, episode)))
  if "extraction" in example.meta:  # its passage is evidence that another policy extracted
    result["extraction"] = example.meta["extraction"]
  if recipe.evidence is None:
    return result
  quotes = recipe.evidence(example, episode)
  return result | dict(
    evidence=quotes,
    gold_evidence=gold(example),
    answer_recall=float(qa.CONTAINS[recipe.switches.get("recall", "words")](quotes, example.golds)),
    evidence_tokens=episode.facts.get("evidence_tokens"),
    passage_tokens=episode.facts.get("passage_tokens"),
  )


def digest(rows: Iterable[Mapping[str, Any]], settings: Mapping[str, Any]) -> str:
  """A hash that identifies an extraction: of the evidence in its rows, whatever their order, and of its settings."""
  contents = sorted((row.get("source") or "", str(row["id"]), row.get("evidence") or "") for row in rows)
  return hashlib.sha256(json.dumps([contents, settings], sort_keys=True).encode()).hexdigest()[:16]


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Means over the rows that have the measured values; empty without such rows.

  Returns:
    measure: {name: mean over the rows in which it is known}, for a recipe with measures.
    answer_recall: over rows with evidence, the share whose evidence contains a gold.
    evidence_bleu, evidence_rouge_l: over rows with gold sentences.
    evidence_empty: over rows with lengths, the share with empty evidence. The following are over the other ones:
    evidence_tokens, evidence_tokens_std: mean and standard deviation of the length.
    compression: mean of passage tokens / evidence tokens; compression_total: ratio of the two sums.
    given_tokens: mean tokens of the prompt and of results per question; the names in MEANS: means over the rows in
    which they are known. ece, brier: compare the confidence with the outcome (rounded to 0 or 1), over the rows with an
    answer that have both.
  """
  result = _conduct_means(rows)
  measures = [row["measures"] for row in rows if "measures" in row]
  if means := _means(measures, dict.fromkeys(name for row in measures for name in row)):
    result["measure"] = means
  rows = [row for row in rows if "evidence" in row]
  if not rows:
    return result
  result["answer_recall"] = sum(row["answer_recall"] for row in rows) / len(rows)
  with_gold = [row for row in rows if row["gold_evidence"]]
  if with_gold:
    texts, golds = [row["evidence"] for row in with_gold], [row["gold_evidence"] for row in with_gold]
    result |= {"evidence_bleu": bleu(texts, golds), "evidence_rouge_l": rouge_l(texts, golds)}
  lengths = [(row["passage_tokens"], row["evidence_tokens"]) for row in rows if row["evidence_tokens"] is not None]
  # Empty evidence compresses nothing: with its passages in the sum, a policy that extracts less would compress more.
  pairs_written = [(passages, evidence) for passages, evidence in lengths if evidence]
  if lengths:
    result["evidence_empty"] = 1 - len(pairs_written) / len(lengths)
  if pairs_written:
    sizes = [evidence for _, evidence in pairs_written]
    result |= {"evidence_tokens": statistics.fmean(sizes), "evidence_tokens_std": statistics.pstdev(sizes)}
    result["compression"] = statistics.fmean(passages / evidence for passages, evidence in pairs_written)
    result["compression_total"] = sum(passages for passages, _ in pairs_written) / sum(sizes)
  return result


def _conduct_means(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  result: dict[str, Any] = _means(rows, MEANS)
  if sized := [row["episode_tokens"] - row["response_tokens"] for row in rows if row.get("episode_tokens") is not None]:
    result["given_tokens"] = sum(sized) / len(sized)
  is_known = lambda row: None not in map(row.get, ("confidence", "outcome", "prediction"))
  pairs = [(row["confidence"], float(row["outcome"] >= 0.5)) for row in rows if is_known(row)]
  if pairs:
    predicted, right = zip(*pairs)
    result |= dict(ece=stats.calibration_error(predicted, right), brier=stats.brier(predicted, right))
  return result


def counted(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
  """{measure: number of rows in its mean}, of the measures that are known in some of the rows only."""
  known = {name: sum(row.get(name) is not None for row in rows) for name in ("wasted_searches", *MEANS)}
  known |= dict.fromkeys(("evidence_bleu", "evidence_rouge_l"), sum(bool(row.get("gold_evidence")) for row in rows))
  known["compression"] = sum(bool(row.get("evidence_tokens")) for row in rows)
  return {name: number for name, number in known.items() if 0 < number < len(rows)}


def _means(rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, float]:
  """The means of these columns over the rows in which they are known; a column without any is left out."""
  means = {name: stats.mean_known(row.get(name) for row in rows) for name in names}
  return {name: mean for name, mean in means.items() if mean is not None}
