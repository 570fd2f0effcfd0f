"""Prefill: adds the tokens that conversations lack to the cache, on all replicas in the same calls."""

from collections.abc import Sequence

from ragrl_jax.engine.kv_cache import Extension, KVCache
from ragrl_jax.engine.lanes import Counters
from ragrl_jax.engine.messages import ConversationState
from ragrl_jax.engine.replica import Replica, run_copies
from ragrl_jax.engine.sizes import Sizes


def prefill(replicas: Sequence[Replica], cache: KVCache, sizes: Sizes, counters: Counters) -> bool:
  """Adds missing tokens to the cache: prompts first, because samples wait for them. Returns whether any were."""
  before = counters.extensions
  for width in sizes.widths:  # the widest extensions first; a narrower one may take the rest
    while any(fills := [replica.fills(width) for replica in replicas]):
      _extend(replicas, cache, fills, width, sizes, counters)
  for replica in replicas:
    replica.join()
  for width in sizes.widths:
    while any(batches := [replica.batch(width) for replica in replicas]):
      _extend(replicas, cache, batches, width, sizes, counters)
      for replica, batch in zip(replicas, batches):
        replica.extended(batch)
  return counters.extensions > before


def extension(conversation: ConversationState, width: int) -> Extension:
  """The next tokens of a conversation, at most `width`."""
  # Of ids a b c d e with a cached, a width of 2 takes b c. The newest token, e, is never taken.
  count = min(conversation.missing, width)
  tokens = conversation.ids[conversation.cached : conversation.cached + count]
  return Extension(tokens, conversation.cached, conversation.pages, conversation.slot)


def _extend(
  replicas, cache, batches: Sequence[Sequence[ConversationState]], width: int, sizes: Sizes, counters: Counters
) -> None:
  run_copies(replicas, cache)
  extensions = [[extension(item, width) for item in batch] for batch in batches]
  cache.extend(extensions, width)
  for batch, batch_extensions in zip(batches, extensions):
    for conversation, item in zip(batch, batch_extensions):
      conversation.cached += len(item.tokens)
      counters.prefilled_tokens += len(item.tokens)
  counters.extensions += 1
  counters.prefill_places += len(batches) * sizes.widths[width] * width
