r"""ARENA (arXiv 2505.13258): name the useful references, analyse, answer. 7B or 8B, 10 to 20 given passages, no search.

The settings of a run: what differs from ragrl_jax/config.py. Next: ragrl_jax/recipes/arena/prompt.py.

Run:    python launchers/train.py --config configs/arena.py --workdir OUT --config.model.path=QWEN_FOLDER
        SFT baselines: launchers/make_arena_sft.py, then launchers/sft.py --config configs/arena.py:sft,direct or :sft
Variants, joined by commas: smoke (tiny sizes, same rules); repo (the authors' code's reading); the accuracies f1 and
judge; no_bonus; the baselines naive (GRPO, think and answer) and direct (answer alone, with sft); k3 in place of k2;
without_hotpotqa, without_2wiki, without_musique (trained on the other two sets, tested on this one).
Expect: not run yet at this size. The paper has EM .628 / .660 / .400 on HotpotQA / 2WikiMultihopQA / MuSiQue; trained
        without the tested set .578 (2WikiMultihopQA) and .394 to .404 (MuSiQue).
"""

from ragrl_jax import config as config_lib
from ragrl_jax import recipes

PRESETS = ("repo", "f1", "judge", "no_bonus", "naive", "direct")
# (training, testing), as many as the paper takes, drawn at random: MuSiQue's files go by the number of hops.
SETS = dict(
  hotpotqa=("hf:hotpotqa/hotpot_qa/distractor/train~10000", "hf:hotpotqa/hotpot_qa/distractor/validation~500"),
  two_wiki=(
    "hf:RUC-NLPIR/FlashRAG_datasets/2wikimultihopqa/train~10000",
    "hf:RUC-NLPIR/FlashRAG_datasets/2wikimultihopqa/dev~500",
  ),
  musique=("hf:dgslibisey/MuSiQue//train~5000", "hf:dgslibisey/MuSiQue//validation~500"),
)
WITHOUT = dict(without_hotpotqa="hotpotqa", without_2wiki="two_wiki", without_musique="musique")
VARIANTS = ("", "smoke", "sft", "k3", *WITHOUT, *PRESETS)


def get_config(variant: str = ""):
  chosen = variant.split(",")
  presets, without = ([name for name in chosen if name in names] for names in (PRESETS, WITHOUT))
  if not set(chosen) <= set(VARIANTS) or len(presets) > 1 or len(without) > 1:
    raise ValueError(
      f"configs/arena.py:{variant}: use {', '.join(VARIANTS[1:])}, joined by commas; one of "
      f"{', '.join(PRESETS)} at most, and one of {', '.join(WITHOUT)}."
    )
  config = config_lib.default_config()
  config.recipe = "arena"
  config.switches = recipes.switches("arena")
  config.preset = presets[0] if presets else "paper"
  held_out = WITHOUT[without[0]] if without else None
  asked = sum(int(train.rpartition("~")[2]) for name, (train, _) in SETS.items() if name != held_out)
  # One epoch; of the 25,000 questions of all three sets the code keeps 500 back.
  config.steps = (asked if held_out else asked - 500) // 256
  config.data.train = ",".join(train for name, (train, _) in SETS.items() if name != held_out)
  config.data.evaluate = ",".join(test for name, (_, test) in SETS.items() if held_out in (None, name))
  if config.preset == "judge" and "smoke" not in chosen:
    config.judge.update(dict(kind="llm", prompt="answer", model="gpt-4o-2024-11-20", cache="out/verdicts.sqlite"))
  elif config.preset == "judge":
    config.judge.update(dict(kind="exact", prompt="answer"))
  config.model.update(dict(dtype="bfloat16", remat=True))
  config.rollout.update(
    dict(
      prompts_per_step=256,
      group_size=7,  # paper and code
      lanes=128,
      rows=128,
      context=5120,  # prompts are not cut; 20 paragraphs of MuSiQue take 3 to 4 thousand tokens
      prefill=512,
      block=256,
      max_new_tokens=256,  # code; its tests allow 1024
      temperature=0.9,
      top_p=1.0,
    )
  )  # paper and code
  config.advantage.update(dict(kind="group_relative", std="sample", eps=1e-4))  # code
  config.loss.update(
    dict(
      aggregation="token_mean",  # code, but over the whole step; the paper prints a mean over sequences
      clip_low=0.2,
      clip_high=0.2,  # the code's (TRL's) default; with one update per batch it never acts
      kl="k3" if "k3" in chosen or config.preset == "naive" else "k2",  # paper and code; k3 is what it compares with
      kl_coef=0.04,  # code
      epochs=1,
      minibatches=1,
    )
  )
  config.optimizer.update(
    dict(
      learning_rate=3e-6,
      warmup_steps=-(-config.steps // 10),  # a tenth of the steps
      schedule="cosine",
      final_share=0.0,
      weight_decay=0.0,
      clip_norm=1.0,
    )
  )
  config.learner.update(dict(micro_rows=4, row_lengths=(2560, 5120), share_prompts=True, logprob_chunk=1024))
  config.checkpoint.every = 25  # code
  config.evaluate.update(dict(every=25, examples=1500))
  if "sft" in chosen:  # code: one epoch, a tenth of it warm-up, 32 questions a device and step
    config.steps, config.sft.environment_weight = asked // 50, 0.0  # a block holds some 50 questions
    config.learner.micro_rows = 16
    config.optimizer.update(dict(learning_rate=1e-5, warmup_steps=config.steps // 10, clip_norm=0.3))
  return config_lib.shrink(config) if "smoke" in chosen else config
