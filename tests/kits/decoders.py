"""The decoder of a config."""

from ragrl_jax import settings
from ragrl_jax.run import player, prepared


def made(config):
  """(decoder, its shape, the tokenizer, the typed settings), on one device."""
  config = settings.of(config)
  tokenizer = prepared.tokenizer(config, None)
  return *player.model(config, tokenizer, prepared.shape(config, tokenizer.vocab_size)), tokenizer, config
