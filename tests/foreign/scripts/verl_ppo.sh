#!/usr/bin/env bash
# PPO on GSM8K and MATH with packed rows, in the fields of verl's example for a 7B model and in the form of its newer ones.
set -xeuo pipefail

# ---- what a user may set ----
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen2-7B-Instruct}
batch=${TRAIN_BATCH_SIZE:-4096}
mini_batch=${PPO_MINI_BATCH_SIZE:-512}
longest=${MAX_TOKENS:-24000}
critic_lr=${CRITIC_LR:-1e-5}
# ---- end ----

here=$(cd -- "$(dirname "${BASH_SOURCE[0]}")/.." > /dev/null 2>&1 && pwd)
gsm8k=$HOME/data/gsm8k
math=$HOME/data/math
train="['$gsm8k/train.parquet', '$math/train.parquet']"
test="['$gsm8k/test.parquet', '$math/test.parquet']"
####################################### fields #######################################

DATA=(
  algorithm.adv_estimator=gae algorithm.use_kl_in_reward=False data.train_files="$train"
  data.val_files="$test" data.train_batch_size=${batch} data.max_prompt_length=4096
  data.max_response_length=4096 data.filter_overlong_prompts=True data.truncation='error'
)
MODEL=(
  actor_rollout_ref.model.path="$MODEL_PATH" actor_rollout_ref.model.use_remove_padding=True
  actor_rollout_ref.model.enable_gradient_checkpointing=True
)
ACTOR=(
  actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.ppo_mini_batch_size=${mini_batch}
  actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=${longest}
  actor_rollout_ref.actor.use_kl_loss=False actor_rollout_ref.actor.fsdp_config.param_offload=False
  actor_rollout_ref.actor.fsdp_config.optimizer_offload=False
)
ROLLOUT=(
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.tensor_model_parallel_size=2
  actor_rollout_ref.rollout.gpu_memory_utilization=0.5
  actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=${longest}
)
CRITIC=(
  critic.optim.lr=${critic_lr} critic.optim.lr_warmup_steps_ratio=0.05 critic.model.path="$MODEL_PATH"
  critic.model.use_remove_padding=True critic.model.enable_gradient_checkpointing=True
  critic.model.fsdp_config.param_offload=False critic.model.fsdp_config.optimizer_offload=False
)
CRITIC+=(critic.ppo_max_token_len_per_gpu=$((longest * 4)))
TRAINER=(
  trainer.critic_warmup=0 trainer.logger='["console","wandb"]' trainer.project_name=ppo_math
  trainer.experiment_name=qwen2_7b_packed trainer.n_gpus_per_node=8 trainer.nnodes=1
  trainer.val_before_train=False trainer.save_freq=20 trainer.test_freq=5 trainer.total_training_steps=150
  trainer.total_epochs=15
)
EXTRA=(
)

LAUNCH=(python3)
if [ "${WITH_UV:-1}" != 0 ]; then
  uv sync --extra vllm --frozen
  LAUNCH=(uv run --frozen --no-sync python3)
fi
"${LAUNCH[@]}" -m verl.trainer.main_ppo "${DATA[@]}" "${MODEL[@]}" "${ACTOR[@]}" "${ROLLOUT[@]}" \
  "${CRITIC[@]}" "${TRAINER[@]}" "${EXTRA[@]}" \
  "$@"
