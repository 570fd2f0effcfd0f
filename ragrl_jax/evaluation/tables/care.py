"""CARE's tables (EMNLP 2025): the published numbers, and the run for each row."""

from ragrl_jax.evaluation.tables.layout import Column, Paper, Run, Table, columns, rows

SETS = {"multifieldqa": "MFQA", "hotpotqa": "HotpotQA", "2wiki": "2WikiMQA", "musique": "MuSiQue"}
LLAMA, SEVEN, FOURTEEN = "llama-3.1-8b", "qwen2.5-7b", "qwen2.5-14b"
NONE = "the paper has no released checkpoint for this model"
CRAG = "CRAG's evaluator and web search are not here"
UNMARKED = ("--config.switches.unmarked=True",)  # a reply without `Answer:` is the answer as a whole
WHOLE = {"switches.unmarked": True}


def original(model: str) -> Run:
  """The untrained model, without CARE's instructions. Its whole reply is the answer."""
  return Run("care:original,longbench", models=(model,))


def trained(preset: str = "", model: str = SEVEN) -> Run:
  """A policy trained by RL from the warm start."""
  config = f"care:{preset}" if preset else "care"
  asked = f"care:{preset},longbench" if preset else "care:longbench"
  hard = () if preset in ("easy_only", "no_retrieval") else ("--config.data.hard=MS_MARCO.jsonl.gz",)
  data = ("--config.data.train=DROP.jsonl.gz", *hard)
  return Run(asked, config, (model,), WHOLE, flags=UNMARKED, train_flags=data, start="WARM_START_FOLDER")


WARM = Run(
  "care:longbench",
  "care:sft",
  (SEVEN,),
  WHOLE,
  flags=UNMARKED,
  transcripts="out/care/data/sft.jsonl.gz",
  made="ragrl make-care-sft --data=hf:hotpotqa/hotpot_qa/distractor/train --out=out/care/data/sft.jsonl.gz "
  "--answers=out/care/data/models --reasoner_url=REASONER_URL --reasoner_model=deepseek-reasoner "
  "--inserter_url=INSERTER_URL --inserter_model=deepseek-chat",
)
R1_SEARCHER, RESEARCH = Run(system="r1_searcher"), Run(system="research")

REAL = {
  "Llama": rows(
    """
Original    | 45.57 54.64 45.87 32.08 44.54
ReSearch    | / / / / /
R1-Searcher | 28.44 53.71 67.10 41.41 47.67
CRAG        | 44.04 37.88 25.95 24.10 32.99
CARE        | 49.94 63.09 75.29 51.00 59.83
""",
    {
      "Original": original(LLAMA),
      "ReSearch": NONE,
      "R1-Searcher": Run(system="r1_searcher", models=(LLAMA,)),
      "CRAG": CRAG,
      "CARE": trained(model=LLAMA),
    },
    against="CARE",
  ),
  "Qwen2.5 7B": rows(
    """
Original    | 46.94 58.47 46.96 30.78 45.79
ReSearch    | 32.45 54.24 55.78 47.61 47.52
R1-Searcher | 28.36 55.43 65.79 47.09 49.17
CRAG        | 47.90 43.97 33.00 28.44 38.33
CARE        | 48.11 63.45 70.11 45.57 56.81
""",
    {
      "Original": original(SEVEN),
      "ReSearch": RESEARCH,
      "R1-Searcher": Run(system="r1_searcher", models=(SEVEN,)),
      "CRAG": CRAG,
      "CARE": trained(),
    },
    against="CARE",
  ),
  "Qwen2.5 14B": rows(
    """
Original    | 47.58 61.94 59.05 37.99 51.64
ReSearch    | / / / / /
R1-Searcher | / / / / /
CRAG        | 50.89 44.74 34.68 28.17 39.62
CARE        | 48.81 67.75 78.68 51.27 61.63
""",
    {
      "Original": original(FOURTEEN),
      "ReSearch": NONE,
      "R1-Searcher": NONE,
      "CRAG": CRAG,
      "CARE": trained(model=FOURTEEN),
    },
    against="CARE",
  ),
}

COFCA = rows(
  """
# LLaMA-3.1 8B
Original, LLaMA-3.1 8B    | 48.14
R1-Searcher, LLaMA-3.1 8B | 45.25
CARE, LLaMA-3.1 8B        | 61.83
# Qwen2.5 7B
Original, Qwen2.5 7B      | 58.38
ReSearch, Qwen2.5 7B      | 47.32
R1-Searcher, Qwen2.5 7B   | 43.61
CRAG, Qwen2.5 7B          | 56.01
CARE, Qwen2.5 7B          | 64.56
# Qwen2.5 14B
Original, Qwen2.5 14B     | 64.40
CRAG, Qwen2.5 14B         | 51.99
CARE, Qwen2.5 14B         | 67.75
""",
  {
    "Original, LLaMA-3.1 8B": original(LLAMA),
    "R1-Searcher, LLaMA-3.1 8B": Run(system="r1_searcher", models=(LLAMA,)),
    "CARE, LLaMA-3.1 8B": trained(model=LLAMA),
    "Original, Qwen2.5 7B": original(SEVEN),
    "ReSearch, Qwen2.5 7B": RESEARCH,
    "R1-Searcher, Qwen2.5 7B": Run(system="r1_searcher", models=(SEVEN,)),
    "CRAG, Qwen2.5 7B": CRAG,
    "CARE, Qwen2.5 7B": trained(),
    "Original, Qwen2.5 14B": original(FOURTEEN),
    "CRAG, Qwen2.5 14B": CRAG,
    "CARE, Qwen2.5 14B": trained(model=FOURTEEN),
  },
  against={
    f"{name}, {model}": f"CARE, {model}"
    for model in ("LLaMA-3.1 8B", "Qwen2.5 7B", "Qwen2.5 14B")
    for name in ("Original", "ReSearch", "R1-Searcher")
  },
)

ARMS = {
  "Baseline": original(SEVEN),
  "SFT Only": WARM,
  "No Ret.": trained("no_retrieval"),
  "No Cur.": trained("easy_only"),
}
ABLATION = rows(
  """
Baseline | 46.64 58.47 46.96 30.78 58.38 48.25
SFT Only | 42.24 47.08 61.51 33.82 59.21 48.77
No Ret.  | 37.66 62.59 70.57 43.85 57.26 54.39
No Cur.  | 38.33 64.10 70.69 47.49 60.60 56.24
CARE     | 48.11 63.45 70.11 45.57 64.56 58.36
""",
  ARMS | {"CARE": trained()},
  against="CARE",
)

EVIDENCE = rows(
  """
SFT Only     | - -
No Ret.      | - -
No Cur.      | - -
CARE         | - -
CARE, LLaMA  | - -
CARE, 14B    | - -
""",
  {name: ARMS[name] for name in ("SFT Only", "No Ret.", "No Cur.")}
  | {"CARE": trained(), "CARE, LLaMA": trained(model=LLAMA), "CARE, 14B": trained(model=FOURTEEN)},
)
MARKED = ("--config.data.evidence=hf:hotpotqa/hotpot_qa/distractor/validation",)
QUOTES = tuple(
  Column("HotpotQA", measure, ("hotpotqa",), {"evidence": "~hotpot"}, MARKED)
  for measure in ("evidence_bleu", "evidence_rouge_l")
)

TOKENS = rows(
  """
# LLaMA 8B
Original, LLaMA 8B | 19.5 8.5 7.5 7.4
R1-S., LLaMA 8B    | 296+2012 278+2058 293+2125 313+2436
CARE, LLaMA 8B     | 564 656 608 848
# Qwen 7B
Original, Qwen 7B  | 24.8 6.0 6.1 9.3
CRAG, Qwen 7B      | 24+212 7+411 9+201 8+470
ReSearch, Qwen 7B  | 276+2054 275+2271 308+2814 290+2492
CARE, Qwen 7B      | 566 633 560 942
""",
  {
    "Original, LLaMA 8B": original(LLAMA),
    "R1-S., LLaMA 8B": "transcripts from elsewhere come without their tokenizer",
    "CARE, LLaMA 8B": trained(model=LLAMA),
    "Original, Qwen 7B": original(SEVEN),
    "CRAG, Qwen 7B": CRAG,
    "ReSearch, Qwen 7B": "transcripts from elsewhere come without their tokenizer",
    "CARE, Qwen 7B": trained(),
  },
)

F1 = ("f1",)
PAPER = Paper(
  "care",
  "CARE (EMNLP 2025)",
  (
    *(
      Table(f"Table 1, {name}", "F1 on LongBench", columns(SETS, F1, average="Average"), made, scale=100, digits=2)
      for name, made in REAL.items()
    ),
    Table("Table 2", "F1 on counterfactual questions", columns({"cofca": "CofCA"}, F1), COFCA, scale=100, digits=2),
    Table(
      "Table 3",
      "F1 without one part each, Qwen2.5 7B",
      columns(SETS | {"cofca": "CofCA"}, F1, average="Average"),
      ABLATION,
      scale=100,
      digits=2,
    ),
    Table("Figure 3", "quotes against HotpotQA's supporting facts", QUOTES, EVIDENCE, digits=2),
    Table("Table 4", "tokens per question: the model's + retrieval's", columns(SETS, ("tokens",)), TOKENS, digits=1),
  ),
  {
    "Figures 1 and 2": "drawings of the method",
    "Table 5": "two questions' replies: `ragrl report` shows those of a run",
  },
  "the paper's text; the bars of Figure 3 have no printed numbers, and its rows here are ours",
  data={
    "multifieldqa": "LONGBENCH/multifieldqa_en.jsonl",
    "hotpotqa": "LONGBENCH/hotpotqa.jsonl",
    "2wiki": "LONGBENCH/2wikimqa.jsonl",
    "musique": "LONGBENCH/musique.jsonl",
    "cofca": "COFCA/cofca.jsonl",
  },
)
