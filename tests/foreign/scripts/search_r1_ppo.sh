# Search-R1 by PPO on NQ and HotpotQA, in the fields of its script v0.2 (four turns, 7B).
export SET=nq_hotpotqa_train BASE="Qwen/Qwen2.5-7B"
ARGUMENTS=(
  data.train_files=data/$SET/train.parquet    # of 169,615 questions
  data.val_files=data/$SET/test.parquet
  data.train_data_num=null
  data.val_data_num=null
  data.train_batch_size=512
  data.val_batch_size=256
  data.max_prompt_length=4096
  data.max_response_length=500
  data.max_start_length=2048
  data.max_obs_length=500
  data.shuffle_train_dataloader=True
  algorithm.adv_estimator=gae
  algorithm.kl_ctrl.kl_coef=0.001
  algorithm.no_think_rl=false
  max_turns=4
  retriever.url='http://127.0.0.1:8000/retrieve'
  retriever.topk=3
)
ACTOR="actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.285"

python3 -m verl.trainer.main_ppo "${ARGUMENTS[@]}" $ACTOR \
  trainer.critic_warmup=0 trainer.default_hdfs_dir=null \
  trainer.default_local_dir="verl_checkpoints/$SET-ppo-7b" trainer.experiment_name="$SET-ppo-7b" \
  trainer.logger=['wandb'] trainer.n_gpus_per_node=8 trainer.nnodes=1 trainer.project_name='Search-R1' \
  trainer.save_freq=100 trainer.test_freq=100 trainer.total_epochs=15 trainer.total_training_steps=1005 \
  +trainer.val_before_train=true +trainer.val_only=false \
  actor_rollout_ref.actor.fsdp_config.grad_offload=true \
  actor_rollout_ref.actor.fsdp_config.optimizer_offload=true \
  actor_rollout_ref.actor.fsdp_config.param_offload=true actor_rollout_ref.actor.ppo_micro_batch_size=64 \
  actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.state_masking=true \
  actor_rollout_ref.model.enable_gradient_checkpointing=true actor_rollout_ref.model.path=$BASE \
  actor_rollout_ref.model.use_remove_padding=True actor_rollout_ref.ref.fsdp_config.param_offload=True \
  actor_rollout_ref.ref.log_prob_micro_batch_size=128 actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
  actor_rollout_ref.rollout.log_prob_micro_batch_size=128 actor_rollout_ref.rollout.n_agent=1 \
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.temperature=1 \
  actor_rollout_ref.rollout.tensor_model_parallel_size=1 actor_rollout_ref.rollout.top_p=1.0 \
  critic.model.enable_gradient_checkpointing=true critic.model.fsdp_config.grad_offload=true \
  critic.model.fsdp_config.optimizer_offload=true critic.model.fsdp_config.param_offload=true \
  critic.model.path=$BASE critic.model.use_remove_padding=True critic.optim.lr=1e-5 \
  critic.optim.lr_warmup_steps_ratio=0.015 critic.ppo_micro_batch_size=8 > run.log 2>&1
