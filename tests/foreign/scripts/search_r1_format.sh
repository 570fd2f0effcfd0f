# Search-R1 with a reward for the format, in the fields of its script v0.3 (GRPO, 3B).
TURNS=4
OUT=${OUT:-runs}/format-${TURNS}-turns
python3 -m verl.trainer.main_ppo_format \
  actor_rollout_ref.actor.fsdp_config.grad_offload=true \
  actor_rollout_ref.actor.fsdp_config.optimizer_offload=true \
  actor_rollout_ref.actor.fsdp_config.param_offload=true actor_rollout_ref.actor.kl_loss_coef=0.001 \
  actor_rollout_ref.actor.kl_loss_type=low_var_kl actor_rollout_ref.actor.optim.lr=5e-7 \
  actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.285 actor_rollout_ref.actor.ppo_micro_batch_size=64 \
  actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.state_masking=true \
  actor_rollout_ref.actor.use_kl_loss=true actor_rollout_ref.model.enable_gradient_checkpointing=true \
  actor_rollout_ref.model.path='Qwen/Qwen2.5-3B' actor_rollout_ref.model.use_remove_padding=True \
  actor_rollout_ref.ref.fsdp_config.param_offload=True actor_rollout_ref.ref.log_prob_micro_batch_size=128 \
  actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
  actor_rollout_ref.rollout.log_prob_micro_batch_size=128 actor_rollout_ref.rollout.n_agent=5 \
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.temperature=1 \
  actor_rollout_ref.rollout.tensor_model_parallel_size=1 algorithm.adv_estimator=grpo \
  algorithm.no_think_rl=false data.max_obs_length=500 data.max_prompt_length=4096 \
  data.max_response_length=500 data.max_start_length=2048 data.shuffle_train_dataloader=True \
  data.train_batch_size=512 data.train_data_num=null data.train_files=data/nq_hotpotqa_train/train.parquet \
  data.val_batch_size=256 data.val_data_num=null data.val_files=data/nq_hotpotqa_train/test.parquet \
  max_turns=$TURNS retriever.topk=3 retriever.url=http://127.0.0.1:8000/retrieve \
  reward_model.final_format_score=0.1 reward_model.retrieval_score=0 reward_model.structure_format_score=0.2 \
  +trainer.val_before_train=true +trainer.val_only=false trainer.default_hdfs_dir=null \
  trainer.default_local_dir=$OUT trainer.experiment_name=format trainer.logger=['wandb'] \
  trainer.n_gpus_per_node=8 trainer.nnodes=1 trainer.project_name=Search-R1 trainer.save_freq=100 \
  trainer.test_freq=100 trainer.total_epochs=15 trainer.total_training_steps=1005 "$@"
