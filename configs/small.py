r"""A recipe's rules for a small model (0.1 to 0.6B) and short passages, on two CPU cores or on one GPU.

Run:    ragrl train --config small:arena --workdir OUT --config.model.path=WARM/model \
          --config.data.train=TRAIN --config.data.evaluate=DEVELOPMENT
        First the warm start: ragrl demonstrate, then ragrl sft --config small:arena,sft
Variants, joined by commas: first the recipe (arena if none; care, lear, search_r1, veritas, when_to_search), then sft,
gpu (larger steps and paragraphs, bfloat16), smoke (tiny sizes) and the recipe's own variants.
Expect: docs/real_model.md, from benchmarks/real_model/run.py.
"""

import pathlib
import runpy

from ragrl_jax import config as config_lib, recipes

RECIPES = ("arena", "care", "lear", "search_r1", "veritas", "when_to_search")
SEARCHERS = ("search_r1", "veritas", "when_to_search")


def get_config(variant: str = ""):
  words = [word for word in variant.split(",") if word]
  name = words.pop(0) if words and words[0] in RECIPES else "arena"
  gpu, sft, smoke = "gpu" in words, "sft" in words, "smoke" in words
  own = [word for word in words if word not in ("gpu", "sft", "smoke")]
  if others := [word for word in own if word.startswith("without_") or word == "longbench"]:
    raise ValueError(f"small:{name},{others[0]}: small's questions are your own, and short. Use {name}:{others[0]}.")
  made = runpy.run_path(str(pathlib.Path(__file__).with_name(f"{name}.py")))["get_config"]
  try:
    config, plain = made(",".join(own + ["smoke"] * smoke)), made("")  # a smoke test's judge is no model
  except ValueError as error:
    raise ValueError(
      f"small:{variant}: first the recipe ({', '.join(RECIPES)}), then sft, gpu, smoke or its own variants. {error}"
    ) from None
  switches, defaults = recipes.get(name, config.preset).switches, recipes.get(name).switches
  free = lambda switch: switch in switches and switches[switch] == defaults[switch]  # the variant does not set it
  config.data.update(train="", evaluate="")
  search = name in SEARCHERS and switches["max_searches"] > 0  # r1 answers without, and its prompt says so
  if free("instructions"):
    config.switches.instructions = "short"
  config.model.update(dtype="bfloat16" if gpu else "float32", remat=False)
  grouped = config.advantage.kind == "group_relative"  # a critic needs no groups
  config.rollout.update(
    prompts_per_step=(16 if not gpu else 32 if search else 64) * (1 if grouped else 8),
    group_size=8 if grouped else 1,
    # Turns end at different times: on two cores half of 64 lanes were idle, and a rollout took 1.3 times as long.
    lanes=(256 if search else 512) if gpu else 32 if search else 64,
    rows=512 if gpu else 128,
    context=(1536 if search else 1024) if gpu else 768 if search else 448,
    prefill=512 if gpu else 256,
    page=128 if gpu else 64,
    pages=(3072 if search else 2560) if gpu else 0,
    max_new_tokens=128 if gpu else 96,
    chunk=32 if gpu else 16,
  )
  config.rollout.update(temperature=1.0, top_p=1.0)
  if search:
    config.retrieval.top_k = 2 if gpu else 3  # whole paragraphs, or sentences
    if free("max_searches") and not switches.get("browse"):
      config.switches.max_searches = 2  # one step waits for its longest episode: with four, lanes were 15 % full
    if gpu and name != "when_to_search" and free("max_passage_tokens"):
      config.switches.max_passage_tokens = 400  # a whole paragraph of SQuAD
  # A small model moves far from its warm start before it answers well, so no KL pulls it back but a variant's own.
  if (config.loss.kl, config.loss.kl_coef) == (plain.loss.kl, plain.loss.kl_coef):
    config.loss.update(kl="none", kl_coef=0.0)
  config.loss.update(entropy_coef=0.0, minibatches=1)
  config.optimizer.update(learning_rate=2e-5, schedule="constant", warmup_steps=2, weight_decay=0.0, clip_norm=1.0)
  if not grouped:
    config.critic.warmup_steps = 2
  config.learner.update(micro_rows=4 if gpu else 1, row_lengths=(), share_prompts=True, logprob_chunk=1024)
  config.evaluate.update(every=10 if gpu else 20, examples=400 if gpu else 100)
  config.checkpoint.update(every=50 if gpu else 2, keep=2)  # on two cores a step takes minutes
  config.steps = 80
  if name == "when_to_search" and free("stage_two_from"):
    config.switches.stage_two_from = round(0.6 * config.steps) + 1  # the paper's share; set it with config.steps
  if sft:
    # Forty updates, of 320 demonstrations on two cores and of 1,280 on a GPU: ten left a quarter of the replies broken.
    config.sft.update(batch=32 if gpu else 8, epochs=1, warmup_share=0.1, environment_weight=0.0)
    config.optimizer.update(learning_rate=5e-5, schedule="cosine", final_share=0.1, warmup_steps=0)
    config.evaluate.every = 0
    if "dgpo" in own:
      config.loss.teacher.update(recipes.WARM)
  return config_lib.shrink(config) if smoke else config
