r"""Trains an external agent: a program that talks to an OpenAI-compatible endpoint.

Run:    ragrl train --config agent --workdir OUT --config.switches.program=my_agent.py:run \
          --config.model.path=Qwen/Qwen3-4B --config.data.train=QUESTIONS [--config.switches.search=True \
          --config.retrieval.index=INDEX]
Variants: smoke (tiny sizes, same rules).
Expect: not run yet at this size. On the made-up world, benchmarks/foreign_agents.py prints the table.

docs/howto/agents.md describes the program's arguments and its result.
"""

from ragrl_jax import config as config_lib, recipes


def get_config(variant: str = "", recipe: str = "agent"):
  """recipe: tool_agent.py has the same sizes."""
  config, chosen = recipes.configure(recipe, variant)
  config.model.update(dtype="bfloat16", remat=True)
  # Room for the turns of a tool loop: reasoning, calls and results.
  config.rollout.update(prompts_per_step=64, group_size=8, max_new_tokens=1024)
  config.rollout.update(lanes=128, rows=256, context=8192, prefill=256, page=128)
  config.advantage.update(kind="group_relative", std="none")
  config.loss.update(aggregation="token_mean", clip_low=0.2, clip_high=0.28)
  config.optimizer.update(learning_rate=1e-6, warmup_steps=10, schedule="constant")
  config.learner.update(micro_rows=4, row_lengths=(4096, 8192), logprob_chunk=1024)
  config.checkpoint.every = 20
  config.evaluate.every = 20
  return config_lib.shrink(config) if "smoke" in chosen else config
