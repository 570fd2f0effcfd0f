r"""An agent that calls tools in its model's own format: the run's search, Python functions, MCP servers.

Run:    ragrl train --config tool_agent --workdir OUT --config.model.path=Qwen/Qwen3-4B \
          --config.data.train=QUESTIONS --config.retrieval.index=INDEX [--config.switches.tools=my_tools.py:add \
          --config.switches.mcp="python server.py|http://127.0.0.1:8000/mcp"]
Variants: smoke (tiny sizes, same rules).
Expect: not run yet at this size.

docs/howto/agents.md describes the tools.
"""

from ragrl_jax import config as config_lib
from ragrl_jax import recipes


def get_config(variant: str = ""):
  config, chosen = recipes.configure("tool_agent", variant)
  config.model.update(dict(dtype="bfloat16", remat=True))
  # Room for the turns of a tool loop: reasoning, calls and results.
  config.rollout.update(
    dict(
      prompts_per_step=64, group_size=8, lanes=128, rows=256, context=8192, prefill=256, page=128, max_new_tokens=1024
    )
  )
  config.advantage.update(dict(kind="group_relative", std="none"))
  config.loss.update(dict(aggregation="token_mean", clip_low=0.2, clip_high=0.28))
  config.optimizer.update(dict(learning_rate=1e-6, warmup_steps=10, schedule="constant"))
  config.learner.update(dict(micro_rows=4, row_lengths=(4096, 8192), logprob_chunk=1024))
  config.checkpoint.every = 20
  config.evaluate.every = 20
  return config_lib.shrink(config) if "smoke" in chosen else config
