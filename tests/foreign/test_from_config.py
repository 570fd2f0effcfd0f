"""Scripts of Search-R1, verl and TRL: every field is accounted for, and the settings are those that hands derive.

The scripts were written for these tests with the fields and values of public ones.
"""

import ast
import importlib.util
import json
import pathlib
import re
import sys

import pytest
from refusals import refused

from ragrl_jax import config as config_lib, recipes, settings
from ragrl_jax.cli import from_config
from ragrl_jax.cli.foreign import formula, script_text, translate
from ragrl_jax.learner import settings as learner_settings
from ragrl_jax.settings import fields as fields_lib

SCRIPTS = pathlib.Path(__file__).parent / "scripts"
# Files → (--set, library, refused fields, settings by hand); a comment has the reasons of its line's, in their order.
CASES = {
  "search_r1_grpo.sh": ([], "Search-R1 v0.3", set(), {
    "recipe": "search_r1", "preset": "repo", "steps": 1005, "switches.max_searches": 2,
    "switches.max_passage_tokens": 166, "rollout.context": 4596,  # 500 // 3; 4096 before the last turn, and its 500
    "rollout.group_size": 5,
    "rollout.top_p": 0.95, "loss.minibatches": 10,  # left out; 512 · 5 episodes in 256s
    "optimizer.warmup_steps": 2860,  # int(.285 · 1005) = 286 training steps of 10 updates
    "loss.kl": "k3", "loss.kl_in": "loss",
    "loss.entropy_coef": 0.001,  # left out
    "loss.dual_clip": None, "retrieval.index": "http://127.0.0.1:8000/retrieve", "model.path": "Qwen/Qwen2.5-3B",
    "data.train": "data/nq_search/train.parquet", "evaluate.examples": 0,
  }),
  "search_r1_ppo.sh": ([], "Search-R1 v0.3", set(), {
    "advantage.kind": "gae", "critic.kind": "own", "critic.learning_rate": 1e-5,
    "critic.warmup_steps": 30, "optimizer.warmup_steps": 572,  # int(.015 · 1005) = 15, two updates a step; 286 · 2
    "loss.minibatches": 2, "loss.kl": "k1",  # 512 episodes in 256s; without use_kl_loss the penalty is in the reward
    "loss.kl_in": "reward", "loss.kl_coef": 0.001, "rollout.group_size": 1, "rollout.top_p": 1.0,
    "switches.max_searches": 4, "data.evaluate": "data/nq_hotpotqa_train/test.parquet", "optimizer.learning_rate": 1e-6,
  }),
  "search_r1_format.sh": ([], "Search-R1 v0.3", set(), {
    "preset": "format,repo", "switches.structure_weight": 0.2,
    "switches.final_share": 0.5,  # .1 of .2
    "switches.retrieval_weight": 0.0, "optimizer.learning_rate": 5e-7, "evaluate.every": 100, "checkpoint.every": 100,
    "switches.max_searches": 4,
  }),
  "verl_grpo.sh": (["questions=7473"], "verl 0.6 to 0.9", set(), {
    "preset": "r1",
    "steps": 105,  # 15 · (7473 // 1024)
    "rollout.prompts_per_step": 1024, "rollout.context": 1536,
    "loss.minibatches": 4, "loss.dual_clip": 3.0,  # prompts, each with 5 samples; left out
    "loss.kl_coef": 0.001, "optimizer.warmup_steps": 0, "data.drop_long": True,
    "data.train": "/home/me/data/gsm8k/train.parquet", "advantage.std": "sample", "model.dtype": "bfloat16",
  }),
  "verl_ppo.sh": ([], "verl 0.6 to 0.9", set(), {
    "steps": 150,  # total_training_steps before total_epochs
    "data.train": "/home/me/data/gsm8k/train.parquet,/home/me/data/math/train.parquet",
    "rollout.prompts_per_step": 4096, "rollout.group_size": 1, "loss.minibatches": 8, "loss.kl": "none",
    "critic.warmup_steps": 56,  # int(.05 · 150) = 7, 8 updates a step
    "critic.clip": 0.5, "advantage.kind": "gae", "rollout.context": 8192,
  }),
  "verl_dapo.sh": (["questions=17398"], "verl 0.6 to 0.9", {
    "actor_rollout_ref.rollout.val_kwargs.do_sample",
    "data.gen_batch_size",  # an epoch's steps depend on verl's version
  }, {
    "steps": 33,  # 17398 // 512
    "rollout.context": 22528, "rollout.filter.metric": "outcome",
    "rollout.filter.max_draws": 30,  # 10 batches of 1536 prompts, for 512
    "reward.overlong_limit": 20480, "reward.overlong_buffer": 4096, "loss.clip_low": 0.2, "loss.clip_high": 0.28,
    "loss.dual_clip": 10.0, "loss.kl": "none", "loss.minibatches": 16,
    "optimizer.warmup_steps": 160,  # 10 training steps of 16 updates
    "optimizer.weight_decay": 0.1, "rollout.top_k": 0, "model.path": "/data/verl/models/Qwen2.5-32B",
  }),
  "verl_search.yaml verl_search.sh": (["questions=169615"], "verl 0.6 to 0.9", set(), {
    "recipe": "tool_agent", "preset": "paper",
    "steps": 331,  # 169615 // 512, the script's batch and not the YAML's
    "switches.max_turns": 1,  # two of the model's, the second of which answers
    "switches.max_result_tokens": 500,  # 2000 characters
    "retrieval.index": "http://127.0.0.1:8000/retrieve", "retrieval.top_k": 3,
    "rollout.context": 7096,  # 4096 for the prompt, 3000 for all turns and results, whatever max_model_len is
    "rollout.reserve": 512, "rollout.max_new_tokens": 3000,
    "optimizer.warmup_steps": 188,  # int(.285 · 331) = 94, 2 updates a step
  }),
  "verl_resolved.yaml": (["questions=10000", "actor_rollout_ref.actor.optim.clip_grad=0.5"], "verl 0.6 to 0.9", set(), {
    "steps": 156,  # 2 · (10000 // 128)
    "seed": 7, "advantage.kind": "leave_one_out", "model.lora.rank": 64, "model.lora.layers": "q v",
    "prompting.thinking": "off", "loss.aggregation": "seq_mean_token_mean", "loss.kl": "k1", "loss.kl_in": "reward",
    "loss.kl_target": 0.05, "loss.importance_cap": 2.0, "loss.epochs": 2, "loss.minibatches": 2,
    "optimizer.warmup_steps": 60,  # int(.1 · 156) = 15, 2 passes of 2 updates
    "optimizer.schedule": "cosine", "optimizer.final_share": 0.1, "optimizer.b2": 0.95, "optimizer.clip_norm": 0.5,
    "evaluate.examples": 500, "rollout.top_k": 50, "log.wandb": False, "critic.kind": "none",
  }),
  "trl_grpo.yaml": (["questions=72441"], "TRL 1.16", {"max_prompt_length"}, {  # older, with beta 0.04 by default
    "rollout.prompts_per_step": 256,  # 7 processes · 16 · 16 accumulated / 7 samples
    "rollout.group_size": 7,
    "steps": 282, "optimizer.warmup_steps": 29,  # 72441 // 256; ceil(.1 · 282)
    "optimizer.schedule": "cosine", "optimizer.final_share": 0.0,
    "optimizer.weight_decay": 0.0,  # left out
    "advantage.eps": 1e-4,
    "loss.aggregation": "token_mean", "loss.kl": "none",  # left out: dapo; left out: beta 0
    "checkpoint.every": 282,  # an epoch
    "evaluate.every": 100, "data.train": "hf:AI-MO/NuminaMath-TIR/all/train", "seed": 42,
  }),
  "trl_grpo.py": (["num_processes=2"], "TRL 1.16", {"trainer_reward_funcs", "use_bias_correction_kl"}, {
    "rollout.prompts_per_step": 32,  # 2 processes · 8 · 16 steps of a generation / 8 samples
    "loss.minibatches": 4,  # 16 steps, 4 of which are one update
    "loss.epochs": 2,
    "steps": 50, "checkpoint.every": 10,  # 400 updates, 4 · 2 a step; 80 updates
    "optimizer.warmup_steps": 20, "optimizer.schedule": "constant", "loss.aggregation": "seq_mean_token_sum_norm",
    "loss.kl": "k3+",  # left out: their correction
    "loss.kl_corrected": True, "loss.kl_coef": 0.04, "loss.clip_high": 0.28, "loss.dual_clip": 4.0,
    "advantage.std": "none", "model.path": "Qwen/Qwen2-0.5B-Instruct", "model.lora.rank": 16, "model.lora.alpha": 64.0,
    "model.lora.layers": "q k", "rollout.max_new_tokens": 512, "data.train": "hf:trl-lib/tldr//train",
    "model.remat": True,
  }),
}  # fmt: skip


@pytest.fixture
def home(monkeypatch):
  monkeypatch.setenv("HOME", "/home/me")
  for name in "OUT MODEL HOME_OF_DATA ADDRESS NNODES MODEL_PATH TRAIN_BATCH_SIZE PPO_MINI_BATCH_SIZE CRITIC_LR".split():
    monkeypatch.delenv(name, raising=False)


def of_text(tmp_path, text, name="run.sh", changes=()):
  (tmp_path / name).write_text(text)
  return from_config.made_of([str(tmp_path / name)], list(changes))


def written(made, tmp_path):
  """(the file's config, its checked settings)."""
  file = tmp_path / "mine.py"
  file.write_text(translate.config_text(made, "run.sh"))
  assert max(map(len, file.read_text().splitlines())) <= 120
  config = config_lib.load(str(file))
  return config, config_lib.validate(config)


@pytest.mark.parametrize("files", CASES)
def test_no_field_of_a_public_script_is_unaccounted(files, home, tmp_path):
  changes, name, refused, wanted = CASES[files]
  made = from_config.made_of([str(SCRIPTS / file) for file in files.split()], changes)
  assert made.name == name
  assert made.of("unknown") == [] and {line.field for line in made.of("refused")} == refused
  assert sum(len(made.of(verdict)) for verdict in translate.VERDICTS) == len(made.lines) > 35
  assert all(line.ours or line.why for line in made.lines)
  config, run = written(made, tmp_path)
  learner_settings.from_config(run)  # the relations that are checked when a run starts
  assert {ours: fields_lib.at(run, ours) for ours in wanted} == wanted
  recipes.get(config.recipe, config.preset, **{k: v for k, v in config.switches.items() if v is not None})
  small = config_lib.load(str(tmp_path / "mine.py"), "smoke")
  assert small.steps == 2 and config_lib.validate(small).rollout.context == 2048


def test_a_shells_words_are_read_as_a_shell_reads_them(tmp_path, monkeypatch):
  monkeypatch.setenv("FROM_OUTSIDE", "x/y")
  monkeypatch.delenv("NOT_SET", raising=False)
  text = r"""
n=3; m=$((n * (2 + 1) / 2))      # 9 / 2 is 4 in a shell
long=( a.one=1
  a.two="two words" )            # an array over two lines
export PAIR='b.one=1 b.two=$n'
k=1; if true; then k=5; j=6; fi; j=7
more=( e.one=1 ); more+=( e.two=2 ); joined=a; joined+=b; empty=
python3 -m some.module "${long[@]}" "${more[@]}" $PAIR \
  c.joined=$joined c.nothing=$empty $empty c.m=${m} 'c.list=["x", "y"]' c.default=${NOT_SET:-${n}7} \
  c.quoted="a \"b\" $n" c.single='$n' ~d.gone +d.new=null ++d.forced=True c.k=$k c.j=$j c.lr=1e-6 \
  c.path=$FROM_OUTSIDE/z \
  c.command=$(date +%s) c.unset=$NOT_SET c.empty= c.twice=1 c.twice=2 # c.comment=1
"""
  (tmp_path / "run.sh").write_text(text)
  found = script_text.read(tmp_path / "run.sh")
  assert found.fields == {
    "module": "some.module", "a.one": 1, "a.two": "two words", "e.one": 1, "e.two": 2, "c.joined": "ab",
    "c.nothing": "", "b.one": 1, "b.two": "$n", "c.m": 4, "c.list": ["x", "y"], "c.default": 37, "c.quoted": 'a "b" 3',
    "c.single": "$n", "d.new": None, "d.forced": True, "c.k": 5, "c.j": 7, "c.lr": 1e-6, "c.path": "x/y/z",
    "c.command": "$(date +%s)", "c.unset": "$NOT_SET", "c.empty": "", "c.twice": 2,
  }  # fmt: skip
  assert [name for name, _ in found.unread] == ["$k"]


def test_a_reward_of_ones_own_is_refused_as_that_and_not_as_text_of_python():
  made = from_config.made_of([str(SCRIPTS / "trl_grpo.py")], ["num_processes=1"])
  assert "docs/howto/reward.md" in made.of("refused")[0].why


def test_what_the_shell_would_not_pass_on_is_refused(tmp_path):
  made = of_text(tmp_path, "python -m verl.trainer.main_ppo data.seed=1 \\\n  # a note \\\n  data.train_batch_size=8\n")
  (one,) = (line for line in made.of("refused") if line.field.startswith("data."))
  assert one.field == "data.train_batch_size=8" and "comment" in one.why
  made = of_text(tmp_path, "python -m verl.trainer.main_ppo data.seed=1 data.train_batch_size=$(cat size)\n")
  assert [x.value for x in made.of("refused") if "computes" in x.why] == ["$(cat size)"]
  name = "actor_rollout_ref.rollout.val_kwargs.n"  # it becomes no setting
  made = of_text(tmp_path, f"python -m verl.trainer.main_ppo data.seed=1 {name}=$UNSET trainer.project_name=$UNSET\n")
  assert [x.field for x in made.of("refused") if "computes" in x.why] == [name]


def test_values_of_yaml_may_name_others_also_of_another_file(tmp_path):
  (tmp_path / "a.yaml").write_text("data: {seed: '${data.n}', n: 3}\nactor_rollout_ref: {rollout: {n: '${x.y}'}}\n")
  (tmp_path / "b.yaml").write_text("x: {y: '${oc.select:x.z,4}'}\ndata: {shuffle: '${no.where}'}\n")
  made = from_config.made_of([str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")], [], "verl")
  assert made.given["seed"] == 3 and made.given["rollout.group_size"] == 4
  assert "data.shuffle" in {line.field for line in made.of("refused")}


def test_cispo_is_read_from_both_libraries(tmp_path):
  names = ("surrogate", "clip_low", "clip_high", "dual_clip", "aggregation")
  loss = lambda made: [getattr(written(made, tmp_path)[1].loss, name) for name in names]
  actor = "actor_rollout_ref.actor"
  given = f"{actor}.policy_loss.loss_mode=cispo {actor}.clip_ratio_low=10 {actor}.clip_ratio_high=0.2"
  text = f"python -m verl.trainer.main_ppo actor_rollout_ref.model.path=m {given}\n"
  made = of_text(tmp_path, text, changes=["questions=9999"])
  assert loss(made) == ["cispo", 10.0, 0.2, None, "token_mean"]
  text = "from trl import GRPOConfig\nGRPOConfig(loss_type='cispo', epsilon_high=5.0, max_steps=10)\n"
  assert loss(of_text(tmp_path, text, "run.py", ["num_processes=1"])) == ["cispo", 1.0, 4.0, None, "token_mean"]


def test_scripts_of_other_libraries_are_not_guessed_at(tmp_path):
  text = "python -m other.main trainer.algorithm.n=5 generator.batched=true environment.search.url=x data.seed=1\n"
  refused("only 2 of the script's 5 fields", of_text, tmp_path, text)


def test_python_is_read_and_never_run(tmp_path):
  text = """
import os
os.remove("nothing")
from trl import GRPOConfig
BATCH = 4
more = dict(beta=1)
GRPOConfig(per_device_train_batch_size=2 * BATCH, learning_rate=os.environ["LR"], max_steps=10, **more)
"""
  made = of_text(tmp_path, text, "run.py", ["num_processes=1"])
  assert made.given["rollout.prompts_per_step"] == 1  # 8 completions of one prompt
  assert {line.field for line in made.of("refused")} == {"learning_rate", "**more"}
  assert "learning_rate" not in made.given
  refused("no field", of_text, tmp_path, "print(1)\n", "empty.py")
  refused("cannot be read", of_text, tmp_path, "GRPOConfig(", "wrong.py")


@pytest.mark.parametrize("text, setting, wanted, refused", [  # refused: the field or name that is said instead
  ("A = 2\nA *= 4\nGRPOConfig(num_iterations=A)", "loss.epochs", None, "num_iterations"),
  ("A = 2\nif x:\n  A = 4\nGRPOConfig(num_iterations=A)", "loss.epochs", None, "num_iterations"),
  ("A = 2\ndef f(A):\n  GRPOConfig(num_iterations=A)", "loss.epochs", None, "num_iterations"),
  ("A: int = 2\nGRPOConfig(num_iterations=A)", "loss.epochs", 2, None),
  ("c = GRPOConfig(num_iterations=2)\nc.beta = 0.1", "loss.epochs", 2, "c.beta"),
  ("c, more = parse()\nc.beta = 0.1\nGRPOTrainer('m', args=c)", "model.path", "m", "c.beta"),
  ("GRPOConfig(num_iterations=2)\nGRPOConfig(beta=0.1)", "loss.kl_coef", None, "another GRPOConfig(…)"),
  ("GRPOConfig()\nGRPOTrainer('m', f)", "model.path", "m", "trainer_reward_funcs"),
  ("GRPOConfig()\nload_dataset('a', name='b', split='c')", "data.train", "hf:a/b/c", None),
  ("GRPOConfig()\nload_dataset('json', data_files='a.jsonl')", "data.train", "hf:json//train", "dataset_data_files"),
  ("GRPOConfig()\nLoraConfig(r=4)", "model.lora.layers", "q v", None),  # PEFT's default
  ("GRPOConfig(lr_scheduler_type='inverse_sqrt')", "optimizer.warmup_steps", 0, "lr_scheduler_type"),
  ("GRPOConfig(lr_scheduler_kwargs=dict(num_cycles=2))", "x", None, "lr_scheduler_kwargs"),
  ("GRPOConfig(lr_scheduler_type='cosine', lr_scheduler_kwargs={'num_cycles': 2})", "x", None,
   "lr_scheduler_kwargs.num_cycles"),
  ("GRPOConfig(model_init_kwargs=dict(revision='v2'))", "x", None, "model_init_kwargs"),
  ("GRPOConfig(model_init_kwargs={'revision': 'v2'})\nGRPOTrainer('m')", "model.path", "m@v2", None),
  ("GRPOConfig(system_prompt='Think.')", "x", None, "system_prompt"),
  ("GRPOConfig(chat_template='{{ x }}')", "x", None, "chat_template"),
  ("GRPOConfig(use_vllm=True, vllm_importance_sampling_mode='token_truncate')", "loss.importance_cap", 3.0, None),
  ("GRPOConfig(mask_truncated_completions=True)", "loss.mask_truncated", True, None),
  ("GRPOConfig(loss_type='luspo')", "loss.aggregation", "seq_mean_token_sum", None),
  ("GRPOConfig(loss_type='dr_grpo', entropy_coef=0.01)", "x", None, "entropy_coef"),
  ("GRPOConfig(num_iterations=2, gradient_accumulation_steps=4, steps_per_generation=2)", "x", None,
   "num_iterations"),
])  # fmt: skip
def test_python_says_what_it_cannot_read(text, setting, wanted, refused, tmp_path):
  made = of_text(tmp_path, text, "run.py", ["num_processes=8", "max_steps=10"])
  assert (made.defaults | made.given).get(setting) == wanted
  assert [line.field for line in made.of("refused")] == ([refused] if refused else [])


def test_an_epochs_share_ends_with_a_whole_step(tmp_path):
  made = of_text(tmp_path, "GRPOConfig(num_train_epochs=0.5)", "run.py", ["num_processes=1", "questions=5"])
  assert made.given["steps"] == 3


@pytest.mark.parametrize("text, wanted, refused", [
  ("N=${1:-8}\nRUN=$N", 8, []), ("RUN=$1", None, ["data.train_batch_size"]), ("mkdir -p x && N=4\nRUN=$N", 4, []),
  ('N=8\n[ "$X" = 1 ] && N=4\nRUN=$N', None, ["$N"]), ("RUN=8\nRUN=4", 8, ["another verl.trainer.main_ppo"]),
])  # fmt: skip
def test_a_shells_arguments_tests_and_second_commands(text, wanted, refused, tmp_path):
  command = "python -m verl.trainer.main_ppo trainer.total_training_steps=9 data.train_batch_size"
  made = of_text(tmp_path, text.replace("RUN", command))
  assert [line.field for line in made.of("refused")] == refused
  assert wanted is None or made.given["rollout.prompts_per_step"] == wanted


def test_torchruns_processes_are_of_each_machine(tmp_path):
  text = "torchrun --nnodes={} --nproc-per-node 8 --node_rank=$RANK grpo.py --max_steps 3\n"
  assert of_text(tmp_path, text.format(2)).given["rollout.prompts_per_step"] == 16
  assert "num_processes" in [line.field for line in of_text(tmp_path, text.format("1:4")).of("refused")]


def test_an_unknown_field_is_named_with_the_nearest_known_one(tmp_path):
  made = of_text(tmp_path, "python -m verl.trainer.main_ppo data.train_batchsize=8 actor_rollout_ref.rollout.n=5\n")
  (one,) = made.of("unknown")
  assert one.field == "data.train_batchsize" and one.why.endswith("data.train_batch_size")
  assert not made.complete and "data.train_batchsize" in from_config.account(made)
  assert "data.train_batchsize=8" in translate.config_text(made, "run.sh")


CORRECTION = "algorithm.rollout_correction"


@pytest.mark.parametrize("given, said", [  # the last of these fields is refused
  ("algorithm.adv_estimator=remax", "leave_one_out"), ("algorithm.adv_estimator=made_up", "known are gae, grpo"),
  ("actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov", "clip"),
  ("custom_reward_function.path=r.py", "reward.md"), ("reward_model.enable=True", "judge"),
  ("data.shuffle=False", "random order"), ("critic.model.path=other", "copy of the policy"),
  ("actor_rollout_ref.rollout.val_kwargs.temperature=0.6", "greedy"),
  ("max_turns=2 retriever.topk=3 actor_rollout_ref.actor.state_masking=True algorithm.gamma=0.9", "tokens of results"),
  ("actor_rollout_ref.actor.clip_ratio=0.1", "changes nothing there"),
  ("algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=2 actor_rollout_ref.actor.grad_clip=0.5", "alone"),
  ("actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1 actor_rollout_ref.actor.optim.lr_warmup_steps=0", "ratio"),
  ("critic.optim.lr_scheduler_type=cosine", "policy's"), ("critic.optim.betas=[0.9,0.95]", "policy's"),
  ("actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum critic.loss_agg_mode=seq-mean-token-sum", "mean over tok"),
  (f"{CORRECTION}.rollout_is=token {CORRECTION}.rollout_is_threshold=0.5_5.0", "importance_floor"),
  (f"{CORRECTION}.rollout_is=token {CORRECTION}.rollout_is_batch_normalize=True", "not divided"),
  ("algorithm.kl_ctrl.kl_coef=0.01", "until verl 0.2"),
  ("actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_type=kl", "pulls nowhere"),
  ("actor_rollout_ref.actor.use_kl_loss=True algorithm.use_kl_in_reward=True", "one penalty"),
  ("actor_rollout_ref.actor.policy_loss.loss_mode=gspo actor_rollout_ref.actor.loss_agg_mode=token-mean",
   "verl 0.9 averages gspo as this says"),
])  # fmt: skip
def test_what_has_no_equal_is_refused_with_what_to_do(given, said, tmp_path):
  text = f"python -m verl.trainer.main_ppo actor_rollout_ref.model.path=m {given}\n"
  made = of_text(tmp_path, text, changes=["questions=9999"])
  (one,) = made.of("refused")
  assert one.field == given.split()[-1].split("=")[0] and said in one.why


TURNS = "actor_rollout_ref.rollout.multi_turn.enable=True actor_rollout_ref.rollout.multi_turn"


@pytest.mark.parametrize("given, setting, wanted", [
  ("data.train_max_samples=3000", "steps", 60),  # 30 epochs of 3000 // 1024
  ("trainer.total_epochs=2 trainer.total_training_steps=1000", "steps", 18),  # 2 epochs of 9999 // 1024 end before
  ("algorithm.filter_groups.enable=True", "rollout.filter.metric", "total"),  # the reward, by default
  ("actor_rollout_ref.model.tokenizer_path=other", "prompting.tokenizer", "other"),
  ("trainer.critic_warmup=5", "critic.alone_steps", 16),  # the policy learns from step 5 on; 4 updates a step
  (f"{TURNS}.max_assistant_turns=6 {TURNS}.max_user_turns=2", "switches.max_turns", 2),  # the smaller limit
  (f"{TURNS}.max_assistant_turns=2 {TURNS}.max_user_turns=9", "switches.max_turns", 1),
  ("actor_rollout_ref.actor.policy_loss.loss_mode=gspo", "loss.dual_clip", None),  # theirs has none
  ("actor_rollout_ref.actor.clip_ratio=0.3 actor_rollout_ref.actor.clip_ratio_low=null", "loss.clip_low", 0.3),
  ("algorithm.filter_groups.enable=True algorithm.filter_groups.metric=reward", "rollout.filter.metric", "total"),
  ("reward.reward_kwargs.overlong_buffer_cfg.enable=True reward.reward_kwargs.max_resp_len=400",
   "reward.overlong_limit", 400),
  ("do_search=false actor_rollout_ref.rollout.n=5 max_turns=2 retriever.url=x", "rollout.group_size", 5),
])  # fmt: skip
def test_single_fields_of_verl_mean_what_they_mean_there(given, setting, wanted, tmp_path):
  text = f"python -m verl.trainer.main_ppo actor_rollout_ref.model.path=m {given}\n"
  made = of_text(tmp_path, text, changes=["questions=9999"])
  assert (made.defaults | made.given).get(setting) == wanted


def test_a_yaml_that_builds_on_another_needs_it(tmp_path):
  text = "defaults: [{}, _self_]\nactor_rollout_ref: {{model: {{path: m}}}}\ntrainer: {{total_training_steps: 3}}\n"
  assert of_text(tmp_path, text.format("ppo_trainer"), "run.yaml").complete
  (line,) = of_text(tmp_path, text.format("mine"), "run.yaml").of("refused")
  assert line.field == "defaults" and "builds on another" in line.why


def test_search_r1s_reward_of_a_wrong_answer_needs_one_of_the_structure(tmp_path):
  text = (SCRIPTS / "search_r1_format.sh").read_text().replace("structure_format_score=0.2", "structure_format_score=0")
  (one,) = of_text(tmp_path, text).of("refused")
  assert one.field == "reward_model.final_format_score" and "set that" in one.why


@pytest.mark.parametrize("given, prompts, minibatches, epochs, steps", [
  ("", 8, 1, 1, 120),  # 4 · 4 · 4 completions of 8 samples; as many updates as steps
  ("steps_per_generation=8", 16, 2, 1, 60),
  ("steps_per_generation=2", 8, 1, 1, 120),  # an update joins two generations of the same weights
  ("generation_batch_size=256", 32, 4, 1, 30),
  ("num_iterations=3", 8, 1, 3, 40),
])  # fmt: skip
def test_trls_batches_count_completions(given, prompts, minibatches, epochs, steps, tmp_path):
  base = "num_processes: 4\nper_device_train_batch_size: 4\ngradient_accumulation_steps: 4\nmax_steps: 120\n"
  made = of_text(tmp_path, base + given.replace("=", ": "), "run.yaml")
  run = written(made, tmp_path)[1]
  assert made.complete
  found = (run.rollout.prompts_per_step, run.loss.minibatches, run.loss.epochs, run.steps)
  assert found == (prompts, minibatches, epochs, steps)


def test_flags_of_a_launcher_and_of_a_script_are_told_apart(tmp_path):
  text = (
    "accelerate launch --num_processes 2 --config_file zero3.yaml grpo.py --bf16 --max_steps=10 "
    "--learning_rate 2e-6 --report_to wandb mlflow --no_gradient_checkpointing "
    "--lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs '{\"min_lr\": 5e-7}' "
    "--model_name_or_path m --model_revision v2\n"
  )
  made = of_text(tmp_path, text)
  assert made.complete and made.name == "TRL 1.16"
  wanted = {
    "optimizer.learning_rate": 2e-6, "optimizer.final_share": 0.25, "log.wandb": True, "log.mlflow": True,
    "model.remat": False, "model.path": "m@v2",
  }  # fmt: skip
  assert {name: made.given[name] for name in wanted} == wanted
  assert [line.field for line in made.of("aside")] == ["launcher.config_file", "module"]
  trl = of_text(tmp_path, "trl grpo --config grpo.yaml --num_processes 1 --max_steps 3\n")
  assert [line.field for line in trl.of("refused")] == ["config"]


@pytest.mark.parametrize("name", translate.TABLES)
def test_a_table_names_settings_and_fields_that_exist(name):
  one = translate.table(name)
  run = settings.Settings()
  switches = {key for room in recipes.RECIPES.values() for key in fields_lib.kinds(room.Switches)}
  for ours in (*one["settings"], *one["sizes"], *(key.split("=")[0] for key in one["notes"])):
    switch = ours.partition("switches.")[2]
    assert switch in switches or (not switch and fields_lib.at(run, ours) is not run), ours
  read = {field for other in translate.TABLES for field in translate._names(translate.table(other) | {"defaults": {}})}
  unused = one["defaults"].keys() - read
  assert not unused, f"no formula reads these defaults: {unused}"
  texts = " ".join(str([*one[part].values()]) for part in ("refuse", "aside", "notes", "instead"))
  for path in re.findall(r"config\.([a-z_]+(?:\.[a-z_0-9]+)+)", texts):
    assert path.startswith("switches.") or fields_lib.at(run, path) is not run, path
  for page in re.findall(r"docs/[\w/]+\.md", texts):
    assert (pathlib.Path(__file__).parents[2] / page).is_file(), page


def installed(library, path):
  """A file of an installed library, which is read and never imported."""
  spec = importlib.util.find_spec(library)
  if spec is None or spec.origin is None:
    pytest.skip(f"{library} is not installed (tests/wheels.txt)")
  return pathlib.Path(spec.origin).parent / path


def test_every_field_that_verl_prints_is_known_and_its_defaults_are_the_tables():
  file = installed("verl", "trainer/config/_generated_ppo_trainer.yaml")
  made = from_config.made_of([str(file)], ["questions=99999"])
  assert made.name.startswith("verl") and len(made.lines) > 850 and made.complete, made.of("unknown")
  theirs, ours = {line.field: line.value for line in made.lines}, translate.table("verl")["defaults"]
  assert {field: theirs.get(field) for field in ours} == ours


def declared(library, path, name):
  """Fields of a dataclass of an installed library → their defaults as text."""
  tree = ast.parse(installed(library, path).read_text(encoding="utf-8"))
  body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
  for node in (node for node in body if isinstance(node, ast.AnnAssign)):
    call = node.value
    made = [word.value for word in call.keywords if word.arg == "default"] if isinstance(call, ast.Call) else [call]
    yield ast.unparse(node.target), ast.unparse(made[0]) if made and made[0] else None


@pytest.fixture
def of_trl():
  """The fields of TRL's GRPOConfig, and of what `trl grpo` reads beside it → their defaults as text."""
  found = {}
  for library, path, name in (
    ("transformers", "training_args.py", "TrainingArguments"),
    ("trl", "trainer/base_config.py", "_BaseConfig"),
    ("trl", "trainer/model_config.py", "ModelConfig"),
    ("trl", "scripts/utils.py", "ScriptArguments"),
    ("trl", "scripts/grpo.py", "GRPOScriptArguments"),
    ("trl", "trainer/grpo_config.py", "GRPOConfig"),
  ):
    found |= dict(declared(library, path, name))
  return found


def test_trls_own_fields_and_defaults_are_the_tables(of_trl):
  one = translate.table("trl")
  names = translate._names(one)
  unknown = [field for field in of_trl if field not in names and translate._aside(field, one) is None]
  assert len(of_trl) > 200 and not unknown
  ours = {field: str(value) for field, value in one["defaults"].items() if field in of_trl}
  apart = {field for field, value in ours.items() if of_trl[field].strip("'") != value}
  assert apart == {"optim"}  # theirs is a function's value: a kind of AdamW


def test_nothing_is_refused_of_trl_as_it_comes(of_trl, tmp_path):
  """As in the JSON that a TrainingArguments writes of itself."""
  values = {}
  for field, default in of_trl.items():
    try:
      values[field] = ast.literal_eval(default)
    except (ValueError, TypeError):
      continue
  text = json.dumps(values | dict(max_steps=10, num_processes=1, model_name_or_path="m"), indent="\t")
  made = of_text(tmp_path, text, "arguments.json")
  assert len(made.lines) > 180 and made.complete, made.of("refused")
  run = written(made, tmp_path)[1]
  assert (run.optimizer.schedule, run.optimizer.final_share, run.rollout.max_new_tokens) == ("linear", 0.0, 512)


def test_a_formula_has_nothing_but_its_operations():
  get = {"a.b": 3, "c": None}.__getitem__
  assert formula.evaluate("(a.b + 1) // 2 if c is None else {1: 2}[c]", get) == 2
  assert formula.evaluate("c and c.d", get) is None  # what the value does not depend on is not read
  for text in ("__import__('os')", "a.b()", "[x for x in a.b]", "lambda: 1", "a b"):
    refused("no formula", formula.evaluate, text, get)


def test_what_depends_on_a_refused_field_is_refused_with_it(home):
  """A share of an unknown number of steps is no field without an effect."""
  for file, field, of in (
    ("verl_search.sh", "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio", "trainer.total_epochs"),
    ("trl_grpo.yaml", "warmup_ratio", "num_train_epochs"), ("trl_grpo.py", "per_device_train_batch_size", "num_proc"),
  ):  # fmt: skip
    (line,) = (one for one in from_config.made_of([str(SCRIPTS / file)]).lines if one.field == field)
    assert line.verdict == "refused" and line.why.startswith(f"what it means depends on {of}")
  lines = from_config.made_of([str(SCRIPTS / "trl_grpo.yaml")]).of("refused")
  assert "max_steps" not in [one.field for one in lines]  # -1: not given


def test_the_command_writes_a_file_and_its_status_says_whether_all_was_taken(tmp_path, monkeypatch, capsys, home):
  def run(*words):
    monkeypatch.setattr(sys, "argv", ["ragrl from-config", *map(str, words)])
    return from_config.main(), capsys.readouterr().out

  out = tmp_path / "mine.py"
  status, said = run(SCRIPTS / "search_r1_grpo.sh", "--out", out)
  assert status == 0 and said.endswith(f"{out}\n") and config_lib.load(str(out)).steps == 1005
  assert said.startswith("Read as Search-R1 v0.3: 52 fields: aside 21, kept 20, mapped 11, refused 0, unknown 0.")
  assert "\n  config.rollout.top_p=0.95: their yaml's default" in said  # the script leaves it out
  assert "weight_decay=0.1: norms and biases never decay" in run(SCRIPTS / "verl_dapo.sh")[1]  # kept, with a note
  status, said = run(SCRIPTS / "verl_grpo.sh")
  assert status == 1 and "--set questions=N" in said
  assert run(SCRIPTS / "verl_grpo.sh", "--anyway")[0] == 0
  assert run(SCRIPTS / "verl_grpo.sh", "--set", "questions=7473")[0] == 0
  refused("FIELD=VALUE", run, SCRIPTS / "verl_grpo.sh", "--set", "questions")
  refused(r"mine\.txt\.py", run, SCRIPTS / "verl_grpo.sh", "--out", tmp_path / "mine.txt")
