#!/bin/bash
# Search-R1 by GRPO on NQ, in the fields of its script of March 2025 (two turns, 3B).
DATA=data/nq_search
export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 VLLM_ATTENTION_BACKEND=XFORMERS
# export POLICY='Qwen/Qwen2.5-7B'
export POLICY='Qwen/Qwen2.5-3B'
NAME=nq-grpo-3b   # of the run

PYTHONUNBUFFERED=1 python3 -m verl.trainer.main_ppo \
  algorithm.adv_estimator=grpo algorithm.no_think_rl=false \
  data.train_files=$DATA/train.parquet data.val_files="${DATA}/test.parquet" \
  data.train_data_num=null data.val_data_num=null \
  data.train_batch_size=512 data.val_batch_size=256 data.shuffle_train_dataloader=True \
  data.max_start_length=2048 data.max_prompt_length=4096 \
  data.max_response_length=500 data.max_obs_length=500 \
  actor_rollout_ref.model.path=$POLICY \
  actor_rollout_ref.model.use_remove_padding=True \
  actor_rollout_ref.model.enable_gradient_checkpointing=true \
  actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.285 \
  actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size=64 \
  actor_rollout_ref.actor.use_kl_loss=true actor_rollout_ref.actor.kl_loss_coef=0.001 \
  actor_rollout_ref.actor.kl_loss_type=low_var_kl actor_rollout_ref.actor.state_masking=true \
  actor_rollout_ref.actor.fsdp_config.param_offload=true \
  actor_rollout_ref.actor.fsdp_config.grad_offload=true \
  actor_rollout_ref.actor.fsdp_config.optimizer_offload=true \
  actor_rollout_ref.ref.fsdp_config.param_offload=True actor_rollout_ref.ref.log_prob_micro_batch_size=128 \
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n_agent=5 actor_rollout_ref.rollout.temperature=1 \
  actor_rollout_ref.rollout.tensor_model_parallel_size=1 actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
  actor_rollout_ref.rollout.log_prob_micro_batch_size=128 \
  trainer.logger=['wandb'] trainer.project_name=Search-R1 trainer.experiment_name=$NAME \
  +trainer.val_only=false +trainer.val_before_train=true \
  trainer.nnodes=1 trainer.n_gpus_per_node=8 trainer.save_freq=100 trainer.test_freq=50 \
  trainer.total_epochs=15 trainer.total_training_steps=1005 \
  trainer.default_hdfs_dir=null trainer.default_local_dir=verl_checkpoints/$NAME \
  max_turns=2 retriever.url="http://127.0.0.1:8000/retrieve" retriever.topk=3 \
  2>&1 | tee $NAME.log
