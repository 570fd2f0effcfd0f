#!/usr/bin/env bash
# DAPO on mathematics: the fields and values of verl's recipe for a 32B model, submitted to Ray.
set -eu
K=1024
PROMPT=$((2 * K))
ANSWER=$((20 * K))
TOKENS=$((PROMPT + ANSWER))
PROMPTS=512
ROOT=${HOME_OF_DATA:-"/data/verl"}
actor=actor_rollout_ref.actor rollout=actor_rollout_ref.rollout ref=actor_rollout_ref.ref model=actor_rollout_ref.model

LENGTHS="data.max_prompt_length=$PROMPT data.max_response_length=$ANSWER $rollout.max_num_batched_tokens=$TOKENS"
for_packing=(
  $actor.use_dynamic_bsz=True $actor.ppo_max_token_len_per_gpu=$TOKENS
  $ref.log_prob_use_dynamic_bsz=True $ref.log_prob_max_token_len_per_gpu=$TOKENS
  $rollout.log_prob_use_dynamic_bsz=True $rollout.log_prob_max_token_len_per_gpu=$TOKENS
  $model.use_remove_padding=True
)
for_memory=(
  $actor.fsdp_config.param_offload=True $actor.fsdp_config.optimizer_offload=True $actor.fsdp_config.fsdp_size=-1
  $ref.fsdp_config.param_offload=True $model.enable_gradient_checkpointing=True
  $actor.ulysses_sequence_parallel_size=8 $ref.ulysses_sequence_parallel_size=8
  $rollout.tensor_model_parallel_size=4 $rollout.gpu_memory_utilization=0.80 $rollout.enable_chunked_prefill=True
)

# the two penalties are off, groups without a spread are drawn again, long answers lose reward
algorithm=(
  algorithm.adv_estimator=grpo algorithm.use_kl_in_reward=False algorithm.kl_ctrl.kl_coef=0.0
  $actor.use_kl_loss=False $actor.kl_loss_coef=0.0 $actor.entropy_coeff=0
  $actor.clip_ratio_low=0.2 $actor.clip_ratio_high=0.28 $actor.clip_ratio_c=10.0 $actor.loss_agg_mode=token-mean
  algorithm.filter_groups.enable=True algorithm.filter_groups.metric=acc algorithm.filter_groups.max_num_gen_batches=10
  reward_model.reward_manager=dapo reward_model.overlong_buffer.enable=True
  reward_model.overlong_buffer.len=$((4 * K)) reward_model.overlong_buffer.penalty_factor=1.0
)
optimiser=(
  $actor.optim.lr=1e-6 $actor.optim.lr_warmup_steps=10 $actor.optim.weight_decay=0.1 $actor.grad_clip=1.0
  $actor.ppo_mini_batch_size=32
)
sampling=(
  $rollout.n=16 $rollout.temperature=1.0 $rollout.top_p=1.0 $rollout.top_k="-1"
  $rollout.val_kwargs.do_sample=True $rollout.val_kwargs.n=1 $rollout.val_kwargs.temperature=1.0
  $rollout.val_kwargs.top_p=0.7 $rollout.val_kwargs.top_k=-1
)

ray job submit --address "${ADDRESS:-http://localhost:8265}" --no-wait --working-dir "$ROOT/code" -- \
  python3 -m recipe.dapo.main_dapo $LENGTHS "${for_packing[@]}" "${for_memory[@]}" "${algorithm[@]}" \
  "${optimiser[@]}" "${sampling[@]}" \
  data.train_files="$ROOT/data/dapo-math-17k.parquet" data.val_files="$ROOT/data/aime-2024.parquet" \
  data.prompt_key=prompt data.truncation='left' data.train_batch_size=$PROMPTS data.gen_batch_size=$((3 * PROMPTS)) \
  $model.path="${MODEL:-$ROOT/models/Qwen2.5-32B}" +$model.override_config.attention_dropout=0. \
  +$model.override_config.embd_pdrop=0. +$model.override_config.resid_pdrop=0. \
  trainer.logger=['console','wandb'] trainer.project_name=DAPO trainer.experiment_name=DAPO-32B \
  trainer.nnodes="${NNODES:-16}" trainer.n_gpus_per_node=8 trainer.total_epochs=1 trainer.resume_mode=auto \
  trainer.save_freq=5 trainer.test_freq=5 trainer.val_before_train=True trainer.default_local_dir="$ROOT/ckpts/DAPO"
