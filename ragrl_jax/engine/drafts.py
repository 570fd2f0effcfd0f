"""Drafts of the next tokens by prompt lookup: what followed the last time that the conversation ended as it does now.

Quotes, citations and answers copy passages, so what a model writes next often stands in its own context. A draft costs
no model: it is a search over the conversation's token ids, on the device. Source: prompt lookup decoding, a case of
speculative decoding (arXiv 2211.17192) without a draft model.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

LONGEST = 4  # newest tokens that are compared; more of them would seldom choose another place
SHORTEST = 1  # newest tokens that must be the same: the places of a draft are computed whether it is good or not


def look_up(
  ids: Int32[Array, "W C"], newest: Int32[Array, "W"], size: int
) -> tuple[Int32[Array, "W k"], Bool[Array, "W"]]:
  """Drafts what may follow the newest token of each conversation.

      positions  0 1 2 3 4 5 6        newest = 6, size = 4
      ids        a b c d x b c        b c stood at 1 2 already, so the draft is d x b c

  Of the earlier places whose tokens are the same as the newest ones, it takes one where most are (at most LONGEST), and
  of these the last. If the text ends before the draft does, it goes on from that place again: after "a b a b" come
  a b a b.

  Args:
    ids: token ids by position; those after `newest` are not looked at.
    newest: position of each conversation's newest token.
    size: k, tokens of a draft, at least 1.

  Returns:
    (draft, found): the tokens, and whether there is such a place. Without one the draft means nothing.
  """
  positions = jnp.arange(ids.shape[1], dtype=jnp.int32)[None]
  same = (positions < newest[:, None]) & (ids == _at(ids, newest[:, None]))
  run = same.astype(jnp.int32)  # how many of the newest tokens stand at a place and before it
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
