"""Learning When to Search's tables: the published numbers, and which run is which row."""

from typing import Any

from ragrl_jax.evaluation.tables.layout import Column, Paper, Run, Table, columns, quadrants, rows

SETS = {
  "nq": "NQ",
  "popqa": "PopQA",
  "triviaqa": "TriviaQA",
  "hotpotqa": "HotpotQA",
  "musique": "MuSiQue",
  "2wiki": "2WIKI",
  "bamboogle": "Bamboogle",
}
FOUR, EIGHT, THREE, SEVEN = "qwen3-4b", "qwen3-8b", "qwen2.5-3b", "qwen2.5-7b"
REASONING = (FOUR, EIGHT)
NEEDS = (
  "--config.retrieval.index=INDEX",
  "--config.retrieval.query_encoder=Qwen/Qwen3-Embedding-0.6B",
  "--config.judge.endpoint=http://JUDGE/v1",
)
INDEX = ("--config.retrieval.index=INDEX",)
JUDGE = (
  "--config.switches.correctness=judge",
  "--config.judge.kind=llm",
  "--config.judge.prompt=correctness",
  "--config.judge.model=Qwen3-235B-A22B-Instruct",
  "--config.judge.endpoint=http://JUDGE/v1",
)
BY_STEPS = (
  "the paper does not say which steps these are (4B's first row is Table 2's step 30, digit for digit): evaluate "
  "RUN/checkpoints/STEP of stage two's run, which keeps them, and compare by hand"
)
KEEP = ("--config.checkpoint.keep=17",)  # all checkpoints of 500 steps, one every 30: Tables 1 and 2 read early ones


def trained(preset: str = "", model: str = FOUR, step: int = 0) -> Run:
  """A policy trained by DAPO; a step names a checkpoint under way."""
  config = f"when_to_search:{preset}" if preset else "when_to_search"
  kept = KEEP if preset in ("", "unified") and model in REASONING else ()
  return Run(config, config, (model,), needs=NEEDS, train_flags=kept, checkpoint=step)


def _asked(preset: str, model: str, thinking: str = "") -> tuple[str, dict[str, Any]]:
  """(config, facts) of an untrained method. A reasoning model thinks, unless `thinking` is "off"."""
  thinking = thinking or ("on" if model in REASONING else "")
  words = [word for word in (preset, {"on": "thinking", "off": "no_thinking", "": ""}[thinking]) if word]
  return f"untrained:{','.join(words)}".rstrip(":"), {"thinking": thinking or None}


def untrained(preset: str, model: str, thinking: str = "", searches: int = 0) -> Run:
  """An untrained method, with a judge beside its other scores. For `thinking` see `_asked`.

  Args:
    searches: most searches, if they are not the preset's.
  """
  config, where = _asked(preset, model, thinking)
  if preset == "closed_book":
    return Run(config, models=(model,), where=where, flags=JUDGE)
  where |= {"retrieval.top_k": 5} | ({"switches.max_searches": searches} if searches else {})
  most = (f"--config.switches.max_searches={searches}",) if searches else ()
  return Run(config, models=(model,), where=where, needs=INDEX, flags=(*most, *JUDGE))


def elsewhere(system: str, model: str) -> Run:
  """Transcripts of a released agent, or its checkpoint played with the paper's five passages a search."""
  five = ("--config.retrieval.top_k=5",)  # of the evaluation that plays it
  return Run(system=system, models=(model,), where={"retrieval.top_k": (5, None)}, flags=five)


def stages(block: str, model: str):
  """The rows of Table 1 for one model."""
  return rows(
    block,
    {
      "Zero-shot": untrained("closed_book", model),
      "Naive": untrained("", model),
      "Naive w/o think": untrained("", model, "off"),
      "Stage one (1)": BY_STEPS,
      "Stage one (2)": BY_STEPS,
      "Stage one (3)": BY_STEPS,
      "Stage two": trained(model=model),
    },
    against={"Stage two": "Naive"},
  )


STAGES_4B = """
Zero-shot       | 0.32 0.00 | 0.20 0.00 | 0.48 0.00 | 0.28 0.00 | 0.12 0.00 | 0.23 0.00 | 0.37 0.00
Naive           | 0.55 1.00 | 0.51 1.00 | 0.73 1.00 | 0.56 1.00 | 0.19 1.00 | 0.41 1.00 | 0.50 1.00
Naive w/o think | 0.53 1.00 | 0.43 1.00 | 0.58 1.00 | 0.42 1.00 | 0.15 1.00 | 0.41 1.00 | 0.37 1.00
Stage one (1)   | 0.38 0.18 | 0.32 0.33 | 0.67 0.13 | 0.35 0.30 | 0.16 0.41 | 0.37 0.45 | 0.39 0.14
Stage one (2)   | 0.45 1.09 | 0.49 1.12 | 0.67 1.14 | 0.47 1.35 | 0.18 1.52 | 0.53 1.65 | 0.45 1.35
Stage one (3)   | 0.48 1.83 | 0.51 1.82 | 0.72 1.88 | 0.54 2.25 | 0.22 2.28 | 0.54 2.75 | 0.46 2.05
Stage two       | 0.57 1.07 | 0.54 1.06 | 0.83 1.03 | 0.55 1.11 | 0.24 1.25 | 0.61 1.33 | 0.61 1.44
"""
STAGES_8B = """
Zero-shot       | 0.39 0.00 | 0.25 0.00 | 0.61 0.00 | 0.35 0.00 | 0.14 0.00 | 0.28 0.00 | 0.48 0.00
Naive           | 0.62 1.00 | 0.52 1.00 | 0.70 1.00 | 0.54 1.00 | 0.18 1.00 | 0.43 1.00 | 0.54 1.00
Naive w/o think | 0.47 1.00 | 0.48 1.00 | 0.58 1.00 | 0.42 1.00 | 0.13 1.00 | 0.37 1.00 | 0.27 1.00
Stage one (1)   | 0.51 0.43 | 0.46 0.62 | 0.66 0.26 | 0.48 0.65 | 0.21 0.70 | 0.39 0.85 | 0.49 0.36
Stage one (2)   | 0.57 1.13 | 0.53 1.27 | 0.72 1.01 | 0.59 1.79 | 0.24 2.29 | 0.58 1.98 | 0.51 1.20
Stage one (3)   | 0.64 1.52 | 0.56 1.64 | 0.79 1.65 | 0.62 2.26 | 0.31 2.61 | 0.64 2.19 | 0.65 2.01
Stage two       | 0.64 1.13 | 0.53 1.01 | 0.81 1.01 | 0.55 1.15 | 0.27 2.15 | 0.51 1.41 | 0.56 1.22
"""
UNIFIED = {
  FOUR: """
Step 30  | 0.38 0.18 | 0.32 0.33 | 0.67 0.13 | 0.35 0.30 | 0.16 0.41 | 0.37 0.45 | 0.39 0.14
Step 90  | 0.48 0.49 | 0.47 0.80 | 0.75 0.39 | 0.44 0.72 | 0.19 0.97 | 0.47 1.08 | 0.41 0.29
Step 180 | 0.49 0.35 | 0.49 0.61 | 0.74 0.23 | 0.42 0.64 | 0.18 0.76 | 0.48 0.78 | 0.38 0.28
""",
  EIGHT: """
Step 30  | 0.38 0.18 | 0.33 0.33 | 0.66 0.13 | 0.37 0.30 | 0.13 0.41 | 0.34 0.45 | 0.45 0.14
Step 90  | 0.47 0.44 | 0.45 0.79 | 0.74 0.26 | 0.45 0.60 | 0.18 0.82 | 0.50 1.03 | 0.48 0.22
Step 180 | 0.47 0.40 | 0.47 0.77 | 0.74 0.20 | 0.43 0.43 | 0.18 0.69 | 0.50 0.86 | 0.48 0.10
""",
}

METHODS = rows(
  """
# Prompt
Directly Gen            | 0.09 0.32 0.00 | 0.05 0.25 0.00 | 0.17 0.52 0.00 | 0.07 0.26 0.00
    | 0.04 0.13 0.00 | 0.08 0.43 0.00 | 0.08 0.27 0.00
Standard RAG            | 0.14 0.41 1.00 | 0.11 0.34 1.00 | 0.07 0.32 1.00 | 0.15 0.40 1.00
    | 0.05 0.18 1.00 | 0.11 0.41 1.00 | 0.02 0.12 1.00
IRCoT                   | 0.08 0.07 3.16 | 0.04 0.08 3.79 | 0.15 0.31 3.10 | 0.12 0.11 2.70
    | 0.05 0.04 2.68 | 0.08 0.08 2.52 | 0.12 0.11 3.03
Iter-RetGen             | 0.15 0.49 3.00 | 0.20 0.65 3.00 | 0.19 0.17 3.00 | 0.18 0.43 3.00
    | 0.07 0.23 3.00 | 0.30 0.33 3.00 | 0.33 0.32 3.00
SKR                     | 0.04 0.18 0.78 | 0.02 0.13 0.56 | 0.09 0.37 0.75 | 0.03 0.20 0.72
    | 0.02 0.06 0.74 | 0.06 0.39 0.74 | 0.09 0.30 0.83
# RL
Auto-Refine (3B)        | 0.25 0.22 2.00 | 0.16 0.17 2.04 | 0.43 0.39 1.99 | 0.26 0.20 2.02
    | 0.14 0.08 2.04 | 0.30 0.26 2.02 | 0.28 0.22 2.04
O2-Searcher (3B)        | 0.20 0.18 3.04 | 0.11 0.10 2.70 | 0.38 0.35 2.08 | 0.21 0.16 3.15
    | 0.10 0.05 2.70 | 0.19 0.17 4.89 | 0.29 0.22 2.76
Search-R1 (7B)          | 0.42 0.38 1.43 | 0.50 0.56 1.31 | 0.63 0.60 1.48 | 0.47 0.53 1.39
    | 0.47 0.41 1.91 | 0.53 0.52 1.18 | 0.21 0.19 1.46
Self-RAG (7B)           | 0.05 0.08 1.00 | 0.09 0.12 1.00 | 0.23 0.38 1.00 | 0.13 0.18 1.00
    | 0.06 0.04 1.00 | 0.17 0.32 1.00 | 0.06 0.09 1.00
R1-Searcher (7B)        | 0.43 0.50 1.87 | 0.48 0.53 1.54 | 0.63 0.61 1.84 | 0.53 0.46 2.22
    | 0.34 0.30 2.40 | 0.63 0.61 2.20 | 0.48 0.39 2.11
Simple-Deepsearch (7B)  | 0.44 0.42 2.10 | 0.52 0.60 1.60 | 0.66 0.67 1.80 | 0.47 0.44 2.30
    | 0.31 0.30 2.45 | 0.55 0.57 2.70 | 0.52 0.44 2.26
CoRAG (8B)              | 0.39 0.47 4.00 | 0.40 0.69 4.00 | 0.62 0.69 4.00 | 0.49 0.51 4.00
    | 0.38 0.38 4.00 | 0.64 0.67 4.00 | 0.49 0.53 4.00
# RL, ours
Our Method (3B)         | 0.27 0.39 0.59 | 0.37 0.33 0.85 | 0.40 0.57 0.39 | 0.39 0.38 0.75
    | 0.21 0.14 1.10 | 0.49 0.28 0.68 | 0.45 0.29 0.87
Our Method (7B)         | 0.46 0.48 0.82 | 0.57 0.59 1.04 | 0.60 0.73 0.66 | 0.52 0.53 1.09
    | 0.34 0.37 1.65 | 0.55 0.53 1.20 | 0.49 0.49 1.03
""",
  {
    "Directly Gen": untrained("closed_book", SEVEN),
    "Standard RAG": untrained("", SEVEN),
    "IRCoT": untrained("ircot", SEVEN),
    "Iter-RetGen": untrained("iter_retgen", SEVEN, searches=3),  # RC 3.00 on all sets
    "SKR": untrained("skr", SEVEN),
    "Auto-Refine (3B)": elsewhere("autorefine", THREE),
    "O2-Searcher (3B)": "no adapter reads O2-Searcher's transcripts",
    "Search-R1 (7B)": elsewhere("search_r1", SEVEN),
    "Self-RAG (7B)": "Self-RAG's reflection tokens and decoding are not here",
    "R1-Searcher (7B)": elsewhere("r1_searcher", SEVEN),
    "Simple-Deepsearch (7B)": elsewhere("simpledeepsearcher", SEVEN),
    "CoRAG (8B)": "CoRAG's chains of retrieval are not here",
    "Our Method (3B)": trained(model=THREE),
    "Our Method (7B)": trained(model=SEVEN),
  },
  against="Our Method (7B)",
)

ABLATION = rows(
  """
Ours          | 0.57 1.07 | 0.54 1.06 | 0.83 1.03 | 0.55 1.11 | 0.24 1.25 | 0.61 1.33 | 0.61 1.14
w/o r_s       | 0.57 1.33 | 0.53 1.14 | 0.81 1.14 | 0.52 1.21 | 0.22 1.34 | 0.54 1.44 | 0.59 1.19
w/o stage one | 0.36 0.12 | 0.25 0.31 | 0.65 0.61 | 0.31 0.48 | 0.14 0.23 | 0.34 0.39 | 0.40 0.31
w/o stage two | 0.55 1.71 | 0.54 1.72 | 0.81 1.23 | 0.53 1.75 | 0.23 2.33 | 0.57 2.52 | 0.59 1.49
w/o r_a       | 0.48 2.02 | 0.52 1.93 | 0.69 2.03 | 0.55 2.09 | 0.19 2.48 | 0.54 1.93 | 0.38 1.96
""",
  {
    "Ours": trained(),
    "w/o r_s": trained("no_search_reward"),
    "w/o stage one": trained("no_stage_one"),
    "w/o stage two": trained("no_stage_two"),
    "w/o r_a": trained("no_answer_reward"),
  },
  against="Ours",
)


def by_top_k(model: str) -> Run:
  """Plain RAG with as many passages as a column says."""
  config, where = _asked("", model)
  return Run(config, models=(model,), where=where, needs=INDEX)


TOP_K = rows(
  """
Qwen3-4B            | - - - - - - - -
Qwen2.5-3B-Instruct | - - - - - - - -
""",
  {"Qwen3-4B": by_top_k(FOUR), "Qwen2.5-3B-Instruct": by_top_k(THREE)},
)
BY_TOP_K = tuple(
  Column(f"top-k {k}", measure, ("nq",), {"retrieval.top_k": k}, (f"--config.retrieval.top_k={k}",))
  for k in (1, 3, 5, 10)
  for measure in ("cover_em", "tokens")
)

KINDS = {"Qwen3-4B": FOUR, "Qwen3-8B": EIGHT, "Qwen2.5-7B-Instruct": SEVEN}
CATEGORIES = rows(
  "\n".join(f"{name} | {'- ' * 28}" for name in KINDS),
  {name: untrained("", model) for name, model in KINDS.items()},
  versus={name: untrained("closed_book", model) for name, model in KINDS.items()},
)

TWO, THREE_OF = columns(SETS, ("judged", "searches")), columns(SETS, ("f1", "judged", "searches"))
PAPER = Paper(
  "when_to_search",
  "Learning When to Search",
  (
    Table("Table 1, Qwen3-4B", "untrained, and through the stages", TWO, stages(STAGES_4B, FOUR), digits=2),
    Table("Table 1, Qwen3-8B", "untrained, and through the stages", TWO, stages(STAGES_8B, EIGHT), digits=2),
    *(
      Table(
        f"Table 2, {model.replace('qwen', 'Qwen').replace('b', 'B')}",
        "both stages' rules from the start",
        TWO,
        rows(block, {f"Step {step}": trained("unified", model, step) for step in (30, 90, 180)}),
        digits=2,
      )
      for model, block in UNIFIED.items()
    ),
    Table("Table 3", "other methods, Qwen2.5; its ACC is taken for LasJ", THREE_OF, METHODS, digits=2),
    Table("Table 4", "without one part each, Qwen3-4B", TWO, ABLATION, digits=2),
    Table(
      "Figure 4",
      "a gold is in the answer with passages (RAG) or without (closed)",
      quadrants(SETS, "cover_em", "RAG only", "closed only"),
      CATEGORIES,
      digits=2,
    ),
    Table("Figure 5", "plain RAG by passages a search, on NQ", BY_TOP_K, TOP_K, digits=2),
  ),
  {
    "Figure 1": "averages of Table 3's columns as a scatter",
    "Figure 2": "a drawing, as are Figures 3 and 6",
    "Table 5": "settings: configs/when_to_search.py",
    "Figure 7": "curves over training: `ragrl report` draws them",
    "Tables 6 to 9": "single replies: `ragrl report` shows those of a run",
  },
  "the paper's text; the bars of Figures 4 and 5 have no printed numbers, and their models and values of k are ours",
)
