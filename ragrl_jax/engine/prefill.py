"""Adds missing tokens to the cache. Each call serves all replicas. The engine's step 2."""

from collections.abc import Sequence

from ragrl_jax.engine.conversations import ConversationState
from ragrl_jax.engine.counters import Counters
from ragrl_jax.engine.kv_cache import Extension, KVCache
from ragrl_jax.engine.replica import Replica
from ragrl_jax.engine.sizes import Sizes


def run(replicas: Sequence[Replica], cache: KVCache, sizes: Sizes, counters: Counters) -> bool:
  """Prefills prompts, because samples wait for them, then conversations. Returns whether there was anything to do."""
  before = counters.extensions
  for width in sizes.widths:  # the widest extensions first; a narrower one may take the rest
    while any(fills := [replica.fills(width) for replica in replicas]):
      _extend(replicas, cache, fills, width, counters)
  for replica in replicas:
    replica.join()
  for width in sizes.widths:
    while any(batches := [replica.batch(width) for replica in replicas]):
      _extend(replicas, cache, batches, width, counters)
      for replica, batch in zip(replicas, batches):
        replica.extended(batch)
  return counters.extensions > before


def run_copies(replicas: Sequence[Replica], cache: KVCache) -> None:
  """Copies the pages that replicas have listed. It runs before any program that writes to pages."""
  if any(pairs := [replica.copies for replica in replicas]):
    cache.copy(pairs)
    for replica in replicas:
      replica.copies = []


def extension(conversation: ConversationState, width: int) -> Extension:
  """The next tokens of a conversation, at most `width`."""
  # Of ids a b c d e with a cached, a width of 2 takes b c. The newest token, e, is never taken.
  count = min(conversation.missing, width)
  tokens = conversation.ids[conversation.cached : conversation.cached + count]
  return Extension(tokens, conversation.cached, conversation.pages)


def _extend(replicas, cache, batches: Sequence[Sequence[ConversationState]], width: int, counters: Counters) -> None:
  run_copies(replicas, cache)
  extensions = [[extension(one, width) for one in batch] for batch in batches]
  cache.extend(extensions, width)
  for batch, asked in zip(batches, extensions):
    for conversation, one in zip(batch, asked):
      conversation.cached += len(one.tokens)
      counters.prefilled_tokens += len(one.tokens)
  counters.extensions += 1
