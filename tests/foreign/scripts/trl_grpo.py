"""GRPO from Python with adapters, several passes over a generation and Dr. GRPO's loss. It is read, never run."""

from datasets import load_dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

LENGTH = 256
MODEL = "Qwen/Qwen2-0.5B-Instruct"
rows = load_dataset("trl-lib/tldr", split="train")


def near_fifty(completions, **others):
  return [-abs(50 - len(text)) for text in completions]


settings = GRPOConfig(
  output_dir="out", per_device_train_batch_size=8, gradient_accumulation_steps=4, steps_per_generation=16,
  num_generations=8, num_iterations=2, max_prompt_length=LENGTH, max_completion_length=2 * LENGTH, max_steps=400,
  learning_rate=1e-5, lr_scheduler_type="constant_with_warmup", warmup_steps=20, beta=0.04, epsilon=0.2,
  epsilon_high=0.28, delta=4.0, loss_type="dr_grpo", scale_rewards=False, temperature=0.9, save_steps=80, bf16=True,
  use_vllm=True, vllm_mode="colocate", logging_steps=10, report_to=[],
)  # fmt: skip
GRPOTrainer(
  model=MODEL,
  reward_funcs=near_fifty,
  args=settings,
  train_dataset=rows,
  peft_config=LoraConfig(r=16, lora_alpha=64, target_modules=["q_proj", "k_proj"], task_type="CAUSAL_LM"),
).train()
