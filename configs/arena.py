r"""ARENA (arXiv 2505.13258): name the useful references, analyse, answer. 7B or 8B, 10 to 20 given passages, no search.

Run:    python launchers/train.py --config configs/arena.py --workdir OUT \
          --config.model.path=QWEN_FOLDER --config.data.train=FILE.jsonl.gz
Variants, joined by commas: smoke (tiny sizes, same rules), repo (the authors' code's reading).
Expect: not run yet at this size. The paper has EM .628 / .660 / .400 on HotpotQA / 2WikiMultihopQA / MuSiQue.
"""

from ragrl_jax import config as config_lib
from ragrl_jax import recipes

VARIANTS = ("", "smoke", "repo")


def get_config(variant: str = ""):
  chosen = variant.split(",")
  if not set(chosen) <= set(VARIANTS):
    raise ValueError(f"configs/arena.py:{variant}: use {', '.join(VARIANTS[1:])}, joined by commas.")
  config = config_lib.default_config()
  config.recipe = "arena"
  config.switches = recipes.switches("arena")
  config.preset = "repo" if "repo" in chosen else "paper"
  config.steps = 95                          # one epoch of 24,500 questions
  config.data.train = "hf:hotpotqa/hotpot_qa/distractor/train"  # the paper adds 2WikiMultihopQA and MuSiQue
  config.data.evaluate = "hf:hotpotqa/hotpot_qa/distractor/validation"
  config.model.update(dict(dtype="bfloat16", remat=True))
  config.rollout.update(dict(
    prompts_per_step=256, group_size=7,      # paper and code
    lanes=128, rows=128, context=5120,       # prompts are not cut; 20 paragraphs of MuSiQue take 3 to 4 thousand tokens
    prefill=512, block=256,
    max_new_tokens=256,                      # code; its tests allow 1024
    temperature=0.9, top_p=1.0))             # paper and code
  config.advantage.update(dict(kind="group_relative", std="sample", eps=1e-4))  # code
  config.loss.update(dict(
    aggregation="token_mean",                # code, but over the whole step; the paper prints a mean over sequences
    clip_low=0.2, clip_high=0.2,             # the code's (TRL's) default; with one update per batch it never acts
    kl="k2", kl_coef=0.04,                   # paper and code; the coefficient is the code's
    epochs=1, minibatches=1))
  config.optimizer.update(dict(
    learning_rate=3e-6, warmup_steps=10,     # a tenth of the steps
    schedule="cosine", final_share=0.0, weight_decay=0.0, clip_norm=1.0))
  config.learner.update(dict(micro_rows=4, row_lengths=(2560, 5120), share_prompts=True, logprob_chunk=1024))
  config.checkpoint.every = 25               # code
  config.evaluate.every = 25
  return config_lib.shrink(config) if "smoke" in chosen else config
