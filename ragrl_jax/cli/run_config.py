"""The settings of a checkpoint's run as a config file, which `ragrl evaluate` uses without --config."""

from ragrl_jax.jobs import evaluate


def get_config(checkpoint: str):
  """The settings of the run that has this checkpoint."""
  return evaluate.config_of(checkpoint)
