r"""CARE (EMNLP 2025): quote the context while reasoning, then answer. 7B to 14B, long contexts, no search.

Run:    ragrl train --config care --workdir OUT --config.model.path=MERGED
        Before it: ragrl make-care-sft, ragrl sft --config care:sft, ragrl export
Variants, joined by commas: smoke (tiny sizes, same rules), sft (the warm start), repo (as in the authors' code), mean
(rewards the share of real quotes), the ablations no_retrieval and easy_only, longbench (the sizes of the authors'
tests, for ragrl evaluate), original (an evaluation without instructions on the format).
Expect: not run yet at this size. The paper's Qwen2.5-7B goes from F1 45.79 to 56.81 on four LongBench sets, and from
        58.38 to 64.56 on CofCA.
"""

from ragrl_jax import config as config_lib, recipes


def get_config(variant: str = ""):
  apart = (("repo", "mean", "easy_only"), ("repo", "no_retrieval"), ("sft", "longbench"))
  config, chosen = recipes.configure("care", variant, "sft", "longbench", one_of=apart)
  config.steps = 350  # paper
  easy, hard = "hf:ucinlp/drop//train", "hf:microsoft/ms_marco/v2.1/train~100000"  # paper
  if "repo" in chosen:
    easy, hard = "hf:sheryc/DROP_processed//train", "hf:sheryc/MuSiQue_processed//train"
  if {"easy_only", "no_retrieval"} & set(chosen):
    hard = ""
  config_lib.own_sets(config, train=easy, hard=hard, evaluate="hf:hotpotqa/hotpot_qa/distractor/validation")
  config.data.drop_unanswerable = True  # a third of MS MARCO
  config.data.drop_long = True  # a question whose context is cut on the right may be unanswerable
  config.model.update(dtype="bfloat16", remat=True)
  # Paper: 1024 prompts, 5 samples; code: 512 prompts of 2048 tokens, cut at the right, replies of 2048, temperature 1.
  config.rollout.update(prompts_per_step=1024, group_size=5, max_new_tokens=2048, temperature=1.0, top_p=1.0)
  config.rollout.update(lanes=128, rows=128, context=8192, prefill=512, page=128)
  config.advantage.update(kind="group_relative", std="sample", eps=1e-6)  # code (verl)
  # Paper: 1/G sum of 1/length; code: a mean over the micro-batch's tokens. Code: the clip.
  config.loss.update(aggregation="seq_mean_token_mean", clip_low=0.2, clip_high=0.2)
  # Paper: KL of 1e-3 (code's yaml: 1e-2), no entropy bonus (code: 0.001), 1024 prompts in 256s (code: 512 in 128s).
  config.loss.update(kl="k3", kl_coef=1e-3, entropy_coef=0.0, minibatches=4)
  config.optimizer.update(learning_rate=1e-6, schedule="constant", warmup_steps=0, weight_decay=0.01)
  config.learner.update(micro_rows=4, row_lengths=(4096, 8192), share_prompts=True, logprob_chunk=1024)
  config.checkpoint.every = 50
  config.evaluate.every = 50
  if "repo" in chosen:
    config.rollout.prompts_per_step = 512
    config.loss.update(aggregation="token_mean", kl_coef=1e-2, entropy_coef=1e-3)
  if "sft" in chosen:  # paper: LLaMA-Factory's defaults; with its 7,739 transcripts 363 steps
    config.model.lora.update(rank=8, alpha=16.0)
    config.sft.update(environment_weight=0.0, batch=64, epochs=3, warmup_share=0.1)
    config.checkpoint.every = 121
    config.optimizer.update(learning_rate=1e-4, schedule="cosine", final_share=0.0, weight_decay=0.0)
  if "longbench" in chosen:  # code: prompts of 32,768 tokens without their middle, 4,096 new ones
    config.data.cut_middle = True
    config.rollout.update(context=36_864, max_new_tokens=4_096, lanes=16, rows=16)
    config.learner.row_lengths = (36_864,)
  return config_lib.shrink(config) if "smoke" in chosen else config
