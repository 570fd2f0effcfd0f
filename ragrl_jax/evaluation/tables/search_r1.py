"""Search-R1's tables (arXiv 2503.09516v5): the published numbers, and the run for each row."""

from ragrl_jax.evaluation.tables.layout import HUB, Paper, Run, Table, columns, rows

SETS = {
  "nq": "NQ",
  "triviaqa": "TriviaQA",
  "popqa": "PopQA",
  "hotpotqa": "HotpotQA",
  "2wiki": "2wiki",
  "musique": "Musique",
  "bamboogle": "Bamboogle",
}
SEVEN_SETS = columns(SETS, ("em",), average="Avg.")
INDEX = ("--config.retrieval.index=INDEX",)
FLASHRAG = "hf:RUC-NLPIR/FlashRAG_datasets"
TRAINED_ON = f"{FLASHRAG}/nq/train,{FLASHRAG}/hotpotqa/train"  # the questions of configs/search_r1.py
NO_SFT = "no config fine-tunes on bare answers to questions without passages"


def untrained(preset: str, model: str, *, top_k: int = 3) -> Run:
  """An untrained method of the recipe untrained."""
  config, found = (f"untrained:{preset}" if preset else "untrained"), {"retrieval.top_k": top_k, "thinking": None}
  if preset in ("closed_book", "cot"):
    return Run(config, models=(model,))
  return Run(config, models=(model,), where=found, needs=(*INDEX, f"--config.retrieval.top_k={top_k}"))


def trained(preset: str, model: str, *, top_k: int = 3, group: int = 0) -> Run:
  """Search-R1 by GRPO or PPO."""
  group = group or (5 if preset == "grpo" else 1)
  where = {"retrieval.top_k": top_k, "trained.retrieval.top_k": top_k, "trained.rollout.group_size": group}
  usual = group == (5 if preset == "grpo" else 1)
  size = () if usual else (f"--config.rollout.group_size={group}",)
  needs = INDEX if top_k == 3 else (*INDEX, f"--config.retrieval.top_k={top_k}")
  return Run(f"search_r1:{preset}", f"search_r1:{preset}", (model,), where, needs=needs, train_flags=size)


def r1(model: str) -> Run:
  """Search-R1's training without a search engine."""
  return Run("search_r1:ppo,r1", "search_r1:ppo,r1", (model,))


def rejection(model: str) -> Run:
  """A model fine-tuned on its own correct samples of the training questions, five for each."""
  out = f"out/search_r1/data/{model}"
  made = (
    f"ragrl evaluate --config=search_r1 --checkpoint={HUB[model]} --seeds=5 --data={TRAINED_ON} "
    f"--out={out}/sampled {INDEX[0]} && ragrl make-rejection-sft --results='{out}/sampled/seed_*' --data={TRAINED_ON} "
    f"--out={out}/right.jsonl.gz"
  )
  of = dict(needs=INDEX, transcripts=f"{out}/right.jsonl.gz", made=made)
  return Run("search_r1", "search_r1:sft", (model,), **of)


def baselines(size: str) -> dict[str, Run | str]:
  """The rows of a main table, for one size of Qwen2.5."""
  instruct, base = f"qwen2.5-{size}", f"qwen2.5-{size}-base"
  return {
    "Direct Inference": untrained("closed_book", instruct),
    "CoT": untrained("cot", instruct),
    "IRCoT": untrained("ircot", instruct),
    "Search-o1": Run(system="search_o1", models=(instruct,)),
    "RAG": untrained("", instruct),
    "SFT": NO_SFT,
    "R1-base": r1(base),
    "R1-instruct": r1(instruct),
    "Rejection Sampling": rejection(instruct),
    "Search-R1-base": trained("ppo", base),
    "Search-R1-instruct": trained("ppo", instruct),
  }


MAIN_7B = """
Direct Inference   | 0.134 0.408 0.140 0.183 0.250 0.031 0.120 0.181
CoT                | 0.048 0.185 0.054 0.092 0.111 0.022 0.232 0.106
IRCoT              | 0.224 0.478 0.301 0.133 0.149 0.072 0.224 0.239
Search-o1          | 0.151 0.443 0.131 0.187 0.176 0.058 0.296 0.206
RAG                | 0.349 0.585 0.392 0.299 0.235 0.058 0.208 0.304
SFT                | 0.318 0.354 0.121 0.217 0.259 0.066 0.112 0.207
R1-base            | 0.297 0.539 0.202 0.242 0.273 0.083 0.296 0.276
R1-instruct        | 0.270 0.537 0.199 0.237 0.292 0.072 0.293 0.271
Rejection Sampling | 0.360 0.592 0.380 0.331 0.296 0.123 0.355 0.348
Search-R1-base     | 0.480 0.638 0.457 0.433 0.382 0.196 0.432 0.431
Search-R1-instruct | 0.393 0.610 0.397 0.370 0.414 0.146 0.368 0.385
"""
MAIN_3B = """
Direct Inference   | 0.106 0.288 0.108 0.149 0.244 0.020 0.024 0.134
CoT                | 0.023 0.032 0.005 0.021 0.021 0.002 0.000 0.015
IRCoT              | 0.111 0.312 0.200 0.164 0.171 0.067 0.240 0.181
Search-o1          | 0.238 0.472 0.262 0.221 0.218 0.054 0.320 0.255
RAG                | 0.348 0.544 0.387 0.255 0.226 0.047 0.080 0.270
SFT                | 0.249 0.292 0.104 0.186 0.248 0.044 0.112 0.176
R1-base            | 0.226 0.455 0.173 0.201 0.268 0.055 0.224 0.229
R1-instruct        | 0.210 0.449 0.171 0.208 0.275 0.060 0.192 0.224
Rejection Sampling | 0.294 0.488 0.332 0.240 0.233 0.059 0.210 0.265
Search-R1-base     | 0.406 0.587 0.435 0.284 0.273 0.049 0.088 0.303
Search-R1-instruct | 0.341 0.545 0.378 0.324 0.319 0.103 0.264 0.325
"""
MAIN_14B = """
Direct Inference   | 0.198 0.531 0.184 0.217 0.253 0.045 0.160 0.227
CoT                | 0.190 0.495 0.148 0.269 0.297 0.054 0.432 0.269
IRCoT              | 0.114 0.375 0.166 0.230 0.248 0.102 0.312 0.221
Search-o1          | 0.347 0.635 0.241 0.268 0.161 0.099 0.416 0.310
RAG                | 0.327 0.585 0.376 0.279 0.160 0.051 0.192 0.281
SFT                | 0.361 0.467 0.150 0.248 0.278 0.089 0.160 0.250
R1-base            | 0.369 0.626 0.270 0.306 0.326 0.117 0.488 0.357
R1-instruct        | 0.334 0.628 0.253 0.294 0.325 0.108 0.432 0.339
Search-R1-base     | 0.486 0.676 0.480 0.468 0.470 0.241 0.528 0.479
Search-R1-instruct | 0.424 0.660 0.442 0.436 0.379 0.210 0.480 0.433
"""
FOURTEEN = {name: run for name, run in baselines("14b").items() if name != "Rejection Sampling"}

ALGORITHMS = rows(
  """
7B-base (GRPO)     | 0.395 0.560 0.388 0.326 0.297 0.125 0.360 0.350
7B-instruct (GRPO) | 0.429 0.623 0.427 0.386 0.346 0.162 0.400 0.396
7B-base (PPO)      | 0.480 0.638 0.457 0.433 0.382 0.196 0.432 0.431
7B-instruct (PPO)  | 0.393 0.610 0.397 0.370 0.414 0.146 0.368 0.385
3B-base (GRPO)     | 0.421 0.583 0.413 0.297 0.274 0.066 0.128 0.312
3B-instruct (GRPO) | 0.397 0.565 0.391 0.331 0.310 0.124 0.232 0.336
3B-base (PPO)      | 0.406 0.587 0.435 0.284 0.273 0.049 0.088 0.303
3B-instruct (PPO)  | 0.341 0.545 0.378 0.324 0.319 0.103 0.264 0.325
""",
  {
    f"{size.upper()}-{kind} ({how.upper()})": trained(how, f"qwen2.5-{size}" + ("-base" if kind == "base" else ""))
    for size in ("7b", "3b")
    for kind in ("base", "instruct")
    for how in ("grpo", "ppo")
  },
  against={f"{name} (GRPO)": f"{name} (PPO)" for name in ("7B-base", "7B-instruct", "3B-base", "3B-instruct")},
)


def masked(size: str, *numbers: str):
  """The rows with and without the mask of retrieved tokens."""
  block = "w. mask   | {}\nw.o. mask | {}".format(*numbers)
  never = "results are never trained on here: Segment.owner says whose a token is"
  return rows(block, {"w. mask": trained("ppo", f"qwen2.5-{size}-base"), "w.o. mask": never})


TOP_K = rows(
  """
topk=1 | 0.426 0.614 0.422 0.393 0.296 0.146 0.328 0.375
topk=3 | 0.480 0.638 0.457 0.433 0.382 0.196 0.432 0.431
topk=5 | 0.479 0.634 0.440 0.394 0.343 0.156 0.352 0.400
""",
  {f"topk={k}": trained("ppo", "qwen2.5-7b-base", top_k=k) for k in (1, 3, 5)},
  against="topk=3",
)
GROUPS = rows(
  """
size=1 | 0.463 0.605 0.449 0.392 0.413 0.163 0.384 0.410
size=3 | 0.385 0.580 0.396 0.329 0.333 0.117 0.400 0.363
size=5 | 0.395 0.560 0.388 0.326 0.297 0.125 0.360 0.350
""",
  {
    "size=1": "a group of one has advantage 0 here; the paper's is REINFORCE without a baseline",
    "size=3": trained("grpo", "qwen2.5-7b-base", group=3),
    "size=5": trained("grpo", "qwen2.5-7b-base"),
  },
  against={"size=3": "size=5"},
)
MASK_7B = masked(
  "7b", "0.480 0.638 0.457 0.433 0.382 0.196 0.432 0.431", "0.388 0.567 0.391 0.325 0.321 0.108 0.304 0.343"
)
MASK_3B = masked(
  "3b", "0.406 0.587 0.435 0.284 0.273 0.049 0.088 0.303", "0.346 0.484 0.365 0.241 0.244 0.053 0.104 0.262"
)

PAPER = Paper(
  "search_r1",
  "Search-R1 (arXiv 2503.09516v5)",
  (
    Table(
      "Table 2, Qwen2.5-7B", "EM on seven sets", SEVEN_SETS, rows(MAIN_7B, baselines("7b"), against="Search-R1-base")
    ),
    Table(
      "Table 2, Qwen2.5-3B", "EM on seven sets", SEVEN_SETS, rows(MAIN_3B, baselines("3b"), against="Search-R1-base")
    ),
    Table("Table 3", "PPO and GRPO", SEVEN_SETS, ALGORITHMS),
    Table("Table 4", "the mask of retrieved tokens, Qwen2.5-7B", SEVEN_SETS, MASK_7B),
    Table("Table 5", "EM on seven sets, Qwen2.5-14B", SEVEN_SETS, rows(MAIN_14B, FOURTEEN, against="Search-R1-base")),
    Table("Table 6", "the mask of retrieved tokens, Qwen2.5-3B", SEVEN_SETS, MASK_3B),
    Table("Table 7", "passages a search, Qwen2.5-7B", SEVEN_SETS, TOP_K),
    Table("Table 8", "GRPO's group size, Qwen2.5-7B", SEVEN_SETS, GROUPS),
  ),
  {
    "Table 1": "the prompt",
    "Figure 1": "a drawing of the method",
    "Figures 2 to 5, and the appendix's": "curves over training: `ragrl report` draws them, several runs side by side",
    "Tables 9 and 10": "single replies: `ragrl report` shows those of a run",
  },
  "Table 2 for 7B as VERITAS's Table 2 prints it; the other numbers from published notes on version 5 of the paper. "
  "Every row's average was computed again",
)
