"""Every setting of a run, once, with its unit. A file under configs/ holds only what differs from here."""

import functools
import importlib.util
import json
import math
import pathlib

import ml_collections


def default_config() -> ml_collections.ConfigDict:
  """The full list of settings. It is locked: a misspelt name raises and says which one was meant."""
  config = ml_collections.ConfigDict(
    dict(
      recipe="search_r1",  # a name of ragrl_jax.recipes
      preset="paper",  # one of the recipe's PRESETS, or several joined by commas
      switches={},  # of the recipe (recipes.switches(name)): one that is set overrides the preset's
      seed=0,
      steps=100,  # optimiser steps
      model=dict(
        path="",  # Hugging Face folder to start from; empty: made new from `shape`
        shape=dict(
          family="qwen3",
          d_model=128,
          num_layers=4,
          num_heads=4,
          num_kv_heads=2,
          head_dim=32,
          d_ff=344,
          rope_theta=10_000.0,
          tied=True,
        ),
        param_dtype="float32",  # the masters'
        dtype="float32",  # the matmuls'; bfloat16 on accelerators
        remat=False,  # recompute a layer's activations in the backward pass
        lora=dict(
          rank=0,  # 0: every parameter is trained; else only adapters are, of float32
          alpha=16.0,  # over rank: what an adapter's output is multiplied by
          layers="q k v o gate up down",  # which matrices: words, each a regular expression (models/lora.py)
          path="",  # PEFT folder to start from, which then says rank, alpha and layers
        ),
      ),
      prompting=dict(
        tokenizer="",  # folder or sentencepiece file; empty: the model's folder
        chat=True,  # render messages through the tokenizer's chat template; False: bare text
        markers="template",  # "own": role markers of ours, for templates that rewrite earlier turns
      ),
      data=dict(
        train="",  # FILE.jsonl[.gz], a folder's glob, or "hf:name/subset/split"
        hard="",  # with a recipe that has a curriculum: the hard questions, `train` being the easy ones
        evaluate="",
        max_examples=0,  # 0: all
        drop_long=False,  # leave out training questions whose prompt leaves no room for max_new_tokens
        cut_middle=False,  # take out the middle of what is read in evaluation, where the prompt leaves no such room
        evidence="",  # for evaluation: questions that mark gold sentences, where those asked mark none
        noise=0,  # random passages of other questions mixed into each one that is evaluated
      ),
      retrieval=dict(
        index="",  # folder of build_index, or the http://… address of a retriever
        top_k=3,
        timeout_s=30.0,  # of one call
        retries=3,
        wait_s=300.0,  # for a retriever at an address that stopped answering, until its searches fail
        query_encoder="",  # folder of an encoder, for recipes that compare queries with each other
        max_failed_share=0.1,  # of a step's episodes; more, and the run stops with the reason
      ),
      judge=dict(
        kind="none",  # "exact", "lexical", "nli", "llm" or "reward_model"
        prompt="information_think",  # what is asked: a name of judging/prompts.py
        path="",  # nli: folder of a T5; reward_model: of a decoder, or of its adapters
        endpoint="",  # llm: "http(s)://host/v1" of any server of OpenAI's chat protocol; empty: OpenAI's own
        model="",  # llm: its name there
        key_variable="OPENAI_API_KEY",  # llm: the environment variable with the key, which is stored nowhere
        threshold=0.5,  # lexical, nli, reward_model: scores from here on are 1, others 0; 0: the score itself
        cache="",  # file in which verdicts are kept from run to run; empty: none
        timeout_s=30.0,  # llm: of one call
        retries=3,
        concurrency=16,  # llm: calls at a time
        batch=8,  # nli, reward_model: pairs computed together
        max_tokens=1024,  # nli, reward_model: of a pair
        max_failed_share=0.5,  # of a step's episodes, failed by judges or without a verdict; more, and the run stops
      ),
      judges={},  # term → its own judge (judging.of_terms): a field that is set overrides `judge`'s there
      rollout=dict(
        prompts_per_step=32,  # P
        group_size=8,  # G; B = P * G episodes a step
        lanes=32,  # W rows decoded together
        rows=64,  # C cache rows, >= lanes
        context=512,  # tokens a row can hold
        chunk=16,  # tokens decoded between two looks at the host
        prefill=64,  # tokens a row takes in by one extension
        block=64,  # cache tokens attended to at a time
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=64,  # a turn
        reserve=0,  # tokens that results must leave for the next turn, or the episode ends without them; 0:
        # max_new_tokens
        ahead=0,  # 1: a step is sampled beside the learning of the one before, so one step stale (the
        # engine keeps its own copy of the weights; loss.importance_cap corrects for the lag)
        filter=dict(  # dynamic sampling: a step trains on groups whose samples differ
          metric="none",  # in "outcome", or in "total", the whole reward; "none" trains on every group
          tolerance=1e-6,  # largest less smallest: up to this they are equal
          max_draws=4,  # batches of prompts_per_step prompts a step may draw until it has enough
          surplus="discard",  # of groups found too many; "keep": the next step's, one step stale
        ),
      ),
      advantage=dict(
        kind="group_relative",  # leave_one_out, reinforce_plus_plus, reinforce_plus_plus_baseline; gae with a critic
        credit="episode",  # "turn": a turn answers for its own and later rewards
        std="sample",
        std_floor=0.0,
        eps=1e-6,  # of group_relative
        gamma=1.0,
        lam=1.0,  # of gae and reinforce_plus_plus, a trained token
        whiten=True,  # gae's advantages, over the batch
      ),
      loss=dict(
        aggregation="token_mean",
        clip_low=0.2,
        clip_high=0.2,
        dual_clip=None,
        ratio="token",
        kl="none",  # an estimator's name puts the penalty into the loss or the reward
        kl_in="loss",
        kl_coef=0.0,
        kl_target=0.0,  # nats a token that kl_coef is steered to; 0: it is fixed
        kl_horizon=10_000,  # sequences it takes
        entropy_coef=0.0,
        importance_cap=None,  # largest weight that corrects for the sampler's mismatch; None: no weights
        epochs=1,  # passes over one batch of episodes
        minibatches=1,  # optimiser steps a pass
      ),
      critic=dict(
        kind="none",  # "own" decoder, or a value head on the policy's ("shared")
        learning_rate=1e-5,
        warmup_steps=0,  # the rest as config.optimizer has it
        clip=0.5,  # of a value's move, reward units; None: no clip
        coef=0.5,  # of the value loss, where the trunk is shared
        alone_steps=0,  # optimiser steps at the start in which only the critic learns
      ),
      reward=dict(overlong_limit=0, overlong_buffer=0, overlong_factor=1.0),  # DAPO's, in model tokens; limit 0: none
      optimizer=dict(
        kind="adamw",  # or "muon" for hidden matrices, AdamW for the rest
        learning_rate=1e-6,
        warmup_steps=0,
        schedule="constant",
        final_share=0.1,  # "cosine"; "inverse_sqrt" for a run whose end is not known
        b1=0.9,
        b2=0.999,
        weight_decay=0.01,
        clip_norm=1.0,
        muon_scale=5.0,  # Muon's learning rate over AdamW's
      ),
      learner=dict(
        micro_rows=8,  # rows of one accumulation block
        row_lengths=(512,),  # T: at most three
        share_prompts=False,  # compute the prompt of a group's samples once a row: for long prompts
        logprob_chunk=512,  # tokens whose logits a device holds at once
        max_nonfinite=3,  # skipped steps in a row before the run stops
      ),
      mesh=dict(data=-1, fsdp=1, tensor=1, sequence=1),  # -1: what is left of the devices
      checkpoint=dict(every=50, keep=2),
      evaluate=dict(every=0, examples=200, batch=0),  # every 0: only at the end; batch 1: latency is measured
      log=dict(episodes_every=1, tensorboard=True),
      sft=dict(environment_weight=0.3),  # of prompt and results, where the model's own tokens weigh 1
    ),
    convert_dict=True,
  )
  return config.lock()


@functools.cache
def _defaults() -> ml_collections.ConfigDict:
  return default_config()


def load(path: str | pathlib.Path, variant: str = "") -> ml_collections.ConfigDict:
  """The settings of a file under configs/, as the launchers' `--config=PATH:VARIANT` gives them."""
  spec = importlib.util.spec_from_file_location(f"config_{pathlib.Path(path).stem}", path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.get_config(variant)


def of_run(folder: str | pathlib.Path) -> ml_collections.ConfigDict:
  """The settings of a run, from its config.json. What is newer than the run has its default; unset switches are left
  out.

  Raises:
    ValueError: there is none, it is no run's, or it has a setting that there is no more.
  """
  path = pathlib.Path(folder) / "config.json"
  try:
    written = json.loads(path.read_text(encoding="utf-8"))
  except (OSError, ValueError, RecursionError) as error:
    raise ValueError(f"{path}: this is no run's config.json ({error}).") from error
  if not isinstance(written, dict) or not {"recipe", "rollout"} <= written.keys():
    raise ValueError(f"{path}: this is no run's config.json, which launchers/train.py and sft.py write.")
  config = default_config()
  with config.unlocked():
    _take(config, written, str(path))
  return config.lock()


def _take(config, written, where: str) -> None:
  """Sets what a JSON object says; empty sections of the default (switches, judges) take what there is."""
  for name, value in written.items():
    if name not in config:
      raise ValueError(f"{where}: there is no setting {name!r} in this version: remove it there.")
    like = config[name]
    if isinstance(like, ml_collections.ConfigDict) and isinstance(value, dict):
      if like and name != "shape":  # a shape may have more, see models/config.py
        _take(like, value, where)
      else:
        config[name] = _set_ones(value)
    else:
      config[name] = tuple(value) if isinstance(value, list) else value


def _set_ones(values: dict) -> ml_collections.ConfigDict:
  """Without those that are None: nobody set them."""
  return ml_collections.ConfigDict(
    {
      name: _set_ones(value) if isinstance(value, dict) else value
      for name, value in values.items()
      if value is not None
    }
  )


SMOKE = dict(
  steps=2,
  model=dict(path="", dtype="float32", remat=False),
  rollout=dict(
    prompts_per_step=2, group_size=2, lanes=4, rows=8, context=2048, prefill=256, block=128, max_new_tokens=16
  ),
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


DTYPES = ("float32", "bfloat16", "float16")
# Settings that hold one of a few names; the rooms that read them check the same ones (tests/test_config.py).
CHOICES = {
  "model.shape.family": ("qwen2", "qwen3", "llama"),
  "model.param_dtype": DTYPES,
  "model.dtype": DTYPES,
  "prompting.markers": ("template", "own"),
  "judge.kind": ("none", "exact", "lexical", "nli", "llm", "reward_model"),
  "rollout.ahead": (0, 1),
  "rollout.filter.metric": ("none", "outcome", "total"),
  "rollout.filter.surplus": ("discard", "keep"),
  "advantage.kind": ("group_relative", "leave_one_out", "reinforce_plus_plus_baseline", "gae", "reinforce_plus_plus"),
  "advantage.credit": ("episode", "turn"),
  "advantage.std": ("sample", "population", "none"),
  "loss.aggregation": ("token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "seq_mean_token_sum_norm"),
  "loss.ratio": ("token", "sequence"),
  "loss.kl": ("none", "k1", "k2", "k3", "abs", "k1+", "k3+"),
  "loss.kl_in": ("loss", "reward"),
  "critic.kind": ("none", "own", "shared"),
  "optimizer.kind": ("adamw", "muon"),
  "optimizer.schedule": ("constant", "cosine", "inverse_sqrt"),
}
# Least value → settings that may not be below it.
AT_LEAST = {
  1: """steps retrieval.top_k judge.concurrency judge.batch judge.max_tokens rollout.prompts_per_step rollout.group_size
     rollout.lanes rollout.rows rollout.context rollout.chunk rollout.prefill rollout.block rollout.max_new_tokens
     rollout.filter.max_draws loss.kl_horizon loss.epochs loss.minibatches learner.micro_rows learner.logprob_chunk
     learner.max_nonfinite checkpoint.every checkpoint.keep""",
  0: """data.max_examples data.noise retrieval.retries retrieval.max_failed_share judge.retries
     judge.max_failed_share rollout.top_k rollout.filter.tolerance advantage.std_floor advantage.eps advantage.gamma
     advantage.lam loss.clip_low loss.clip_high loss.kl_coef loss.kl_target critic.learning_rate critic.warmup_steps
     critic.coef critic.alone_steps reward.overlong_limit reward.overlong_buffer optimizer.learning_rate
     optimizer.warmup_steps optimizer.final_share optimizer.weight_decay optimizer.clip_norm evaluate.every
     evaluate.examples evaluate.batch log.episodes_every sft.environment_weight""",
}
# Shares, which are at most 1, and times and the like, which are above 0.
AT_MOST_ONE = (
  "retrieval.max_failed_share",
  "judge.max_failed_share",
  "rollout.top_p",
  "advantage.gamma",
  "advantage.lam",
  "optimizer.final_share",
)
ABOVE_ZERO = ("retrieval.timeout_s", "judge.timeout_s", "rollout.temperature", "rollout.top_p", "optimizer.muon_scale")


def validate(config: ml_collections.ConfigDict, *, training: bool = True) -> None:
  """Checks every setting that has a few names or a range, and what the fields say of each other. Nothing is loaded.

  Args:
    config: all settings.
    training: whether episodes are packed into rows; evaluation may play longer ones than a row holds.

  Raises:
    ValueError: with the field's path, what it is and what it must be.
  """
  _check_types(config, _defaults(), "config")
  for path, names in CHOICES.items():
    _check_name(f"config.{path}", _at(config, path), names)
  for term, judge in config.judges.items():
    if judge.get("kind") is not None:
      _check_name(f"config.judges.{term}.kind", judge.kind, CHOICES["judge.kind"])
  bounds = [
    (path, least, _at(config, path) >= least, "at least") for least, paths in AT_LEAST.items() for path in paths.split()
  ]
  bounds += [(path, 1, _at(config, path) <= 1, "at most") for path in AT_MOST_ONE]
  bounds += [(path, 0, _at(config, path) > 0, "above") for path in ABOVE_ZERO]
  for path, bound, holds, words in bounds:
    if not holds:
      raise ValueError(f"config.{path}={_at(config, path)}: it must be {words} {bound}.")
  for holds, message in [*_of_rollout(config), *_of_learning(config, training)]:
    if not holds:
      raise ValueError(message)


def _of_rollout(config) -> list[tuple[bool, str]]:
  """What the settings of model and rollout say of each other: (whether it is so, what is wrong if not)."""
  rollout, lora, mesh = config.rollout, config.model.lora, config.mesh.to_dict()
  return [
    (
      rollout.rows >= rollout.lanes,
      f"config.rollout.rows={rollout.rows} is less than lanes={rollout.lanes}: every lane decodes a cache row. Raise "
      "rows (twice the lanes hides searches) or lower lanes.",
    ),
    (
      rollout.max_new_tokens < rollout.context,
      f"config.rollout.max_new_tokens={rollout.max_new_tokens} leaves no room for a prompt in "
      f"context={rollout.context}: raise context or lower max_new_tokens.",
    ),
    (
      rollout.prefill <= rollout.context,
      f"config.rollout.prefill={rollout.prefill} is more than context={rollout.context}: a row takes in so many tokens "
      "at a time. Lower prefill or raise context.",
    ),
    (
      lora.rank >= 0 and lora.alpha > 0,
      f"config.model.lora.rank={lora.rank}, alpha={lora.alpha}: rank must be at least 0 (no adapters), alpha above 0.",
    ),
    (
      not (lora.rank and lora.path),
      f"config.model.lora.rank={lora.rank} with path={lora.path!r}: the folder says the rank. Set rank to 0, or leave "
      "path empty for fresh adapters.",
    ),
    (
      0 <= rollout.reserve < rollout.context,
      f"config.rollout.reserve={rollout.reserve}: it must be 0 (a whole turn of max_new_tokens), or at least 1 and "
      f"less than context={rollout.context}.",
    ),
    (
      rollout.filter.metric == "none" or rollout.group_size > 1,
      f"config.rollout.filter.metric={rollout.filter.metric!r} with group_size=1: no group of one has a spread, so "
      "all would be discarded. Raise group_size, or set the metric to 'none'.",
    ),
    (
      not rollout.ahead or rollout.filter.surplus == "discard",
      "config.rollout.filter.surplus='keep' with config.rollout.ahead=1: groups kept from a step that was sampled "
      "ahead would be two steps stale. Discard them, or set ahead to 0.",
    ),
    (
      all(size >= 1 or size == -1 for size in mesh.values()) and list(mesh.values()).count(-1) <= 1,
      f"config.mesh={mesh}: sizes must be at least 1, and one may be -1 for what is left of the devices.",
    ),
  ]


def _of_learning(config, training: bool) -> list[tuple[bool, str]]:
  """The same of what the learner is told."""
  loss, rollout, lengths = config.loss, config.rollout, config.learner.row_lengths
  above = lambda value, least: value is None or (_is_number(value) and value > least)
  return [
    (
      config.advantage.kind in ("gae", "reinforce_plus_plus") or rollout.group_size > 1,
      f"config.rollout.group_size=1 with config.advantage.kind={config.advantage.kind!r}: a group of one has no spread "
      "and teaches nothing. Raise group_size.",
    ),
    (
      loss.minibatches <= rollout.prompts_per_step,
      f"config.loss.minibatches={loss.minibatches}: each needs a prompt of config.rollout.prompts_per_step="
      f"{rollout.prompts_per_step}.",
    ),
    (
      1 <= len(lengths) <= 3 and all(type(length) is int and length >= 1 for length in lengths),
      f"config.learner.row_lengths={lengths}: one to three lengths in tokens; each is compiled once.",
    ),
    (
      not training or max((x for x in lengths if type(x) is int), default=0) >= rollout.context,
      f"config.learner.row_lengths={lengths}: the longest must hold an episode of config.rollout.context="
      f"{rollout.context} tokens.",
    ),
    (
      loss.kl_coef == 0 or loss.kl != "none",
      f"config.loss.kl_coef={loss.kl_coef} with config.loss.kl='none': name an estimator ('k2', 'k3', …) or set the "
      "coefficient to 0.",
    ),
    (above(loss.dual_clip, 1), f"config.loss.dual_clip={loss.dual_clip!r}: it must be None or a number above 1."),
    (
      above(loss.importance_cap, 0),
      f"config.loss.importance_cap={loss.importance_cap!r}: it must be None or a number above 0.",
    ),
  ]


def _at(config, path: str):
  for name in path.split("."):
    config = config[name]
  return config


def _is_number(value) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check_name(where: str, value, names) -> None:
  if value not in names:
    *most, last = map(repr, names)
    raise ValueError(f"{where}={value!r}: it must be {', '.join(most)} or {last}.")


def _check_types(config, default, path):
  """ml_collections lets None and bool into an int field; a run must not find out later."""
  for name, like in default.items():
    value, where = config[name], f"{path}.{name}"
    if isinstance(like, ml_collections.ConfigDict):
      if like:
        _check_types(value, like, where)
    elif like is not None and (value is None or isinstance(value, bool) != isinstance(like, bool)):
      raise ValueError(f"{where}={value!r}: it must be a {type(like).__name__}, such as {like!r}.")
    elif isinstance(like, float) and not math.isfinite(value):
      raise ValueError(f"{where}={value!r}: it must be a finite number, such as {like!r}.")
