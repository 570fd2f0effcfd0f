"""The settings of a checkpoint's run as a config file: `ragrl evaluate` uses it where no --config is given."""

from ragrl_jax import evaluate


def get_config(checkpoint: str):
  """The settings of the run that has this checkpoint."""
  return evaluate.config_of(checkpoint)
