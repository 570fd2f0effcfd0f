"""ARENA's tables (arXiv 2505.13258): the published numbers, and the run for each row."""

from collections.abc import Mapping
from typing import Any

from ragrl_jax.evaluation.tables.layout import Column, Paper, Run, Table, columns, rows

SETS = {"hotpotqa": "HotpotQA", "2wiki": "2WikiMultiHopQA", "musique": "MuSiQue"}
MEASURES = ("em_spaced", "f1_spaced", "accuracy")
QWEN, LLAMA, R1_QWEN, QWEN3 = "qwen2.5-7b", "llama-3.1-8b", "r1-distill-qwen-7b", "qwen3-8b"
GPT_4O, O1, DEEPSEEK_R1 = "gpt-4o", "openai-o1", "deepseek-r1"  # behind an API
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
ALL, WM, HM = "2wiki,hotpotqa,musique", "2wiki,musique", "hotpotqa,musique"


def trained(preset: str = "", variant: str = "", model: str = QWEN, kl: str = "k2", sets: str = ALL) -> Run:
  """A policy trained by RL, evaluated under its preset with EM, F1 and a judge."""
  where: Mapping[str, Any] = {"trained.loss.kl": kl, "trained.sets": sets}
  if preset != "naive":  # all of these presets ask for the same reply: a policy may be tested under any of them
    where = where | {"preset": ("paper", "f1", "judge", "no_bonus"), "switches.reply": "cited"}
  return Run(_config(preset), _config(variant or preset), (model,), where, flags=JUDGE)


def fine_tuned(preset: str) -> Run:
  """A policy fine-tuned on transcripts, with the settings of the paper or of the authors' code (preset "repo")."""
  either = (preset or "paper", f"repo,{preset}".rstrip(","))
  where = {"preset": either, "trained.preset": either}
  file = f"out/arena/data/{preset or 'reasoned'}.jsonl.gz"
  made = f"ragrl make-arena-sft --data={ASKED_OF} --out={file}"
  if not preset:  # the backbone writes the reasoning
    made += f" --answers=out/arena/data/backbone --url=BACKBONE_URL --model={QWEN}"
  of = dict(flags=JUDGE, transcripts=file, made=made)
  return Run(_config(preset), _config(f"sft,{preset}".rstrip(",")), (QWEN,), where, **of)


def untrained(model: str) -> Run:
  """An untrained model that answers directly from the given passages."""
  return Run("arena:direct", models=(model,), flags=JUDGE)


def closed_book(model: str) -> Run:
  """An untrained model without passages."""
  return Run("untrained:closed_book", models=(model,), flags=ASKED)


def released(system: str) -> Run:
  """A released agent whose searches return the given passages: either played, or its transcripts."""
  return Run(system=system, where={"switches.documents": ("given", None)})


def given(method: str, model: str) -> Run:
  """An untrained method over the given passages."""
  return Run(f"untrained:{method},given", models=(model,), flags=ASKED)


def _config(variant: str) -> str:
  return f"arena:{variant}" if variant else "arena"


MAIN = rows(
  """
# Prompt-based models
DeepSeek-R1-Distill-Qwen-7B     | 0.332 0.487 0.712 | 0.290 0.407 0.658 | 0.116 0.184 0.278
Qwen3-8B                        | 0.582 0.719 0.768 | 0.652 0.727 0.784 | 0.336 0.397 0.394
SuRe-GPT-4o                     | 0.490 0.695 0.742 | 0.490 0.607 0.632 | 0.194 0.307 0.324
SuRe-Qwen-7B                    | 0.504 0.648 0.696 | 0.364 0.448 0.440 | 0.146 0.233 0.226
self-ask-GPT-4o                 | 0.408 0.577 0.662 | 0.430 0.565 0.614 | 0.162 0.305 0.346
self-ask-Qwen-7B                | 0.016 0.112 0.246 | 0.004 0.128 0.086 | 0.006 0.052 0.087
# SFT-based models
Qwen-7B-SFT-direct              | 0.498 0.628 0.662 | 0.540 0.609 0.620 | 0.168 0.254 0.214
Qwen-7B-SFT-reasoning           | 0.400 0.532 0.599 | 0.536 0.615 0.622 | 0.112 0.172 0.174
# RL-based models
Naive-GRPO                      | 0.534 0.662 0.732 | 0.620 0.684 0.720 | 0.332 0.435 0.420
R1-Searcher-7B                  | 0.590 0.731 0.791 | 0.632 0.704 0.730 | 0.250 0.370 0.327
SimpleDeepSearcher-7B           | 0.500 0.633 0.686 | 0.632 0.707 0.748 | 0.258 0.347 0.344
ReSearch-7B                     | 0.578 0.729 0.778 | 0.586 0.658 0.684 | 0.300 0.398 0.407
# Ours (ARENA)
Llama3.1-8B-Instruct (Original) | 0.528 0.676 0.738 | 0.398 0.478 0.484 | 0.248 0.370 0.324
ARENA-Llama-8B                  | 0.552 0.703 0.780 | 0.622 0.710 0.735 | 0.358 0.445 0.466
Qwen2.5-7B-Instruct (Original)  | 0.484 0.628 0.660 | 0.334 0.424 0.412 | 0.252 0.354 0.306
ARENA-Qwen-7B                   | 0.628 0.762 0.812 | 0.660 0.752 0.786 | 0.400 0.520 0.508
""",
  {
    "DeepSeek-R1-Distill-Qwen-7B": untrained(R1_QWEN),
    "Qwen3-8B": untrained(QWEN3),
    "SuRe-GPT-4o": given("sure", GPT_4O),
    "SuRe-Qwen-7B": given("sure", QWEN),
    "self-ask-GPT-4o": given("self_ask", GPT_4O),
    "self-ask-Qwen-7B": given("self_ask", QWEN),
    "Qwen-7B-SFT-direct": fine_tuned("direct"),
    "Qwen-7B-SFT-reasoning": fine_tuned(""),
    "Naive-GRPO": trained("naive", kl="k3"),
    "R1-Searcher-7B": released("r1_searcher"),
    "SimpleDeepSearcher-7B": released("simpledeepsearcher"),
    "ReSearch-7B": released("research"),
    "Llama3.1-8B-Instruct (Original)": untrained(LLAMA),
    "ARENA-Llama-8B": trained(model=LLAMA),
    "Qwen2.5-7B-Instruct (Original)": untrained(QWEN),
    "ARENA-Qwen-7B": trained(),
  },
  against="ARENA-Qwen-7B",
)

TRANSFER = rows(
  """
ARENA-Qwen-7B + WM  | 0.568 0.711 0.764 | 0.642 0.732 0.734 | 0.394 0.504 0.486
ARENA-Qwen-7B + HM  | 0.598 0.741 0.796 | 0.578 0.671 0.680 | 0.404 0.519 0.478
ARENA-Qwen-7B + HWM | 0.628 0.762 0.812 | 0.660 0.752 0.774 | 0.400 0.520 0.508
""",
  {
    "ARENA-Qwen-7B + WM": trained(variant="without_hotpotqa", sets=WM),
    "ARENA-Qwen-7B + HM": trained(variant="without_2wiki", sets=HM),
    "ARENA-Qwen-7B + HWM": trained(),
  },
  against="ARENA-Qwen-7B + HWM",
)

COMMERCIAL = rows(
  """
GPT-4o        | 0.628 0.788 0.820
OpenAI-o1     | 0.656 0.816 0.890
DeepSeek-R1   | 0.618 0.781 0.836
ARENA-Qwen-7B | 0.628 0.762 0.812
""",
  {
    "GPT-4o": untrained(GPT_4O),
    "OpenAI-o1": untrained(O1),
    "DeepSeek-R1": untrained(DEEPSEEK_R1),
    "ARENA-Qwen-7B": trained(),
  },
)

REWARDS = """
GPT-4o    | {}
F1        | {}
EM (ours) | {}
"""
ACCURACIES = {"GPT-4o": trained("judge"), "F1": trained("f1"), "EM (ours)": trained()}


def rewards(*numbers: str):
  """The rows of a table of reward variants."""
  return rows(REWARDS.format(*numbers), ACCURACIES, against="EM (ours)")


PILOT = rows(
  """
# direct
Qwen2.5-7B-Instruct, direct             | 0.188 0.247 0.262 | 0.222 0.253 0.234 | 0.040 0.090 0.061
Llama3.1-8B-Instruct, direct            | 0.194 0.283 0.284 | 0.210 0.246 0.232 | 0.038 0.080 0.054
DeepSeek-R1-Distill-Qwen-7B, direct     | 0.086 0.150 0.162 | 0.144 0.206 0.234 | 0.012 0.043 0.026
Qwen3-8B, direct                        | 0.248 0.344 0.367 | 0.220 0.263 0.264 | 0.030 0.092 0.060
GPT-4o, direct                          | 0.378 0.500 0.500 | 0.342 0.386 0.366 | 0.100 0.192 0.124
OpenAI-o1, direct                       | 0.510 0.667 0.726 | 0.530 0.634 0.684 | 0.292 0.404 0.392
DeepSeek-R1, direct                     | 0.422 0.564 0.590 | 0.454 0.536 0.546 | 0.202 0.330 0.294
# direct RAG
Qwen2.5-7B-Instruct, direct RAG         | 0.484 0.628 0.660 | 0.334 0.424 0.412 | 0.252 0.354 0.306
Llama3.1-8B-Instruct, direct RAG        | 0.528 0.676 0.738 | 0.398 0.478 0.484 | 0.248 0.370 0.324
DeepSeek-R1-Distill-Qwen-7B, direct RAG | 0.332 0.487 0.712 | 0.290 0.407 0.658 | 0.116 0.184 0.278
Qwen3-8B, direct RAG                    | 0.582 0.719 0.768 | 0.652 0.727 0.784 | 0.336 0.397 0.394
GPT-4o, direct RAG                      | 0.628 0.788 0.820 | 0.606 0.687 0.717 | 0.505 0.617 0.593
OpenAI-o1, direct RAG                   | 0.656 0.816 0.890 | 0.702 0.805 0.837 | 0.622 0.744 0.762
DeepSeek-R1, direct RAG                 | 0.618 0.781 0.836 | 0.721 0.801 0.838 | 0.559 0.702 0.703
""",
  {
    f"{name}, {mode}": run(model)
    for mode, run in (("direct", closed_book), ("direct RAG", untrained))
    for name, model in (
      ("Qwen2.5-7B-Instruct", QWEN),
      ("Llama3.1-8B-Instruct", LLAMA),
      ("DeepSeek-R1-Distill-Qwen-7B", R1_QWEN),
      ("Qwen3-8B", QWEN3),
      ("GPT-4o", GPT_4O),
      ("OpenAI-o1", O1),
      ("DeepSeek-R1", DEEPSEEK_R1),
    )
  },
  against={f"{name}, direct RAG": f"{name}, direct" for name in ("Qwen2.5-7B-Instruct", "Llama3.1-8B-Instruct")},
)

ABLATION = rows(
  """
Naive GRPO           | - - - - - - - - -
w/o KL stabilization | - - - - - - - - -
ARENA-Qwen-7B        | - - - - - - - - -
""",
  {
    "Naive GRPO": trained("naive", kl="k3"),
    "w/o KL stabilization": trained(variant="k3", kl="k3"),
    "ARENA-Qwen-7B": trained(),
  },
  against="ARENA-Qwen-7B",
)


def only(name: str) -> tuple[Column, ...]:
  """EM, F1 and LJ of one set."""
  return columns({name: SETS[name]}, MEASURES)


PAPER = Paper(
  "arena",
  "ARENA (arXiv 2505.13258)",
  (
    Table("Table 3", "ARENA and its baselines, 500 questions a set", columns(SETS, MEASURES), MAIN),
    Table("Table 4", "trained on two sets or on all three", columns(SETS, MEASURES), TRANSFER),
    Table(
      "Figure 2",
      "three variants: judge, format, relevance",
      columns(SETS, ("accuracy", "format", "relevance")),
      ABLATION,
    ),
    Table("Table 5", "against commercial models", only("hotpotqa"), COMMERCIAL),
    Table(
      "Table 6",
      "what counts as right in training, HotpotQA",
      only("hotpotqa"),
      rewards("0.612 0.752 0.804", "0.600 0.738 0.794", "0.628 0.762 0.812"),
    ),
    Table("Table 7", "untrained models without and with the passages", columns(SETS, MEASURES), PILOT),
    Table(
      "Appendix G, 2WikiMultiHopQA",
      "what counts as right in training",
      only("2wiki"),
      rewards("0.644 0.730 0.740", "0.646 0.736 0.732", "0.660 0.752 0.774"),
    ),
    Table(
      "Appendix G, MuSiQue",
      "what counts as right in training",
      only("musique"),
      rewards("0.430 0.533 0.516", "0.438 0.548 0.502", "0.400 0.520 0.508"),
    ),
  ),
  {
    "Table 1": "the prompt's shape; no numbers",
    "Table 2": "counts of the data sets' questions; nothing is measured",
    "Figure 1": "a drawing of the method",
    "Figure 3": "one question's replies: `ragrl report` shows those of a run",
    "Figure 4": "a curve over training: `ragrl report` draws `kl` of a run, two runs side by side",
    "Tables 8 and 9": "prompts",
  },
  "the paper's text; the bars of Figure 2 have no printed numbers",
  data={
    "hotpotqa": "hf:hotpotqa/hotpot_qa/distractor/validation~500",
    "2wiki": "hf:RUC-NLPIR/FlashRAG_datasets/2wikimultihopqa/dev~500",
    "musique": "hf:dgslibisey/MuSiQue//validation~500",
  },
)
