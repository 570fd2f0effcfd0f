r"""VERITAS (OpenReview mZ0gGlXe1F): search, and think about what was found. Qwen2.5-7B base, NQ + HotpotQA.

Run:    ragrl train --config veritas --workdir OUT \
          --config.model.path=Qwen/Qwen2.5-7B --config.retrieval.index=INDEX_OR_ADDRESS \
          --config.judge.kind=reward_model --config.judge.path=RM/model
        RM: the run of ragrl sft --config veritas:reward_model.
Variants, joined by commas: smoke (tiny sizes, same rules); one of the arms em, em_it, em_ta, em_format; no_ramp; repo;
        or reward_model (for ragrl sft on the pairs of ragrl make-judge-data).
Expect: not run yet at this size. The paper has .445 EM on average over seven sets, .447 for em_it.
"""

from ragrl_jax import config as config_lib, recipes, settings
from ragrl_jax.recipes.veritas.recipe import JUDGED

ARMS = ("em", "em_it", "em_ta", "em_format", "reward_model")


def get_config(variant: str = ""):
  config, chosen = recipes.configure("veritas", variant, one_of=(ARMS,))
  config.steps = 1005  # Search-R1's code
  nq, hotpotqa = "hf:RUC-NLPIR/FlashRAG_datasets/nq", "hf:RUC-NLPIR/FlashRAG_datasets/hotpotqa"
  config_lib.own_sets(config, train=f"{nq}/train,{hotpotqa}/train", evaluate=f"{nq}/dev")  # no test set
  config.model.update(dtype="bfloat16", remat=True)
  config.retrieval.top_k = 3  # paper
  config.judge.max_tokens = 1536  # room for three passages of 166 tokens, a whole turn and a question of some 130
  chosen_switches = recipes.get("veritas", config.preset).switches
  if chosen_switches["task"] == "agent" and chosen_switches["judge_information"]:
    config.judge.kind = "lexical" if "smoke" in chosen else "reward_model"  # paper: a distilled one of 14B
  config.judges = {term: config_lib.unset(settings.Judge) for term in JUDGED}  # each term may have its own judge
  config.rollout.update(prompts_per_step=512, max_new_tokens=500, temperature=1.0, top_p=1.0)  # 500 tokens a turn
  config.rollout.update(lanes=128, rows=256, context=4096, prefill=256, page=128)
  config.learner.update(micro_rows=8, row_lengths=(2048, 4096), logprob_chunk=1024)
  config.checkpoint.every = 100
  config.evaluate.every = 50
  if chosen_switches["task"] == "judge":
    distil(config)
  else:
    ppo(config)
  return config_lib.shrink(config) if "smoke" in chosen else config


def ppo(config):
  """Search-R1's code."""
  config.rollout.group_size = 1  # a critic needs no group
  config.advantage.update(kind="gae", gamma=1.0, lam=1.0, whiten=True)
  config.loss.update(aggregation="token_mean", clip_low=0.2, clip_high=0.2, entropy_coef=0.001)
  config.loss.update(kl="k1", kl_in="reward", kl_coef=0.001, minibatches=2)  # of 256 of the 512 prompts
  config.critic.update(kind="own", learning_rate=1e-5, clip=0.5, warmup_steps=30)  # 1.5 % of the updates
  config.optimizer.update(learning_rate=1e-6, weight_decay=0.01, clip_norm=1.0)
  config.optimizer.update(warmup_steps=572, schedule="constant")  # 28.5 % of the updates, then constant


def distil(config):
  """Paper: 24,000 pairs, LoRA; rank, rate and epochs are not given."""
  config.model.lora.update(rank=16, alpha=32.0)
  config.steps = 780  # about three epochs: a block holds some 90 pairs
  config.optimizer.update(learning_rate=1e-4, warmup_steps=30, schedule="cosine", final_share=0.1)
  config.learner.update(micro_rows=16, row_lengths=(4096,))
  config.sft.environment_weight = 0.0  # only the digit
