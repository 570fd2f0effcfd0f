r"""ARENA (arXiv 2505.13258): name the useful references, analyse, answer. 7B or 8B, 10 to 20 given passages, no search.

The settings that differ from the defaults in ragrl_jax/settings/. Next: ragrl_jax/recipes/arena/prompt.py.

Run:    ragrl train --config arena --workdir OUT --config.model.path=Qwen/Qwen2.5-7B-Instruct
        SFT baselines: ragrl make-arena-sft, then ragrl sft --config arena:sft,direct or :sft
Variants, joined by commas: smoke (tiny sizes, same rules); repo (as in the authors' code; with sft also their SFT); the
accuracies f1 and judge; no_bonus; the baselines naive (GRPO, think and answer) and direct (only answers, with sft); k3
instead of k2; without_hotpotqa, without_2wiki, without_musique (trained on the other two sets, tested on this one).
Expect: not run yet at this size. The paper has EM .628 / .660 / .400 on HotpotQA / 2WikiMultihopQA / MuSiQue; trained
        without the tested set .568 (HotpotQA) and .578 (2WikiMultihopQA). It has no run without MuSiQue.
"""

from ragrl_jax import config as config_lib, recipes

TWO_WIKI = "hf:RUC-NLPIR/FlashRAG_datasets/2wikimultihopqa"
# (training, testing): the paper's numbers of questions, drawn at random, because MuSiQue's files are sorted by hops.
SETS = dict(
  hotpotqa=("hf:hotpotqa/hotpot_qa/distractor/train~10000", "hf:hotpotqa/hotpot_qa/distractor/validation~500"),
  two_wiki=(f"{TWO_WIKI}/train~10000", f"{TWO_WIKI}/dev~500"),
  musique=("hf:dgslibisey/MuSiQue//train~5000", "hf:dgslibisey/MuSiQue//validation~500"),
)
WITHOUT = dict(without_hotpotqa="hotpotqa", without_2wiki="two_wiki", without_musique="musique")


def get_config(variant: str = ""):
  apart = (("f1", "judge"), ("naive", "direct"), WITHOUT)
  config, chosen = recipes.configure("arena", variant, "sft", "k3", *WITHOUT, one_of=apart)
  held_out = next((WITHOUT[name] for name in chosen if name in WITHOUT), None)
  trained = [train for name, (train, _) in SETS.items() if name != held_out]
  asked = sum(int(train.rpartition("~")[2]) for train in trained)
  # One epoch. The code holds out 500 of the 25,000 questions of all three sets.
  config.steps = (asked if held_out else asked - 500) // 256
  tested = [test for name, (_, test) in SETS.items() if held_out in (None, name)]
  config_lib.own_sets(config, train=",".join(trained), evaluate=",".join(tested))
  if "judge" in chosen:  # a smoke test needs no server
    model = dict(kind="llm", model="gpt-4o-2024-11-20", cache="out/verdicts.sqlite")
    config.judge.update(prompt="answer", **(dict(kind="exact") if "smoke" in chosen else model))
  config.model.update(dtype="bfloat16", remat=True)
  # Paper and code: 7 samples at 0.9. Code: 256 tokens a reply in training, 1024 in its tests.
  config.rollout.update(prompts_per_step=256, group_size=7, max_new_tokens=256, temperature=0.9, top_p=1.0)
  # Prompts are not cut: 20 paragraphs of MuSiQue take 3 to 4 thousand tokens.
  config.rollout.update(lanes=128, rows=128, context=5120, prefill=512, page=128)
  config.advantage.update(kind="group_relative", std="sample", eps=1e-4)  # code
  # Code: TRL's clip, which has no effect with one update per batch, and a mean over the tokens of a micro-batch. The
  # paper prints a mean over sequences. Paper and code: k2, which they compare with k3; code: 0.04.
  config.loss.update(aggregation="token_mean", clip_low=0.2, clip_high=0.2, minibatches=1, kl="k2", kl_coef=0.04)
  if {"k3", "naive"} & set(chosen):  # as published: a gap of ten nats costs 22,015
    config.loss.update(kl="k3", kl_tangent=None)
  config.optimizer.update(learning_rate=3e-6, weight_decay=0.0, clip_norm=1.0)
  config.optimizer.update(schedule="cosine", warmup_steps=-(-config.steps // 10), final_share=0.0)  # a tenth of steps
  config.learner.update(micro_rows=4, row_lengths=(2560, 5120), share_prompts=True, logprob_chunk=1024)
  config.checkpoint.every = 25  # code
  config.evaluate.update(every=25, examples=1500)
  if "sft" in chosen:  # code: one epoch, 32 questions on each of 8 devices; trains prompts, cuts at 1,024 tokens
    config.sft.update(batch=256, epochs=1, warmup_share=0.1, environment_weight=1.0 if "repo" in chosen else 0.0)
    config.sft.max_tokens = 1024 if "repo" in chosen else 0
    config.optimizer.update(learning_rate=1e-5, schedule="linear", clip_norm=0.3)
  return config_lib.shrink(config) if "smoke" in chosen else config
