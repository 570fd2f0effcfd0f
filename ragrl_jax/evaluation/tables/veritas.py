"""VERITAS's tables (OpenReview mZ0gGlXe1F): the published numbers, and the run for each row."""

from collections.abc import Mapping
from typing import Any

from ragrl_jax.evaluation.tables.commands_of import RATERS
from ragrl_jax.evaluation.tables.layout import SERVED, Column, Paper, Run, Table, columns, rows
from ragrl_jax.evaluation.tables.measures import COMPARED
from ragrl_jax.evaluation.tables.search_r1 import NO_SFT, r1, rejection, untrained

SETS = {
  "nq": "NQ",
  "triviaqa": "TriviaQA",
  "popqa": "PopQA",
  "hotpotqa": "HotpotQA",
  "2wiki": "2wiki",
  "musique": "MuSiQue",
  "bamboogle": "Bamboogle",
}
BASE = "qwen2.5-7b-base"
INDEX = "--config.retrieval.index=INDEX"
JUDGE = (
  "--config.judge.kind=reward_model",
  "--config.judge.path=JUDGE_FOLDER",
  "--config.switches.judge_information=True",
)
SEARCH_JUDGE = (
  "--config.switches.judge_search=True",
  "--config.judges.think_search.kind=nli",
  "--config.judges.think_search.path=NLI_FOLDER",
)


def trained(preset: str) -> Run:
  """A preset of VERITAS. Its evaluation asks the judges, even if its training did not."""
  config = f"veritas:{preset}" if preset else "veritas"
  paid = preset in ("", "em_it", "em_it,no_ramp")
  pays = ("--config.judge.path=JUDGE_FOLDER",) if paid else ()
  return Run(config, config, (BASE,), needs=(INDEX,), flags=(*JUDGE, *SEARCH_JUDGE), train_flags=pays)


def elsewhere(system: str, model: str) -> Run:
  """Transcripts of a released agent. `ragrl score --model` names the checkpoint."""
  return Run(system=system, models=(model,))


MAIN = rows(
  """
Direct Inference               | 0.134 0.408 0.140 0.183 0.250 0.031 0.120 0.181
CoT                            | 0.048 0.185 0.054 0.092 0.111 0.022 0.232 0.106
IRCoT                          | 0.224 0.478 0.301 0.133 0.149 0.072 0.224 0.239
Search-o1                      | 0.151 0.443 0.131 0.187 0.176 0.058 0.296 0.206
RAG                            | 0.349 0.585 0.392 0.299 0.235 0.058 0.208 0.304
SFT                            | 0.318 0.354 0.121 0.217 0.259 0.066 0.112 0.207
R1-base                        | 0.297 0.539 0.202 0.242 0.273 0.083 0.296 0.276
R1-instruct                    | 0.270 0.537 0.199 0.237 0.292 0.072 0.293 0.271
Rejection Sampling             | 0.360 0.592 0.380 0.331 0.296 0.123 0.355 0.348
DeSA-3B-Instruct-GRPO          | 0.375 0.575 0.397 0.352 0.363 0.134 0.347 0.363
DeSA-7B-Instruct-GRPO          | 0.468 0.631 0.440 0.424 0.374 0.197 0.395 0.418
ReSearch-7B-Base               | 0.396 0.606 0.442 0.406 0.447 0.217 0.432 0.422
ReSearch-7B-Instruct           | 0.415 0.640 0.450 0.435 0.476 0.223 0.424 0.438
Search-R1-7B-Base-PPO w/Format | 0.488 0.644 0.469 0.436 0.412 0.187 0.403 0.434
Search-R1-7B-Base-PPO          | 0.480 0.638 0.457 0.433 0.382 0.196 0.432 0.431
Search-R1's public checkpoint  | - - - - - - - -
# VERITAS-R1
EM+Info-Think                  | 0.486 0.650 0.463 0.445 0.423 0.206 0.456 0.447
EM+Think-Ans                   | 0.482 0.658 0.464 0.445 0.420 0.189 0.416 0.439
EM+Info-Think+Think-Ans        | 0.484 0.645 0.466 0.446 0.419 0.192 0.464 0.445
""",
  {
    "Direct Inference": untrained("closed_book", "qwen2.5-7b"),
    "CoT": untrained("cot", "qwen2.5-7b"),
    "IRCoT": untrained("ircot", "qwen2.5-7b"),
    "Search-o1": Run(system="search_o1", models=("qwen2.5-7b",)),
    "RAG": untrained("", "qwen2.5-7b"),
    "SFT": NO_SFT,
    "R1-base": r1(BASE),
    "R1-instruct": r1("qwen2.5-7b"),
    "Rejection Sampling": rejection("qwen2.5-7b"),
    "DeSA-3B-Instruct-GRPO": elsewhere("desa", "qwen2.5-3b"),
    "DeSA-7B-Instruct-GRPO": elsewhere("desa", "qwen2.5-7b"),
    "ReSearch-7B-Base": elsewhere("research", BASE),
    "ReSearch-7B-Instruct": elsewhere("research", "qwen2.5-7b"),
    "Search-R1-7B-Base-PPO w/Format": trained("em_format"),
    "Search-R1-7B-Base-PPO": trained("em"),
    "Search-R1's public checkpoint": elsewhere("search_r1", BASE),
    "EM+Info-Think": trained("em_it"),
    "EM+Think-Ans": trained("em_ta"),
    "EM+Info-Think+Think-Ans": trained(""),
  },
  against="Search-R1-7B-Base-PPO",
)

PUBLIC = "Search-R1's public checkpoint"
ARMS = {
  "Search-R1 (Baseline)": trained("em"),
  "+ Format (Baseline)": trained("em_format"),
  "VERITAS Info-Think": trained("em_it"),
  "VERITAS Think-Ans": trained("em_ta"),
  "VERITAS Info-Think+Think-Ans": trained(""),
  PUBLIC: elsewhere("search_r1", BASE),
}
FAITHFUL = {
  "em": """
Search-R1 (Baseline)         | 0.482 0.641 0.450 0.437 0.381 0.201 0.425 0.431
+ Format (Baseline)          | 0.494 0.643 0.462 0.430 0.413 0.196 0.425 0.436
VERITAS Info-Think           | 0.486 0.650 0.463 0.445 0.423 0.206 0.456 0.447
VERITAS Think-Ans            | 0.482 0.658 0.464 0.442 0.420 0.189 0.416 0.439
VERITAS Info-Think+Think-Ans | 0.484 0.645 0.466 0.446 0.419 0.192 0.464 0.445
""",
  "information_think": """
Search-R1 (Baseline)         | 0.762 0.745 0.695 0.614 0.349 0.442 0.651 0.608
+ Format (Baseline)          | 0.429 0.534 0.452 0.364 0.190 0.256 0.317 0.363
VERITAS Info-Think           | 0.933 0.821 0.819 0.718 0.354 0.490 0.744 0.697
VERITAS Think-Ans            | 0.795 0.778 0.792 0.698 0.332 0.452 0.717 0.652
VERITAS Info-Think+Think-Ans | 0.929 0.811 0.820 0.712 0.356 0.489 0.732 0.693
""",
  "think_search": """
Search-R1 (Baseline)         | 0.950 0.867 0.880 0.771 0.744 0.846 0.867 0.846
+ Format (Baseline)          | 0.857 0.774 0.808 0.693 0.739 0.676 0.802 0.764
VERITAS Info-Think           | 0.855 0.919 0.934 0.769 0.745 0.848 0.821 0.842
VERITAS Think-Ans            | 0.882 0.933 0.935 0.792 0.769 0.855 0.857 0.860
VERITAS Info-Think+Think-Ans | 0.879 0.934 0.934 0.775 0.774 0.851 0.848 0.856
""",
  "think_answer": """
Search-R1 (Baseline)         | 0.836 0.898 0.909 0.803 0.644 0.670 0.895 0.808
+ Format (Baseline)          | 0.052 0.064 0.066 0.235 0.327 0.195 0.113 0.150
VERITAS Info-Think           | 0.892 0.844 0.868 0.899 0.872 0.819 0.889 0.869
VERITAS Think-Ans            | 0.879 0.855 0.842 0.895 0.869 0.838 0.877 0.865
VERITAS Info-Think+Think-Ans | 0.893 0.838 0.877 0.903 0.867 0.823 0.888 0.870
""",
}
TITLES = dict(em="EM", information_think="Info-Think", think_search="Think-Search", think_answer="Think-Ans")
RAMP = {
  "em": "w/o curriculum | 0.471 0.641 0.480 0.437 0.429 0.174 0.400 0.433\n"
  "w/ curriculum  | 0.486 0.650 0.463 0.445 0.423 0.206 0.456 0.447",
  "information_think": "w/o curriculum | 0.956 0.832 0.826 0.786 0.595 0.619 0.749 0.766\n"
  "w/ curriculum  | 0.933 0.821 0.819 0.718 0.354 0.490 0.744 0.697",
}

# Per dimension: the judge's mean, the automatic measure's mean, how often they agree, and Fleiss' kappa.
META = {
  "nq": """
SearchR1-7B-PPO        | 0.480 | 0.685 0.712 0.880 0.689 | 0.935 0.951 0.947 0.058 | 0.808 0.583 0.756 0.456
SearchR1-7B-PPO-Format | 0.488 | 0.241 0.339 0.732 0.384 | 0.906 0.923 0.913 0.029 | 0.032 0.015 0.975 0.458
ReSearch-7B-Base       | 0.396 | 0.707 0.720 0.878 0.645 | 0.869 0.885 0.933 0.241 | 0.877 0.836 0.873 0.484
ReSearch-7B-Instruct   | 0.415 | 0.692 0.713 0.875 0.638 | 0.808 0.583 0.746 0.075 | 0.742 0.739 0.897 0.731
DeSA-3B                | 0.375 | 0.182 0.177 0.962 0.881 | 0.705 0.734 0.910 0.773 | 0.452 0.726 0.464 -0.027
DeSA-7B                | 0.468 | 0.255 0.297 0.867 0.673 | 0.627 0.584 0.878 0.745 | 0.575 0.427 0.719 0.450
""",
  "hotpotqa": """
SearchR1-7B-PPO        | 0.433 | 0.564 0.575 0.847 0.666 | 0.817 0.767 0.831 0.133 | 0.774 0.461 0.680 0.385
SearchR1-7B-PPO-Format | 0.436 | 0.236 0.302 0.817 0.575 | 0.827 0.719 0.825 0.181 | 0.122 0.022 0.898 0.262
ReSearch-7B-Base       | 0.406 | 0.586 0.565 0.833 0.607 | 0.808 0.752 0.872 0.311 | 0.912 0.813 0.874 0.479
ReSearch-7B-Instruct   | 0.435 | 0.567 0.485 0.808 0.593 | 0.715 0.616 0.873 0.719 | 0.846 0.577 0.713 0.051
DeSA-3B                | 0.352 | 0.081 0.085 0.974 0.846 | 0.361 0.636 0.488 0.048 | 0.688 0.764 0.838 0.586
DeSA-7B                | 0.424 | 0.160 0.205 0.910 0.711 | 0.256 0.162 0.796 0.402 | 0.485 0.378 0.792 0.583
""",
}
AGENTS = {
  "SearchR1-7B-PPO": elsewhere("search_r1", BASE),
  "SearchR1-7B-PPO-Format": elsewhere("search_r1", f"{BASE}-format"),
  "ReSearch-7B-Base": elsewhere("research", BASE),
  "ReSearch-7B-Instruct": elsewhere("research", "qwen2.5-7b"),
  "DeSA-3B": elsewhere("desa", "qwen2.5-3b"),
  "DeSA-7B": elsewhere("desa", "qwen2.5-7b"),
}


def meta(name: str) -> tuple[Column, ...]:
  """The columns of the meta-evaluation of one set."""
  found = [Column("task", "em", (name,))]
  for dimension, first, second, term in (
    ("Info-Think", "LLMaaJ", "RM", "information_think"),
    ("Think-Search", "LLMaaJ", "NLI", "think_search"),
    ("Think-Ans", "SubEM", "NLI", "think_answer"),
  ):
    of = [f"{term}/{kind}" for kind in COMPARED[term]] + [f"{term}_agreement", f"{term}_kappa"]
    heads = (first, second, "Agree.", "Kappa")
    found += [Column(f"{dimension} {head}", measure, (name,)) for head, measure in zip(heads, of)]
  return tuple(found)


LABELLER = SERVED["claude-3.7-sonnet"]
OF_JUDGES = "ragrl make-judge-data --config=veritas"


def pairs(number: int) -> str:
  """The folder of labelled pairs, of which the paper had this number."""
  return f"out/veritas/pairs-{number}"


def labelled(number: int, held_out: int) -> str:
  """The command that labels pairs of Search-R1's trajectories."""
  judge = f"--config.judge.kind=llm --config.judge.model={LABELLER} --config.judge.endpoint=ENDPOINT"
  return f"{OF_JUDGES} {judge} --episodes=RUN --max_pairs={number} --held_out={held_out} --out={pairs(number)}"


def raters(where: Mapping[str, Any], data: str, made: str) -> tuple[Column, ...]:
  """The columns of a table of judges."""
  heads = {"Consistency": "consistency", "Kappa": "judge_kappa"}
  return tuple(Column(head, measure, ("pairs",), where=where, data=data, made=made) for head, measure in heads.items())


def of_size(number: int, held_out: int) -> tuple[Column, ...]:
  """The columns of judges against Claude 3.7."""
  where = {"labels.model": "~3-7-sonnet", "labels.max_pairs": number}
  return raters(where, f"{pairs(number)}/held_out.jsonl.gz", labelled(number, held_out))


SHEET = "out/veritas/labelled_by_hand.csv"
BY_HAND = raters(
  {"labels.by": "person"},
  SHEET,
  f"{OF_JUDGES} --compare={pairs(27_000)}/held_out.jsonl.gz --sheet={SHEET} --max_pairs=100",
)


def judge(model: str, number: int = 0, held_out: int = 0, steps: int = 0) -> Run:
  """A judge that is compared with labels; with a number of pairs, one that was trained on them but the held-out."""
  if not number:
    return Run(RATERS, models=(model,))
  return Run(
    RATERS, RATERS, (model,), {"labels.trained_on": ("these", None)}, train_flags=(f"--config.steps={steps}",),
    transcripts=f"{pairs(number)}/train.jsonl.gz", made=labelled(number, held_out),
  )  # fmt: skip


def judges(names: Mapping[str, str], number: int, held_out: int, steps: int) -> dict[str, Run]:
  """Name of a row → its judge: untrained, "+ LoRA" trained, or behind a server."""
  found = {}
  for name, model in names.items():
    found[name] = judge(model)
    if model not in SERVED:
      found[f"{name} + LoRA"] = judge(model, number, held_out, steps)
  return found


CLAUDES = {"Claude-3.7-Sonnet": "claude-3.7-sonnet", "Claude-4.5-Sonnet": "claude-4.5-sonnet"}
QWENS = {"Qwen2.5-7B-Inst": "qwen2.5-7b", "Qwen2.5-14B-Inst": "qwen2.5-14b"}
QWEN3S = {f"Qwen3-{size}B": f"qwen3-{size}b" for size in (4, 8, 14)}
LARGE = (27_000, 3_000, 780)  # pairs, those held out, and steps of three epochs

PRELIMINARY = rows(
  """
Qwen2.5-7B-Inst               | 0.718 0.436
Qwen2.5-7B-Inst + LoRA        | 0.847 0.694
Qwen2.5-14B-Inst              | 0.784 0.568
Qwen2.5-14B-Inst + LoRA       | 0.875 0.75
Qwen3-4B                      | 0.673 0.346
Qwen3-4B + LoRA               | 0.861 0.721
Qwen3-8B                      | 0.668 0.355
Qwen3-8B + LoRA               | 0.852 0.704
Qwen3-14B                     | 0.818 0.636
Qwen3-14B + LoRA              | 0.876 0.751
Claude-3.7-Sonnet             | 0.951 0.915
""",
  judges({**QWENS, **QWEN3S, "Claude-3.7-Sonnet": "claude-3.7-sonnet"}, 8_000, 2_000, 195),
)
SCALED = rows(
  """
Qwen2.5-7B-Inst               | 0.687 0.374
Qwen2.5-7B-Inst + LoRA        | 0.874 0.747
Qwen2.5-14B-Inst              | 0.753 0.506
Qwen2.5-14B-Inst + LoRA       | 0.899 0.797
Claude-3.7-Sonnet             | 0.920 0.840
Claude-4.5-Sonnet             | 0.915 0.829
""",
  judges({**QWENS, **CLAUDES}, *LARGE),
)
HUMAN = rows(
  """
Claude-3.7-Sonnet             | 0.850 0.699
Claude-4.5-Sonnet             | 0.870 0.739
Fine-tuned Qwen2.5-14B-Inst   | 0.910 0.819
""",
  judges(CLAUDES, *LARGE) | {"Fine-tuned Qwen2.5-14B-Inst": judge("qwen2.5-14b", *LARGE)},
)


def seven(measure: str) -> tuple[Column, ...]:
  """One measure on the seven sets, and its average."""
  return columns(SETS, (measure,), average="Average")


PAPER = Paper(
  "veritas",
  "VERITAS (OpenReview mZ0gGlXe1F)",
  (
    *(
      Table(
        f"Table 1, {SETS[name]}", "released agents: EM, and judges of faithfulness", meta(name), rows(block, AGENTS)
      )
      for name, block in META.items()
    ),
    Table("Table 2", "EM on seven sets, Qwen2.5-7B", columns(SETS, ("em",), average="Avg."), MAIN),
    *(
      Table(
        f"Table 3, {TITLES[measure]}",
        f"{TITLES[measure]} of five arms",
        seven(measure),
        rows(f"{block}{PUBLIC} | - - - - - - - -", ARMS, against="Search-R1 (Baseline)"),
      )
      for measure, block in FAITHFUL.items()
    ),
    *(
      Table(
        f"Table 4, {TITLES[measure]}",
        "with and without the ramp of the weights",
        seven(measure),
        rows(
          block,
          {"w/o curriculum": trained("em_it,no_ramp"), "w/ curriculum": trained("em_it")},
          against={"w/o curriculum": "w/ curriculum"},
        ),
      )
      for measure, block in RAMP.items()
    ),
    Table("Table 9", "judges against Claude 3.7, 6,000 pairs for training", of_size(8_000, 2_000), PRELIMINARY),
    Table("Table 10", "judges against Claude 3.7, 24,000 pairs for training", of_size(27_000, 3_000), SCALED),
    Table("Table 11", "judges against an author, 100 pairs", BY_HAND, HUMAN),
  ),
  {
    "Figure 1": "Table 1's numbers as bars",
    "Figure 2": "a drawing of the method",
    "Figure 3": "Table 3's numbers as bars",
    "Figure 4": "a sweep of two weights, whose numbers are not printed: `--config.switches.information_think_weight=…`",
    "Tables 5 to 7": "prompts",
    "Table 8": "sizes and licences of the sets; nothing is measured",
    "Figure 5": "curves over training: `ragrl report` draws `kl` and `entropy`, two runs side by side",
    "Figures 6 and 7": "single replies: `ragrl report` shows those of a run",
  },
  "the paper's text",
)
