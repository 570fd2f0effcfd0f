# GRPO on GSM8K: the fields and values of verl's example for a 7B model. Its epochs become steps with the number of
# questions, 7,473.
GSM8K=$HOME/data/gsm8k
time python -m verl.trainer.main_ppo \
  actor_rollout_ref.actor.entropy_coeff=0 actor_rollout_ref.actor.fsdp_config.optimizer_offload=False \
  actor_rollout_ref.actor.fsdp_config.param_offload=False actor_rollout_ref.actor.kl_loss_coef=0.001 \
  actor_rollout_ref.actor.kl_loss_type=low_var_kl actor_rollout_ref.actor.optim.lr=1e-6 \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=40 actor_rollout_ref.actor.ppo_mini_batch_size=256 \
  actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.model.enable_gradient_checkpointing=True \
  actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct actor_rollout_ref.model.use_remove_padding=True \
  actor_rollout_ref.ref.fsdp_config.param_offload=True \
  actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=40 \
  actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=40 actor_rollout_ref.rollout.n=5 \
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
  algorithm.adv_estimator=grpo algorithm.use_kl_in_reward=False data.filter_overlong_prompts=True \
  data.max_prompt_length=512 data.max_response_length=1024 data.train_batch_size=1024 \
  data.train_files=${GSM8K}/train.parquet data.truncation='error' data.val_files=${GSM8K}/test.parquet \
  trainer.critic_warmup=0 trainer.experiment_name='qwen2_7b' trainer.logger='["console","wandb"]' \
  trainer.n_gpus_per_node=8 trainer.nnodes=1 trainer.project_name='grpo_gsm8k' trainer.save_freq=20 \
  trainer.test_freq=5 trainer.total_epochs=15
