"""The settings for serving a checkpoint, as a config file: those of its run, or the defaults."""

from ragrl_jax import config as config_lib
from ragrl_jax.jobs import evaluate


def get_config(checkpoint: str):
  """The settings of the checkpoint's run, or else the defaults with a longer context."""
  if evaluate.run_of(checkpoint) is not None:
    return evaluate.config_of(checkpoint)
  config = config_lib.default_config()
  config.rollout.context = 4096
  return config
