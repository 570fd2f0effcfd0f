#!/usr/bin/env bash
set -euxo pipefail
# DAPO on mathematics, in the fields of verl's recipe for a 32B model.

low=0.2; high=0.28
prompt=$((1024 * 2))
response=$((1024 * 20))
buffer=$((1024 * 4))
bsz=512
gen_bsz=$((bsz * 3))
offload=True
longest=$((prompt + response))
HOME_OF_DATA=${HOME_OF_DATA:-"/data/verl"}
MODEL=${MODEL:-"${HOME_OF_DATA}/models/Qwen2.5-32B"}
ADDRESS=${ADDRESS:-"http://localhost:8265"}

ray job submit --no-wait --address "${ADDRESS}" --working-dir "${PWD}" -- python3 -m recipe.dapo.main_dapo \
  data.train_files="${HOME_OF_DATA}/data/dapo-math-17k.parquet" \
  data.val_files="${HOME_OF_DATA}/data/aime-2024.parquet" \
  data.prompt_key=prompt data.truncation='left' \
  data.max_prompt_length=${prompt} data.max_response_length=${response} \
  data.gen_batch_size=${gen_bsz} data.train_batch_size=${bsz} \
  actor_rollout_ref.rollout.n=16 \
  algorithm.adv_estimator=grpo \
  algorithm.use_kl_in_reward=False algorithm.kl_ctrl.kl_coef=0.0 \
  actor_rollout_ref.actor.use_kl_loss=False actor_rollout_ref.actor.kl_loss_coef=0.0 \
  actor_rollout_ref.actor.clip_ratio_low=${low} \
  actor_rollout_ref.actor.clip_ratio_high=${high} \
  actor_rollout_ref.actor.clip_ratio_c=10.0 \
  algorithm.filter_groups.enable=True algorithm.filter_groups.max_num_gen_batches=10 \
  algorithm.filter_groups.metric=acc \
  actor_rollout_ref.model.use_remove_padding=True \
  actor_rollout_ref.actor.use_dynamic_bsz=True \
  actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True \
  actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True \
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$longest \
  actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=$longest \
  actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=$longest \
  actor_rollout_ref.model.path="${MODEL}" \
  +actor_rollout_ref.model.override_config.attention_dropout=0. \
  +actor_rollout_ref.model.override_config.embd_pdrop=0. \
  +actor_rollout_ref.model.override_config.resid_pdrop=0. \
  actor_rollout_ref.model.enable_gradient_checkpointing=True \
  actor_rollout_ref.actor.optim.lr=1e-6 \
  actor_rollout_ref.actor.optim.lr_warmup_steps=10 \
  actor_rollout_ref.actor.optim.weight_decay=0.1 \
  actor_rollout_ref.actor.ppo_mini_batch_size=32 \
  actor_rollout_ref.actor.fsdp_config.param_offload=${offload} \
  actor_rollout_ref.actor.fsdp_config.optimizer_offload=${offload} \
  actor_rollout_ref.actor.entropy_coeff=0 \
  actor_rollout_ref.actor.grad_clip=1.0 \
  actor_rollout_ref.actor.loss_agg_mode=token-mean \
  actor_rollout_ref.actor.ulysses_sequence_parallel_size=8 \
  actor_rollout_ref.rollout.gpu_memory_utilization=0.80 \
  actor_rollout_ref.rollout.tensor_model_parallel_size=4 \
  actor_rollout_ref.rollout.enable_chunked_prefill=True \
  actor_rollout_ref.rollout.max_num_batched_tokens=$((prompt + response)) \
  actor_rollout_ref.rollout.temperature=1.0 \
  actor_rollout_ref.rollout.top_p=1.0 \
  actor_rollout_ref.rollout.top_k="-1" \
  actor_rollout_ref.rollout.val_kwargs.temperature=1.0 \
  actor_rollout_ref.rollout.val_kwargs.top_p=0.7 \
  actor_rollout_ref.rollout.val_kwargs.top_k=-1 \
  actor_rollout_ref.rollout.val_kwargs.do_sample=True \
  actor_rollout_ref.rollout.val_kwargs.n=1 \
  actor_rollout_ref.ref.fsdp_config.param_offload=${offload} \
  actor_rollout_ref.ref.ulysses_sequence_parallel_size=8 \
  actor_rollout_ref.actor.fsdp_config.fsdp_size=-1 \
  reward_model.reward_manager=dapo \
  reward_model.overlong_buffer.enable=True \
  reward_model.overlong_buffer.len=${buffer} \
  reward_model.overlong_buffer.penalty_factor=1.0 \
  trainer.logger=['console','wandb'] \
  trainer.project_name=DAPO trainer.experiment_name=DAPO-32B \
  trainer.n_gpus_per_node=8 trainer.nnodes="${NNODES:-16}" \
  trainer.val_before_train=True trainer.test_freq=5 trainer.save_freq=5 \
  trainer.total_epochs=1 trainer.default_local_dir="${HOME_OF_DATA}/ckpts/DAPO" trainer.resume_mode=auto
