r"""Search-R1 (arXiv 2503.09516): reason, search, read, answer. Qwen2.5-3B or 7B, NQ + HotpotQA, the 2018 Wikipedia.

Run:    ragrl train --config search_r1 --workdir OUT \
          --config.model.path=Qwen/Qwen2.5-7B --config.retrieval.index=INDEX_OR_ADDRESS
Variants, joined by commas: smoke (tiny sizes, same rules), ppo (a critic instead of groups), format (rewards the
          format), repo (as in the authors' code), r1 (trained without search), browse (opens documents, finds words in
          them), sft (on transcripts: ragrl sft), dgpo (PPO with --config.loss.teacher.path=TEACHER; with sft: its warm
          start by distillation), opsd (the policy with the gold passages teaches the one that must search).
Expect: not run yet at this size. The paper has .431 EM on average over seven sets for 7B by PPO.
"""

from ragrl_jax import config as config_lib, recipes

ALGORITHMS = ("grpo", "ppo", "sft"), ("grpo", "ppo", "dgpo")


def get_config(variant: str = ""):
  config, chosen = recipes.configure("search_r1", variant, "sft", one_of=ALGORITHMS)
  config.steps = 1005  # code; 500 in the paper's text
  nq, hotpotqa = "hf:RUC-NLPIR/FlashRAG_datasets/nq", "hf:RUC-NLPIR/FlashRAG_datasets/hotpotqa"
  config_lib.own_sets(config, train=f"{nq}/train,{hotpotqa}/train", evaluate=f"{nq}/dev")  # no test set
  config.model.update(dtype="bfloat16", remat=True)
  config.retrieval.top_k = 3  # paper and code
  # Paper and code: 5 samples. 500 tokens are a turn; 4096, code's max_prompt_length, are prompt, turns and results.
  config.rollout.update(prompts_per_step=512, group_size=5, max_new_tokens=500, temperature=1.0, top_p=1.0)
  config.rollout.update(lanes=128, rows=256, context=4096, prefill=256, page=128)
  config.advantage.update(kind="group_relative", std="sample", eps=1e-6)
  # Two updates of 256 prompts. Code: low_var_kl, in the loss.
  config.loss.update(aggregation="token_mean", clip_low=0.2, clip_high=0.2, kl="k3", kl_coef=0.001, minibatches=2)
  config.optimizer.update(learning_rate=1e-6, weight_decay=0.01, clip_norm=1.0)
  config.optimizer.update(warmup_steps=572, schedule="constant")  # 28.5 % of the updates, two a step; then constant
  grouped = not {"ppo", "dgpo"} & set(chosen)
  if "format" in chosen and grouped:
    config.optimizer.learning_rate = 5e-7  # the authors' script, v0.3
  if "repo" in chosen and grouped:  # the authors' GRPO script: 10 updates a step, of 256 of 2,560 episodes
    config.rollout.top_p = 0.95
    config.loss.update(minibatches=10, entropy_coef=0.001)
    config.optimizer.warmup_steps = 2860  # the same share of the updates
  if not grouped:  # the authors' PPO script, v0.2; DGPO's is the same
    config.rollout.group_size = 1
    config.advantage.update(kind="gae", gamma=1.0, lam=1.0, whiten=True)
    config.loss.update(kl="k1", kl_in="reward", entropy_coef=0.001)
    config.critic.update(kind="own", learning_rate=1e-5, warmup_steps=30, clip=0.5)  # 1.5 % of the updates
  if "dgpo" in chosen:  # its KL to the teacher takes the place of that to the start
    config.loss.update(kl="none", kl_coef=0.0)
  config.learner.update(micro_rows=8, row_lengths=(2048, 4096), logprob_chunk=1024)
  config.checkpoint.every = 100
  config.evaluate.every = 50
  if "sft" in chosen:  # rejection sampling's second half; the paper gives no settings for it
    config.sft.update(batch=64, epochs=2, warmup_share=0.1, environment_weight=0.0)
    config.optimizer.update(learning_rate=1e-5, schedule="cosine", final_share=0.0, warmup_steps=0)
  return config_lib.shrink(config) if "smoke" in chosen else config
