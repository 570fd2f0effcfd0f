"""Every setting of a run, once, with its unit. A file under configs/ holds only what differs from here."""

import ml_collections


def default_config() -> ml_collections.ConfigDict:
  """The full list of settings. It is locked: a misspelt name raises and says which one was meant."""
  config = ml_collections.ConfigDict(dict(
    recipe="search_r1",        # a name of ragrl_jax.recipes
    preset="paper",            # one of the recipe's PRESETS
    switches={},               # single switches of the recipe that differ from the preset
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
    ),
    prompting=dict(
      tokenizer="",            # folder or sentencepiece file; empty: the model's folder
      chat=True,               # render messages through the tokenizer's chat template; False: bare text
    ),
    data=dict(
      train="",                # FILE.jsonl[.gz], a folder's glob, or "hf:name/subset/split"
      evaluate="",
      max_examples=0,          # 0: all
    ),
    retrieval=dict(
      index="",                # folder of build_index, or the http://… address of a retriever
      top_k=3,
      timeout_s=30.0,          # of one call
      retries=3,
      max_passage_tokens=160,  # a longer passage is cut, its closing tag never
      max_failed_share=0.1,    # of a step's episodes; more, and the run stops with the reason
    ),
    rollout=dict(
      prompts_per_step=32,     # P
      group_size=8,            # G; B = P * G episodes a step
      lanes=32,                # W rows decoded together
      rows=64,                 # C cache rows, >= lanes
      context=512,             # tokens a row can hold
      chunk=16,                # tokens decoded between two looks at the host
      prefill=64,              # tokens a row takes in by one extension
      block=64,                # cache tokens attended to at a time
      max_searches=2,
      temperature=1.0,
      top_k=0,
      top_p=1.0,
      max_new_tokens=64,       # a turn
    ),
    advantage=dict(kind="group_relative", std="sample", std_floor=0.0, eps=1e-6),
    loss=dict(
      aggregation="token_mean",
      clip_low=0.2, clip_high=0.2, dual_clip=None,
      ratio="token",
      kl="none",               # an estimator's name puts the penalty into the loss
      kl_coef=0.0,
      entropy_coef=0.0,
      updates_per_batch=1,     # optimiser steps on one batch of episodes
    ),
    optimizer=dict(
      kind="adamw",            # or "muon" for hidden matrices, AdamW for the rest
      learning_rate=1e-6, warmup_steps=0, schedule="constant", final_share=0.1,
      b1=0.9, b2=0.999, weight_decay=0.01, clip_norm=1.0,
      muon_scale=5.0,          # Muon's learning rate over AdamW's
    ),
    learner=dict(
      micro_rows=8,            # rows of one accumulation block
      row_lengths=(512,),      # T: at most three
      logprob_chunk=512,       # tokens whose logits exist at once
      max_nonfinite=3,         # skipped steps in a row before the run stops
    ),
    mesh=dict(data=-1, fsdp=1, tensor=1, sequence=1),  # -1: what is left of the devices
    checkpoint=dict(every=50, keep=2),
    evaluate=dict(every=0, examples=200, batch=0),     # every 0: only at the end
    log=dict(episodes_every=1, tensorboard=True),
    sft=dict(steps=300, rows=16, environment_weight=0.3),
  ), convert_dict=True)
  return config.lock()
