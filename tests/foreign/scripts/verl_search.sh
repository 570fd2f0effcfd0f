# Search as a tool over several turns, on 169,615 questions of Search-R1's: the fields and values of verl's example for
# a 3B model under SGLang. What it names in two YAML files is in verl_search.yaml.
FILES="$(dirname $0)/yaml"
exec python -m verl.trainer.main_ppo --config-name=search_grpo --config-path="$FILES" \
  actor_rollout_ref.actor.entropy_coeff=0 actor_rollout_ref.actor.fsdp_config.optimizer_offload=False \
  actor_rollout_ref.actor.fsdp_config.param_offload=False actor_rollout_ref.actor.kl_loss_coef=0.001 \
  actor_rollout_ref.actor.kl_loss_type=low_var_kl actor_rollout_ref.actor.optim.lr=1e-6 \
  actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.285 \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 actor_rollout_ref.actor.ppo_mini_batch_size=256 \
  actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.model.enable_gradient_checkpointing=True \
  actor_rollout_ref.model.path=Qwen/Qwen2.5-3B-Instruct actor_rollout_ref.model.use_remove_padding=True \
  actor_rollout_ref.ref.fsdp_config.param_offload=True \
  actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8 \
  actor_rollout_ref.rollout.gpu_memory_utilization=0.5 \
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 \
  actor_rollout_ref.rollout.max_model_len=15000 \
  actor_rollout_ref.rollout.multi_turn.tool_config_path="$FILES/tools.yaml" actor_rollout_ref.rollout.n=5 \
  actor_rollout_ref.rollout.name=sglang actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
  algorithm.adv_estimator=grpo algorithm.use_kl_in_reward=False data.filter_overlong_prompts=True \
  data.max_prompt_length=4096 data.max_response_length=3000 data.return_raw_chat=True \
  data.train_batch_size=512 data.train_files="data/search/train.parquet" data.truncation='error' \
  data.val_batch_size=256 data.val_files="data/search/test.parquet" trainer.critic_warmup=0 \
  trainer.experiment_name='qwen2.5-3b' trainer.logger='["console","wandb"]' trainer.n_gpus_per_node=8 \
  trainer.nnodes=1 trainer.project_name='search_as_a_tool' trainer.save_freq=100 trainer.test_freq=50 \
  trainer.total_epochs=1 "$@"
