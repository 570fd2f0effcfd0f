import pytest
from refusals import refused

from ragrl_jax import config as config_lib, settings as run_settings
from ragrl_jax.learner import settings
from ragrl_jax.learner.settings import OptimizerSettings, Settings
from ragrl_jax.settings.learning import Teacher


@pytest.mark.parametrize("made, how, word", [
  (Settings, dict(kl="k1"), "does not depend on the reference"), (Settings, dict(kl="k9"), "^config.loss.kl='k9'"),
  (Settings, dict(aggregation="mean"), "^config.loss.aggregation='mean'"), (Settings, dict(epochs=0), "at least 1"),
  (Settings, dict(minibatches=0), "at least 1"), (Settings, dict(aggregation="seq_mean_token_sum_norm"), "needs norm"),
  (Settings, dict(kl_coef=-1.0), "^config.loss.kl_coef=-1.0: "), (Settings, dict(objective="dpo"), "policy, sft"),
  (Settings, dict(kl="k3", kl_in="reward"), "needs advantages"),
  (Settings, dict(critic=settings.CriticSettings(kind="own")), "nothing else does"),
  (Settings, dict(advantage=settings.AdvantageSettings(kind="gae")), "needs a critic"),
  (Settings, dict(teacher=Teacher(path="x", kind="k1")), "kind='k1' is part of the reward"),
  (Settings, dict(objective="sft", teacher=Teacher(path="policy")), "cannot teach itself"),
  (Settings, dict(objective="sft", teacher=Teacher(path="x", episodes="failed")), "must be 'all' in fine-tuning"),
  (OptimizerSettings, dict(kind="sgd"), "^config.optimizer.kind='sgd': .*'adamw' or 'muon'"),
  (OptimizerSettings, dict(schedule="rising"), "'constant', 'cosine', 'linear' or 'inverse_sqrt'"),
  (OptimizerSettings, dict(warmup_steps=11, total_steps=10), "warmup_steps=11"),
  (settings.CriticSettings, dict(kind="none", alone_steps=2), "config.critic.alone_steps=2"),
  (settings.CriticSettings, dict(kind="shared", alone_steps=2), "config.critic.alone_steps=2"),
])  # fmt: skip
def test_invalid_settings_are_refused(made, how, word):
  refused(word, made, **how)


def test_settings_come_from_the_config():
  config = config_lib.default_config()
  config.loss.update(dict(kl="k2", kl_coef=0.04, clip_high=0.28, epochs=2))
  config.rollout.temperature = 0.9
  config.learner.row_lengths = (128, 512)
  got = settings.from_config(run_settings.of(config))
  assert (got.kl, got.kl_coef, got.clip_high, got.temperature, got.norm) == ("k2", 0.04, 0.28, 0.9, 512.0)
  assert got.needs_reference and got.scores_old and got.steps == 2
  assert settings.optimizer_from_config(run_settings.of(config)).total_steps == 200  # 100 batches, two steps each
  sft = settings.from_config(run_settings.of(config), objective="sft")
  assert (sft.kl, sft.temperature, sft.needs_reference) == ("none", 1.0, False)
  assert settings.optimizer_from_config(run_settings.of(config), total_steps=7).total_steps == 7
  config.advantage.kind = "gae"
  config.optimizer.kind = "muon"
  config.critic.update(dict(kind="own", alone_steps=20, learning_rate=3e-4, warmup_steps=5, clip=0.2, coef=0.7))
  assert settings.optimizer_from_config(run_settings.of(config)).total_steps == 180  # its rate falls over its own steps
  critic = settings.from_config(run_settings.of(config)).critic
  its = OptimizerSettings("adamw", learning_rate=3e-4, warmup_steps=5, total_steps=200)
  assert critic == settings.CriticSettings("own", its, clip=0.2, coef=0.7, alone_steps=20)


def test_the_critic_cannot_learn_alone_to_the_end():
  config = config_lib.default_config()
  config.advantage.kind = "gae"
  config.critic.update(dict(kind="own", alone_steps=config.steps))
  says = "config.critic.alone_steps=100: the run has only 100 optimiser steps"
  refused(says, settings.from_config, run_settings.of(config))
  config.optimizer.warmup_steps = 2  # too long for the one step that is left: not what has to be said
  refused(says, settings.from_config, run_settings.of(config))
  config.critic.update(dict(kind="shared", alone_steps=99))
  refused("config.critic.alone_steps=99 with kind='shared'", settings.from_config, run_settings.of(config))
  config.critic.update(dict(kind="own", alone_steps=100))
  config.steps, config.optimizer.warmup_steps = 101, 0
  run = run_settings.of(config)
  assert settings.optimizer_from_config(run).total_steps == 1 and settings.from_config(run)


def test_the_base_is_a_reference_only_of_adapters_and_rows_with_shared_prompts_are_as_long_as_kernels_accept():
  config = config_lib.default_config()
  config.loss.update(dict(kl="k3", kl_coef=0.1, reference="base"))
  refused("config.loss.reference='base' without adapters", settings.from_config, run_settings.of(config))
  config.model.lora.rank = 4
  assert settings.from_config(run_settings.of(config)).reference == "base"
  config = config_lib.default_config()
  config.learner.update(dict(row_lengths=(131_072,), share_prompts=True))
  refused("share_prompts=True with row_lengths=.*65536 tokens", settings.from_config, run_settings.of(config))
  config.learner.share_prompts = False
  assert settings.from_config(run_settings.of(config)).norm == 131_072.0
