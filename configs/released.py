r"""Released search agents in their own protocols: Search-R1, DeSA, AutoRefine, ReSearch, R1-Searcher, Search-o1 and
SimpleDeepSearcher. For evaluation.

Run:    ragrl evaluate --config released:research --config.retrieval.index=INDEX_OR_ADDRESS \
          --checkpoint agentrl/ReSearch-Qwen-7B-Instruct --config.switches.instructions=file:prompt.txt \
          --data hotpotqa.jsonl.gz --out OUT
Variants, joined by commas: smoke (tiny sizes, same rules); search_r1, desa, autorefine, research, r1_searcher,
search_o1 or simpledeepsearcher; given (searches bring the question's own passages).
Expect: not run yet at these sizes. The checkpoints were trained on their authors' prompts: give these in a file.
"""

from ragrl_jax import config as config_lib, recipes

TOP_K = {"research": 5, "r1_searcher": 5, "search_o1": 10, "simpledeepsearcher": 10}  # others: 3

AGENTS = tuple(preset for preset in recipes.presets("released") if preset != "given")


def get_config(variant: str = ""):
  config, chosen = recipes.configure("released", variant, one_of=(AGENTS,))
  config.model.update(dtype="bfloat16")
  config.retrieval.top_k = next((TOP_K[name] for name in chosen if name in TOP_K), 3)
  # Room for turns with long reasoning before a search, and for results.
  config.rollout.update(lanes=128, rows=256, context=16384, prefill=512, page=128, max_new_tokens=4096)
  config.rollout.reserve = 512
  config.learner.row_lengths = (config.rollout.context,)
  return config_lib.shrink(config) if "smoke" in chosen else config
