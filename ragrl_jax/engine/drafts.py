"""Drafts of the next tokens by prompt lookup: the tokens that followed an earlier occurrence of the newest tokens.

Quotes, citations and answers copy passages, so the next tokens are often in the context already. A draft needs no
model: it is a search over the conversation's token ids, on the device. Source: prompt lookup decoding, which is
speculative decoding (arXiv 2211.17192) without a draft model.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

LONGEST = 4  # newest tokens that are compared; more would rarely change the choice
SHORTEST = 1  # newest tokens that must match; a draft's places are computed anyway, so a weak match costs nothing


def look_up(
  ids: Int32[Array, "W C"], newest: Int32[Array, "W"], size: int
) -> tuple[Int32[Array, "W k"], Bool[Array, "W"]]:
  """Drafts the tokens that may follow the newest token of each conversation.

      positions  0 1 2 3 4 5 6        newest = 6, size = 4
      ids        a b c d x b c        b c is also at 1 2, so the draft is d x b c

  It chooses the earlier place where most of the newest tokens match (at most LONGEST), and the last of equal ones. If
  the text ends before the draft is complete, the draft repeats from that place: after "a b a b" it is a b a b.

  Args:
    ids: token ids by position. Those after `newest` are ignored.
    newest: position of each conversation's newest token.
    size: k, the number of tokens of a draft, at least 1.

  Returns:
    (draft, found): the tokens, and whether there is a matching place. Without one, the draft has no meaning.
  """
  positions = jnp.arange(ids.shape[1], dtype=jnp.int32)[None]
  same = (positions < newest[:, None]) & (ids == _at(ids, newest[:, None]))
  run = same.astype(jnp.int32)  # how many of the newest tokens match at a place and before it
  for back in range(1, LONGEST):
    # Shifted by `back`, so that column p holds the token at p - back. Places before the first token match nothing.
    before = jnp.pad(ids, ((0, 0), (back, 0)), constant_values=-1)[:, : ids.shape[1]]
    same &= before == _at(ids, jnp.maximum(newest - back, 0)[:, None])
    run += same.astype(jnp.int32)
  place = jnp.argmax(jnp.where(run >= SHORTEST, run * ids.shape[1] + positions, -1), axis=1).astype(jnp.int32)[:, None]
  period = jnp.maximum(newest[:, None] - place, 1)
  ahead = jnp.arange(size, dtype=jnp.int32)[None]
  return _at(ids, place + 1 + ahead % period), (run >= SHORTEST).any(axis=1)


def _at(ids, positions):
  return jnp.take_along_axis(ids, positions, axis=1, mode="clip")
