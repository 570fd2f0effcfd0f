"""The runs in the rows of ARENA's tables (arXiv 2505.13258); arena.toml has the published numbers."""

from collections.abc import Mapping
from typing import Any

from ragrl_jax.evaluation.tables.layout import Run
from ragrl_jax.evaluation.tables.published import paper

JUDGE = (
  "--config.switches.accuracy=judge",
  "--config.judge.kind=llm",
  "--config.judge.prompt=answer",
  "--config.judge.model=gpt-4o-2024-11-20",
  "--config.judge.endpoint=http://JUDGE/v1",
)
ASKED = ("--config.switches.correctness=judge", *JUDGE[1:])  # the judge's flags in the recipe `untrained`
# The questions of configs/arena.py.
ASKED_OF = (
  "hf:hotpotqa/hotpot_qa/distractor/train~10000,hf:RUC-NLPIR/FlashRAG_datasets/2wikimultihopqa/train~10000,"
  "hf:dgslibisey/MuSiQue//train~5000"
)
ALL_SETS = "2wiki,hotpotqa,musique"


def trained(preset: str = "", variant: str = "", kl: str = "k2", sets: str = ALL_SETS) -> Run:
  """A policy trained by RL, evaluated under its preset with EM, F1 and a judge."""
  where: Mapping[str, Any] = {"trained.loss.kl": kl, "trained.sets": sets}
  if preset != "naive":  # all of these presets ask for the same reply: a policy may be tested under any of them
    where = where | {"preset": ("paper", "f1", "judge", "no_bonus"), "switches.reply": "cited"}
  return Run(_config(preset), _config(variant or preset), where=where, flags=JUDGE)


def fine_tuned(preset: str, made: str = "") -> Run:
  """A policy fine-tuned on transcripts, with the settings of the paper or of the authors' code (preset "repo")."""
  either = (preset or "paper", f"repo,{preset}".rstrip(","))
  where = {"preset": either, "trained.preset": either}
  file = f"out/arena/data/{preset or 'reasoned'}.jsonl.gz"
  made = f"ragrl make-arena-sft --data={ASKED_OF} --out={file}{made}"
  of = dict(where=where, flags=JUDGE, transcripts=file, made=made)
  return Run(_config(preset), _config(f"sft,{preset}".rstrip(",")), **of)


def released(system: str) -> Run:
  """A released agent whose searches return the given passages: either played, or its transcripts."""
  return Run(system=system, where={"switches.documents": ("given", None)})


def _config(variant: str) -> str:
  return f"arena:{variant}" if variant else "arena"


BACKBONE = " --answers=out/arena/data/backbone --url=BACKBONE_URL --model={model}"  # it writes the reasoning
RUNS: dict[str, Run | str] = {
  "direct": Run("arena:direct", flags=JUDGE),  # untrained, from the given passages
  "closed_book": Run("untrained:closed_book", flags=ASKED),
  "sure": Run("untrained:sure,given", flags=ASKED),
  "self_ask": Run("untrained:self_ask,given", flags=ASKED),
  "r1_searcher": released("r1_searcher"),
  "simpledeepsearcher": released("simpledeepsearcher"),
  "research": released("research"),
  "sft_direct": fine_tuned("direct"),
  "sft_reasoning": fine_tuned("", BACKBONE),
  "naive": trained("naive", kl="k3"),
  "k3": trained(variant="k3", kl="k3"),
  "judge": trained("judge"),
  "f1": trained("f1"),
  "without_hotpotqa": trained(variant="without_hotpotqa", sets="2wiki,musique"),
  "without_2wiki": trained(variant="without_2wiki", sets="hotpotqa,musique"),
  "arena": trained(),
}
PAPER = paper("arena", RUNS)
