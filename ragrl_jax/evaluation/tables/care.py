"""The runs and columns of CARE's tables (EMNLP 2025); care.toml has the published numbers."""

from ragrl_jax.evaluation.tables.layout import Column, Run
from ragrl_jax.evaluation.tables.published import paper

UNMARKED = ("--config.switches.unmarked=True",)  # a reply without `Answer:` is the answer as a whole
WHOLE = {"switches.unmarked": True}
HARD = "--config.data.hard=MS_MARCO.jsonl.gz"
MARKED = ("--config.data.evidence=hf:hotpotqa/hotpot_qa/distractor/validation",)


def trained(preset: str = "", *hard: str) -> Run:
  """A policy trained by RL from the warm start."""
  config, asked = (f"care:{preset}", f"care:{preset},longbench") if preset else ("care", "care:longbench")
  data = ("--config.data.train=DROP.jsonl.gz", *hard)
  return Run(asked, config, where=WHOLE, flags=UNMARKED, train_flags=data, start="WARM_START_FOLDER")


RUNS: dict[str, Run | str] = {
  "original": Run("care:original,longbench"),  # without CARE's instructions; its whole reply is the answer
  "sft": Run(
    "care:longbench",
    "care:sft",
    where=WHOLE,
    flags=UNMARKED,
    transcripts="out/care/data/sft.jsonl.gz",
    made="ragrl make-care-sft --data=hf:hotpotqa/hotpot_qa/distractor/train --out=out/care/data/sft.jsonl.gz "
    "--answers=out/care/data/models --reasoner_url=REASONER_URL --reasoner_model=deepseek-reasoner "
    "--inserter_url=INSERTER_URL --inserter_model=deepseek-chat",
  ),
  "care": trained("", HARD),
  "no_retrieval": trained("no_retrieval"),
  "easy_only": trained("easy_only"),
  "r1_searcher": Run(system="r1_searcher"),
  "research": Run(system="research"),
  "unreleased": "the paper has no released checkpoint for this model",
  "crag": "CRAG's evaluator and web search are not here",
  "uncounted": "transcripts from elsewhere come without their tokenizer",
}
COLUMNS = {
  "quotes": tuple(
    Column("HotpotQA", measure, ("hotpotqa",), {"evidence": "~hotpot"}, MARKED)
    for measure in ("evidence_bleu", "evidence_rouge_l")
  )
}
PAPER = paper("care", RUNS, COLUMNS)
