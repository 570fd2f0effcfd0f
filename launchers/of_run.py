"""The settings of the run that a checkpoint belongs to, as a config file: what evaluate.py takes without --config."""

from ragrl_jax import evaluate


def get_config(checkpoint: str):
  return evaluate.config_of(checkpoint)
