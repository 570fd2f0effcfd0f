"""Shared by the tests of attention over pages: tokens spread over pages, and dense attention as reference."""

import os

import numpy as np

INTERPRET = os.environ["JAX_PLATFORMS"] == "cpu"  # with JAX_PLATFORMS=cuda the tests run the kernel itself


def scattered(H, KV, h, page, t, lengths):
  """(q, k, v, pages, table) of sequences with `lengths` tokens before the call's t tokens.

  q is [n, t, H, h]; k and v are [n, T, KV, h], in the order of the tokens. Pages contain NaN wherever no sequence has a
  token, and table entries beyond a sequence's tokens name a page of NaN.
  """
  draw = np.random.default_rng(0)
  n, N = len(lengths), -(-(max(lengths) + t) // page) + 1
  q = draw.normal(size=(n, t, H, h)).astype(np.float32)
  k, v = (draw.normal(size=(n, N * page, KV, h)).astype(np.float32) for _ in range(2))
  free = list(draw.permutation(n * N + 1))
  pages, table = np.full((n * N + 1, 2, KV, page, h), np.nan, np.float32), np.full((n, N), free.pop(), np.int32)
  for i, length in enumerate(lengths):
    for j in range(-(-(length + t) // page)):
      table[i, j] = free.pop()
      real = slice(j * page, min((j + 1) * page, length + t))
      for which, x in enumerate((k, v)):
        pages[table[i, j], which, :, : real.stop - real.start] = x[i, real].transpose(1, 0, 2)
  return q, k, v, pages, table


def dense(q, k, v, lengths, window=10**9):
  """Causal attention to the nearest `window` tokens, with every head and score written out, in float64."""
  n, t, H, h = q.shape
  out = np.zeros(q.shape)
  for i, head in np.ndindex(n, H):
    kv = head // (H // k.shape[2])
    for j in range(t):
      end = lengths[i] + j + 1
      seen = slice(max(0, end - window), end)
      scores = k[i, seen, kv].astype(np.float64) @ q[i, j, head] * h**-0.5
      weights = np.exp(scores - scores.max())
      out[i, j, head] = weights / weights.sum() @ v[i, seen, kv]
  return out
