"""Every setting of a run, once, with its unit. A file under configs/ holds only what differs from here."""

import importlib.util
import pathlib

import ml_collections


def default_config() -> ml_collections.ConfigDict:
  """The full list of settings. It is locked: a misspelt name raises and says which one was meant."""
  config = ml_collections.ConfigDict(dict(
    recipe="search_r1",        # a name of ragrl_jax.recipes
    preset="paper",            # one of the recipe's PRESETS, or several joined by commas
    switches={},               # of the recipe (recipes.switches(name)): one that is set overrides the preset's
    seed=0,
    steps=100,                 # optimiser steps
    model=dict(
      path="",                 # Hugging Face folder to start from; empty: made new from `shape`
      shape=dict(
        family="qwen3", d_model=128, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=32, d_ff=344,
        rope_theta=10_000.0, tied=True),
      param_dtype="float32",   # the masters'
      dtype="float32",         # the matmuls'; bfloat16 on accelerators
      remat=False,             # recompute a layer's activations in the backward pass
      lora=dict(
        rank=0,                # 0: every parameter is trained; else only adapters are, of float32
        alpha=16.0,            # over rank: what an adapter's output is multiplied by
        layers="q k v o gate up down",  # which matrices: words, each a regular expression (models/lora.py)
        path="",               # PEFT folder to start from, which then says rank, alpha and layers
      ),
    ),
    prompting=dict(
      tokenizer="",            # folder or sentencepiece file; empty: the model's folder
      chat=True,               # render messages through the tokenizer's chat template; False: bare text
      markers="template",      # "own": role markers of ours, for templates that rewrite earlier turns
    ),
    data=dict(
      train="",                # FILE.jsonl[.gz], a folder's glob, or "hf:name/subset/split"
      hard="",                 # with a recipe that has a curriculum: the hard questions, `train` being the easy ones
      evaluate="",
      max_examples=0,          # 0: all
      drop_long=False,         # leave out training questions whose prompt leaves no room for max_new_tokens
      cut_middle=False,        # take out the middle of what is read in evaluation, where the prompt leaves no such room
      evidence="",             # for evaluation: questions that mark gold sentences, where those asked mark none
      noise=0,                 # random passages of other questions mixed into each one that is evaluated
    ),
    retrieval=dict(
      index="",                # folder of build_index, or the http://… address of a retriever
      top_k=3,
      timeout_s=30.0,          # of one call
      retries=3,
      wait_s=300.0,            # for a retriever at an address that stopped answering, until its searches fail
      query_encoder="",        # folder of an encoder, for recipes that compare queries with each other
      max_failed_share=0.1,    # of a step's episodes; more, and the run stops with the reason
    ),
    judge=dict(
      kind="none",             # "exact", "lexical", "nli", "llm" or "reward_model"
      prompt="information_think",  # what is asked: a name of judging/prompts.py
      path="",                 # nli: folder of a T5; reward_model: of a decoder, or of its adapters
      endpoint="",             # llm: "http(s)://host/v1" of any server of OpenAI's chat protocol; empty: OpenAI's own
      model="",                # llm: its name there
      key_variable="OPENAI_API_KEY",  # llm: the environment variable with the key, which is stored nowhere
      threshold=0.5,           # lexical, nli, reward_model: scores from here on are 1, others 0; 0: the score itself
      cache="",                # file in which verdicts are kept from run to run; empty: none
      timeout_s=30.0,          # llm: of one call
      retries=3,
      concurrency=16,          # llm: calls at a time
      batch=8,                 # nli, reward_model: pairs computed together
      max_tokens=1024,         # nli, reward_model: of a pair
      max_failed_share=0.5,    # of a step's episodes, failed by judges or without a verdict; more, and the run stops
    ),
    judges={},                 # term → its own judge (judging.of_terms): a field that is set overrides `judge`'s there
    rollout=dict(
      prompts_per_step=32,     # P
      group_size=8,            # G; B = P * G episodes a step
      lanes=32,                # W rows decoded together
      rows=64,                 # C cache rows, >= lanes
      context=512,             # tokens a row can hold
      chunk=16,                # tokens decoded between two looks at the host
      prefill=64,              # tokens a row takes in by one extension
      block=64,                # cache tokens attended to at a time
      temperature=1.0,
      top_k=0,
      top_p=1.0,
      max_new_tokens=64,       # a turn
      reserve=0,               # tokens that results must leave for the next turn, or the episode ends without them; 0:
                               # max_new_tokens
      ahead=0,                 # 1: a step is sampled beside the learning of the one before, so one step stale (the
                               # engine keeps its own copy of the weights; loss.importance_cap corrects for the lag)
      filter=dict(             # dynamic sampling: a step trains on groups whose samples differ
        metric="none",         # in "outcome", or in "total", the whole reward; "none" trains on every group
        tolerance=1e-6,        # largest less smallest: up to this they are equal
        max_draws=4,           # batches of prompts_per_step prompts a step may draw until it has enough
        surplus="discard",     # of groups found too many; "keep": the next step's, one step stale
      ),
    ),
    advantage=dict(
      kind="group_relative",   # leave_one_out, reinforce_plus_plus, reinforce_plus_plus_baseline; gae with a critic
      credit="episode",        # "turn": a turn answers for its own and later rewards
      std="sample", std_floor=0.0, eps=1e-6,           # of group_relative
      gamma=1.0, lam=1.0,      # of gae and reinforce_plus_plus, a trained token
      whiten=True,             # gae's advantages, over the batch
    ),
    loss=dict(
      aggregation="token_mean",
      clip_low=0.2, clip_high=0.2, dual_clip=None,
      ratio="token",
      kl="none",               # an estimator's name puts the penalty into the loss or the reward
      kl_in="loss",
      kl_coef=0.0,
      kl_target=0.0,           # nats a token that kl_coef is steered to; 0: it is fixed
      kl_horizon=10_000,       # sequences it takes
      entropy_coef=0.0,
      importance_cap=None,     # largest weight that corrects for the sampler's mismatch; None: no weights
      epochs=1,                # passes over one batch of episodes
      minibatches=1,           # optimiser steps a pass
    ),
    critic=dict(
      kind="none",             # "own" decoder, or a value head on the policy's ("shared")
      learning_rate=1e-5, warmup_steps=0,              # the rest as config.optimizer has it
      clip=0.5,                # of a value's move, reward units; None: no clip
      coef=0.5,                # of the value loss, where the trunk is shared
      alone_steps=0,           # optimiser steps at the start in which only the critic learns
    ),
    reward=dict(overlong_limit=0, overlong_buffer=0, overlong_factor=1.0),  # DAPO's, in model tokens; limit 0: none
    optimizer=dict(
      kind="adamw",            # or "muon" for hidden matrices, AdamW for the rest
      learning_rate=1e-6, warmup_steps=0,
      schedule="constant", final_share=0.1,  # "cosine"; "inverse_sqrt" for a run whose end is not known
      b1=0.9, b2=0.999, weight_decay=0.01, clip_norm=1.0,
      muon_scale=5.0,          # Muon's learning rate over AdamW's
    ),
    learner=dict(
      micro_rows=8,            # rows of one accumulation block
      row_lengths=(512,),      # T: at most three
      share_prompts=False,     # compute the prompt of a group's samples once a row: for long prompts
      logprob_chunk=512,       # tokens whose logits a device holds at once
      max_nonfinite=3,         # skipped steps in a row before the run stops
    ),
    mesh=dict(data=-1, fsdp=1, tensor=1, sequence=1),  # -1: what is left of the devices
    checkpoint=dict(every=50, keep=2),
    evaluate=dict(every=0, examples=200, batch=0),     # every 0: only at the end; batch 1: latency is measured
    log=dict(episodes_every=1, tensorboard=True),
    sft=dict(environment_weight=0.3),                  # of prompt and results, where the model's own tokens weigh 1
  ), convert_dict=True)
  return config.lock()


def load(path: str | pathlib.Path, variant: str = "") -> ml_collections.ConfigDict:
  """The settings of a file under configs/, as the launchers' `--config=PATH:VARIANT` gives them."""
  spec = importlib.util.spec_from_file_location(f"config_{pathlib.Path(path).stem}", path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.get_config(variant)


SIZES = (
  "prompts_per_step", "group_size", "lanes", "rows", "context", "chunk", "prefill", "block", "max_new_tokens")
SMOKE = dict(
  steps=2,
  model=dict(path="", dtype="float32", remat=False),
  rollout=dict(
    prompts_per_step=2, group_size=2, lanes=4, rows=8, context=2048, prefill=256, block=128, max_new_tokens=16),
  learner=dict(micro_rows=2, row_lengths=(2048,)),
  checkpoint=dict(every=1),
  evaluate=dict(examples=4),
)


def shrink(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """The same run in miniature: sizes shrink, rules (rewards, loss, recipe switches) stay. For ":smoke" variants."""
  def set_all(into, sizes):
    for name, value in sizes.items():
      if isinstance(value, dict):
        set_all(into[name], value)
      else:
        into[name] = value

  set_all(config, SMOKE)
  config.optimizer.warmup_steps = min(config.optimizer.warmup_steps, config.steps)
  config.critic.warmup_steps = min(config.critic.warmup_steps, config.steps)
  config.loss.minibatches = min(config.loss.minibatches, config.rollout.prompts_per_step)
  config.rollout.reserve = min(config.rollout.reserve, config.rollout.max_new_tokens)
  return config


def validate(config: ml_collections.ConfigDict, *, training: bool = True) -> None:
  """Checks what the fields say of each other.

  Args:
    config: all settings.
    training: whether episodes are packed into rows; evaluation may play longer ones than a row holds.

  Raises:
    ValueError: with the field's path, what it is and what it must be.
  """
  _check_types(config, default_config(), "config")
  rollout, learner = config.rollout, config.learner

  small = [name for name in SIZES if rollout[name] < 1]
  rules = [
    (not small, f"config.rollout.{small}: each must be at least 1."),
    (rollout.rows >= rollout.lanes,
     f"config.rollout.rows={rollout.rows} is less than lanes={rollout.lanes}: every lane decodes a cache row. Raise "
     "rows (twice the lanes hides searches) or lower lanes."),
    (rollout.max_new_tokens < rollout.context,
     f"config.rollout.max_new_tokens={rollout.max_new_tokens} leaves no room for a prompt in "
     f"context={rollout.context}: raise context or lower max_new_tokens."),
    (config.model.lora.rank >= 0 and config.model.lora.alpha > 0,
     f"config.model.lora.rank={config.model.lora.rank}, alpha={config.model.lora.alpha}: rank must be at least 0 (no "
     "adapters), alpha above 0."),
    (not (config.model.lora.rank and config.model.lora.path),
     f"config.model.lora.rank={config.model.lora.rank} with path={config.model.lora.path!r}: the folder says the rank. "
     "Set rank to 0, or leave path empty for fresh adapters."),
    (0 <= rollout.reserve < rollout.context,
     f"config.rollout.reserve={rollout.reserve}: it must be 0 (a whole turn of max_new_tokens), or at least 1 and less "
     f"than context={rollout.context}."),
    (rollout.temperature > 0,
     f"config.rollout.temperature={rollout.temperature}: training samples, so it must be above 0."),
    (rollout.filter.metric in ("none", "outcome", "total"),
     f"config.rollout.filter.metric={rollout.filter.metric!r}: it must be 'none', 'outcome' or 'total'."),
    (rollout.filter.metric == "none" or rollout.group_size > 1,
     f"config.rollout.filter.metric={rollout.filter.metric!r} with group_size=1: no group of one has a spread, so all "
     "would be discarded. Raise group_size, or set the metric to 'none'."),
    (rollout.filter.tolerance >= 0 and rollout.filter.max_draws >= 1,
     f"config.rollout.filter: tolerance={rollout.filter.tolerance} must be at least 0 and "
     f"max_draws={rollout.filter.max_draws} at least 1."),
    (rollout.filter.surplus in ("discard", "keep"),
     f"config.rollout.filter.surplus={rollout.filter.surplus!r}: it must be 'discard' or 'keep'."),
    (rollout.ahead in (0, 1),
     f"config.rollout.ahead={rollout.ahead}: it must be 0, or 1 for episodes that are at most one step stale."),
    (not rollout.ahead or rollout.filter.surplus == "discard",
     "config.rollout.filter.surplus='keep' with config.rollout.ahead=1: groups kept from a step that was sampled ahead "
     "would be two steps stale. Discard them, or set ahead to 0."),
    (config.advantage.kind in ("gae", "reinforce_plus_plus") or rollout.group_size > 1,
     f"config.rollout.group_size=1 with config.advantage.kind={config.advantage.kind!r}: a group of one has no spread "
     "and teaches nothing. Raise group_size."),
    (1 <= config.loss.minibatches <= rollout.prompts_per_step,
     f"config.loss.minibatches={config.loss.minibatches}: each needs a prompt of config.rollout.prompts_per_step="
     f"{rollout.prompts_per_step}."),
    (1 <= len(learner.row_lengths) <= 3,
     f"config.learner.row_lengths={learner.row_lengths}: one to three lengths; each is compiled once."),
    (not training or max(learner.row_lengths, default=0) >= rollout.context,
     f"config.learner.row_lengths={learner.row_lengths}: the longest must hold an episode of config.rollout.context="
     f"{rollout.context} tokens."),
    (config.loss.kl_coef == 0 or config.loss.kl != "none",
     f"config.loss.kl_coef={config.loss.kl_coef} with config.loss.kl='none': name an estimator ('k2', 'k3', …) or set "
     "the coefficient to 0."),
  ]
  for holds, message in rules:
    if not holds:
      raise ValueError(message)


def _check_types(config, default, path):
  """ml_collections lets None and bool into an int field; a run must not find out later."""
  for name, like in default.items():
    value, where = config[name], f"{path}.{name}"
    if isinstance(like, ml_collections.ConfigDict):
      if like:
        _check_types(value, like, where)
    elif like is not None and (value is None or isinstance(value, bool) != isinstance(like, bool)):
      raise ValueError(f"{where}={value!r}: it must be a {type(like).__name__}, such as {like!r}.")
