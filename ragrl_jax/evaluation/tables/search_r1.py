"""The runs in the rows of Search-R1's tables (arXiv 2503.09516v5); search_r1.toml has the published numbers."""

from ragrl_jax.evaluation.tables.layout import Run
from ragrl_jax.evaluation.tables.published import paper

INDEX = ("--config.retrieval.index=INDEX",)
FLASHRAG = "hf:RUC-NLPIR/FlashRAG_datasets"
TRAINED_ON = f"{FLASHRAG}/nq/train,{FLASHRAG}/hotpotqa/train"  # the questions of configs/search_r1.py
OUT = "out/search_r1/data/{model}"


def untrained(config: str, top_k: int = 3) -> Run:
  """An untrained method that searches."""
  needs = (*INDEX, f"--config.retrieval.top_k={top_k}")
  return Run(config, where={"retrieval.top_k": top_k, "thinking": None}, needs=needs)


def trained(preset: str, group: int, *flags: str, top_k: int = 3) -> Run:
  """Search-R1 by GRPO or PPO."""
  config = f"search_r1:{preset}"
  where = {"retrieval.top_k": top_k, "trained.retrieval.top_k": top_k, "trained.rollout.group_size": group}
  needs = INDEX if top_k == 3 else (*INDEX, f"--config.retrieval.top_k={top_k}")
  return Run(config, config, where=where, needs=needs, train_flags=flags)


RUNS: dict[str, Run | str] = {
  "closed_book": Run("untrained:closed_book"),
  "cot": Run("untrained:cot"),
  "ircot": untrained("untrained:ircot"),
  "search_o1": Run(system="search_o1"),
  "rag": untrained("untrained"),
  "sft": "no config fine-tunes on bare answers to questions without passages",
  "r1": Run("search_r1:ppo,r1", "search_r1:ppo,r1"),  # without a search engine
  # Fine-tuned on the model's own correct samples of the training questions, five for each.
  "rejection": Run(
    "search_r1",
    "search_r1:sft",
    needs=INDEX,
    transcripts=f"{OUT}/right.jsonl.gz",
    made=f"ragrl evaluate --config=search_r1 --checkpoint={{hub}} --seeds=5 --data={TRAINED_ON} "
    f"--out={OUT}/sampled {INDEX[0]} && ragrl make-rejection-sft --results='{OUT}/sampled/seed_*' --data={TRAINED_ON} "
    f"--out={OUT}/right.jsonl.gz",
  ),
  "ppo": trained("ppo", 1),
  "ppo_top_1": trained("ppo", 1, top_k=1),
  "ppo_top_5": trained("ppo", 1, top_k=5),
  "grpo": trained("grpo", 5),
  "grpo_3": trained("grpo", 3, "--config.rollout.group_size=3"),
  "grpo_1": "a group of one has advantage 0 here; the paper's is REINFORCE without a baseline",
  "unmasked": "results are never trained on here: Segment.owner says whose a token is",
}
PAPER = paper("search_r1", RUNS)
