"""Where the time went, the scores of held-out questions, and warnings."""

from ragrl_jax.core.metrics.declared.metric import Metric

TIME = (
  Metric(
    "seconds/weights seconds/rollout seconds/retrieval_wait seconds/judge_wait seconds/scoring seconds/update",
    "s",
    "the parts of a step, without overlap. Waiting counts only while no lane can decode: a search that overlaps with "
    "decoding costs no time. A wait counts as `judge_wait` if only judges are running, else as `retrieval_wait`",
  ),
  Metric("seconds/step", "s", "their sum, without evaluations and checkpoints"),
  Metric("seconds/evaluate", "s", "the time of the evaluation, in steps that have one"),
  Metric(
    "seconds/checkpoint", "s", "the time of saving the previous step, since a row is written before its checkpoint"
  ),
  Metric(
    "bottleneck",
    "text",
    "the largest part. The report names the largest median over all steps except the first, which compiles",
  ),
  Metric("tokens_per_second", "tokens/s", "tokens of the step's episodes / `seconds/step`"),
  Metric("learner_flops_per_second", "FLOP/s", "the learner's operations / (`seconds/scoring` + `seconds/update`)"),
  Metric("mfu", "share", "`learner_flops_per_second` relative to the hardware's peak, if it is known"),
  Metric(
    "engine/rollout_s engine/decode_s engine/prefill_s engine/tool_wait_s engine/beside_s",
    "s",
    "the rollout and its parts: decoding, prefill, waiting for tools while no lane can decode, and learning between "
    "the chunks of a rollout (`rollout.ahead`). With `rollout.ahead=1` two steps are sampled in the first one's row",
  ),
  Metric(
    "engine/sampled_tokens engine/prefilled_tokens engine/shared_tokens",
    "tokens",
    "tokens sampled; prefilled; shared instead of computed, since the samples of a group have one prompt",
  ),
  Metric(
    "engine/lane_occupancy",
    "share",
    "share of the lanes' decoding steps that sampled a token. Below 0.5: use fewer `rollout.lanes`, or more "
    "`rollout.rows`",
  ),
  Metric(
    "engine/tokens_per_step",
    "tokens",
    "sampled tokens per decoding step of a lane that samples: 1 without drafts, at most `rollout.speculate` + 1",
  ),
  Metric(
    "engine/drafts_kept",
    "share",
    "share of the drafted tokens (`rollout.speculate`) that were sampled; 0 without drafts",
  ),
  Metric("engine/tokens_per_s", "tokens/s", "sampled tokens per second"),
  Metric("engine/episodes engine/episodes_failed", "count", "episodes played; episodes that failed"),
)

HELD_OUT = (
  Metric(
    "em f1 cover_em outcome",
    "share",
    "exact match; token F1; whether the answer contains a gold; the recipe's own criterion",
  ),
  Metric("precision recall", "share", "of the answer's words, against the gold with the highest F1"),
  Metric(
    "char_f1",
    "share",
    "F1 over the letters of the answers as FilCo normalises them (punctuation stays), which LEAR's tables seem to use; "
    "never compare it with `f1`",
  ),
  Metric(
    "em_spaced f1_spaced",
    "share",
    "exact match and token F1 in the normalisation of ARENA's tables, where punctuation becomes a space; only for its "
    "recipe",
  ),
  Metric("answered", "share", "share of questions with an answer"),
  Metric("unanswered/replies unanswered/with_gold", "count", "replies without an answer; those that contain a gold"),
  Metric("searches", "searches", "mean per question"),
  Metric(
    "wasted_searches",
    "searches",
    "mean per question. A search is wasted if it repeats a query (ignoring case, spaces and forms of Unicode) or "
    "finds no new gold passage. Gold are the ids that the data names in the corpus, else the articles of the "
    "supporting passages",
  ),
  Metric(
    "repeated_searches stale_searches",
    "searches",
    "mean per question: searches whose query has the same words as an earlier one; searches that returned only "
    "passages of earlier searches",
  ),
  Metric(
    "found_answer found_gold",
    "share",
    "over questions with a search: share with a gold answer in the text of a retrieved passage, by DPR's rule (without "
    "yes/no questions); mean share of the gold documents found, if they are known",
  ),
  Metric("response_tokens", "tokens", "mean per question"),
  Metric("given_tokens", "tokens", "mean per question: the prompt's and the results'"),
  Metric(
    "confidence ece brier",
    "probability",
    "exp of the mean log-probability of the last turn's tokens, as sampled; its expected calibration error (10 bins) "
    "and Brier score against the outcome, over the questions with an answer",
  ),
  Metric("terms/NAME", "reward", "one reward term, unweighted: mean of the episodes in which it could be scored"),
  Metric("pooled/TERM", "share", "`pooled/TERM` of training, over the held-out episodes"),
  Metric("measure/NAME", "see the README", "as in training: see the recipe's README"),
  Metric("ended/WHY", "count", "questions with this ending, see above"),
  Metric("n", "count", "questions that could be scored"),
  Metric("failed", "count", "questions whose tool failed"),
  Metric("unjudged", "count", "questions scored without an outcome, because the judge gave no verdict"),
  Metric(
    "by_hops/H/… by_source/S/…",
    "as above",
    "`em`, `f1`, `searches` and `n` over the questions with H hops, or of the source S",
  ),
  Metric(
    "macro/…",
    "as above",
    "with several sources: mean of the sources' means of `em`, `f1`, `cover_em`, `outcome`, `searches` and "
    "`terms/NAME`, as in papers' averages over sets",
  ),
  Metric("answer_recall", "share", "for recipes with evidence: share of questions whose evidence contains a gold"),
  Metric("evidence_bleu", "0 to 100", "corpus BLEU (sacrebleu) against the gold sentences, if the data marks them"),
  Metric(
    "evidence_rouge_l", "share", "mean ROUGE-L F1 (rouge-score) against the gold sentences, if the data marks them"
  ),
  Metric(
    "compression compression_total",
    "ratio",
    "tokens of the passages / tokens of the evidence: mean of the questions' ratios; ratio of the sums; both without "
    "the questions whose evidence is empty",
  ),
  Metric("evidence_empty", "share", "share of questions whose evidence is empty"),
  Metric(
    "evidence_tokens evidence_tokens_std",
    "tokens",
    "mean and standard deviation of the evidence's length, if not empty",
  ),
)

WARNINGS = (
  Metric("no_groups few_groups", "text", "no group, or too few groups, had a spread within `rollout.filter.max_draws`"),
  Metric("no_signal little_signal", "text", "all advantages, or over 90 % of them, are 0"),
  Metric("few_spreads", "text", "fewer than 5 % of the groups had a spread at the first step"),
  Metric("no_searches searches_vanish", "text", "no episode searched; searches fell below a third of the first steps'"),
  Metric("little_trained", "text", "`mask_coverage` below 0.02"),
  Metric("mismatch", "text", "above 0.05 nats"),
  Metric("far_from_reference", "text", "`kl` above 1 nat"),
  Metric("clipping", "text", "`clip_fraction` above 0.3"),
  Metric("skipped", "text", "the gradient was not finite"),
  Metric(
    "entropy_collapse entropy_explosion", "text", "entropy below a fifth, or above five times, that of the first steps"
  ),
  Metric("length", "text", "responses shorter than a third, or longer than three times, those of the first steps"),
  Metric(
    "schedule",
    "text",
    "`steps` is less than the step at which the recipe's weights reach their final values; given at the first step",
  ),
)
