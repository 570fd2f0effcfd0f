"""Quickstart: a model of 0.9M parameters learns to search in a made-up world, on a laptop's CPU.

Run:    make quickstart
Expect: exact match on held-out questions from about 0.4 after the warm start to 0.9 and more after RL
        (benchmarks/quickstart_seeds.py --machines prints the table: five seeds on three kinds of machine).

The demonstrations of the warm start are faulty on purpose: two thirds of those that need two searches stop after the
first. RL with exact match as its only reward discovers that a second search earns more.

Both stages end when they reach their goal (ragrl quickstart); `steps` is only the upper limit. No learning rate
schedule depends on the end.
"""

from ragrl_jax import config as config_lib, recipes


def get_config(variant: str = ""):
  """Variant "sft" holds the warm start's settings."""
  if variant not in ("", "sft"):
    raise ValueError(f"configs/quickstart.py:{variant}: use sft, or no variant.")
  config = config_lib.default_config()
  config.recipe, config.preset = "search_r1", "grpo"
  config.switches = recipes.switches("search_r1")
  config.switches.update(instructions="none", max_searches=2)
  config.prompting.chat = False
  config.model.shape = dict(family="qwen3", d_model=128, num_layers=4, num_heads=4, num_kv_heads=4, head_dim=32)
  config.model.shape.update(d_ff=344, rope_theta=1000.0, tied=True)
  config.retrieval.top_k = 1
  config.rollout.update(prompts_per_step=32, group_size=8, max_new_tokens=24)
  config.rollout.update(lanes=64, rows=256, context=144, chunk=24, prefill=32, page=48)
  # Rows hold three to five episodes of some 70 tokens: longer rows pack better.
  config.learner.update(micro_rows=16, row_lengths=(256,), share_prompts=True, logprob_chunk=2048)
  config.evaluate.update(every=4, examples=300)
  config.checkpoint.every = 8
  config.steps = 60
  config.optimizer.update(learning_rate=5e-4, warmup_steps=5, weight_decay=0.01, b2=0.98)
  if variant == "sft":
    config.steps, config.checkpoint.every, config.evaluate.every = 900, 100, 25
    config.learner.micro_rows = 10
    config.optimizer.update(kind="muon", learning_rate=6e-3, muon_scale=5.0, warmup_steps=50, schedule="inverse_sqrt")
  return config
