r"""Untrained baselines: closed book, chain of thought, RAG, IRCoT, Iter-RetGen, self-ask, SKR, SuRe, FLARE,
Adaptive-RAG, prompted RECOMP and FilCo. For evaluation.

Run:    ragrl evaluate --config untrained --checkpoint Qwen/Qwen2.5-7B-Instruct \
          --config.retrieval.index=INDEX_OR_ADDRESS --data hotpotqa.jsonl.gz --out OUT
Variants, joined by commas: smoke (tiny sizes, same rules); in place of RAG closed_book, cot, ircot, iter_retgen,
self_ask, skr, sure, flare, adaptive, recomp or filco; given (the question's own passages, no search); thinking or
no_thinking for a reasoning model, Qwen3 for example (When to Search, Table 1).
Expect: not run yet at this size. By ARENA's paper Qwen2.5-7B-Instruct has EM .484 / .334 / .252 on HotpotQA /
        2WikiMultihopQA / MuSiQue from the passages they bring.
"""

from ragrl_jax import config as config_lib, recipes

THINKING = ("thinking", "no_thinking")
METHODS = tuple(preset for preset in recipes.presets("untrained") if preset != "given")


def get_config(variant: str = ""):
  config, chosen = recipes.configure("untrained", variant, "thinking", "no_thinking", one_of=(METHODS, THINKING))
  config.model.update(dtype="bfloat16")
  config.retrieval.top_k = 5
  config.rollout.update(lanes=128, rows=256, context=8192, prefill=512, page=128, max_new_tokens=512)
  if set(THINKING) & set(chosen):
    config.prompting.update(markers="own", thinking="on" if "thinking" in chosen else "off")  # see When to Search
  if "thinking" in chosen:  # a turn has room for its thoughts
    config.rollout.update(context=18432, max_new_tokens=8192, reserve=512)
  config.learner.row_lengths = (config.rollout.context,)
  return config_lib.shrink(config) if "smoke" in chosen else config
