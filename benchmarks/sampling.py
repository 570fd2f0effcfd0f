"""The cost of top-k and top-p, compared with a sort of the vocabulary and with sampling from all of it.

    python benchmarks/sampling.py [--rows 16] [--vocabulary 151936] [--clock cpu]

The sort is the earlier method: it sorts each row's logits with their ids, and then computes running sums. Both sides
must keep the same tokens, which the benchmark checks. The sides alternate, and each side's best round counts. On a busy
machine, compare CPU seconds.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

from ragrl_jax.core import sampling


def by_sorting(scaled, top_k, top_p):
  """`sampling.keep` by a stable sort."""
  vocabulary = scaled.shape[1]
  ids = jnp.broadcast_to(jnp.arange(vocabulary, dtype=jnp.int32)[None], scaled.shape)
  falling, order = jax.lax.sort((-scaled, ids), dimension=1, num_keys=1, is_stable=True)
  limit = jnp.where(top_k > 0, top_k, vocabulary)
  within = jnp.arange(vocabulary)[None] < limit[:, None]
  mass = jnp.where(within, jnp.exp(falling[:, :1] - falling), 0.0)
  before = jnp.cumsum(mass, axis=1) - mass
  within = within & ((before < (top_p * mass.sum(axis=1))[:, None]) | (top_p >= 1)[:, None])
  last = jnp.maximum(within.sum(axis=1) - 1, 0)[:, None]
  edge, edge_id = (jnp.take_along_axis(x, last, axis=1) for x in (-falling, order))
  return (scaled > edge) | ((scaled == edge) & (ids <= edge_id))


def best(rounds, clock, given, *sides):
  """Milliseconds of each side's best round of side(*given), after one warm-up round."""
  elapsed = [[] for _ in sides]
  for _ in range(rounds + 1):
    for seconds, side in zip(elapsed, sides):
      begin = clock()
      jax.block_until_ready(side(*given))
      seconds.append(clock() - begin)
  return [1e3 * min(seconds[1:]) for seconds in elapsed]


def main():
  cli = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  cli.add_argument("--rows", type=int, default=16)
  cli.add_argument("--vocabulary", type=int, default=151_936)
  cli.add_argument("--rounds", type=int, default=3)
  cli.add_argument("--clock", choices=("wall", "cpu"), default="wall")
  args = cli.parse_args()
  rows, clock = args.rows, time.process_time if args.clock == "cpu" else time.perf_counter
  row = lambda value, dtype=jnp.float32: jnp.full(rows, value, dtype)
  draw_ = np.random.default_rng(0)
  logits = jnp.asarray(draw_.normal(size=(rows, args.vocabulary)) * 2.5, jnp.float32)
  numbers = jnp.asarray(draw_.random(rows), jnp.float32)
  draw, keep, sort = jax.jit(sampling.draw), jax.jit(sampling.keep), jax.jit(by_sorting)
  [plain] = best(args.rounds, clock, (logits, numbers, row(1.0), row(0, jnp.int32), row(1.0)), draw)
  print(f"{rows} rows of {args.vocabulary}, {args.clock} clock: a draw without filters {plain:.1f} ms")
  for top_k, top_p in ((0, 0.9), (50, 1.0), (50, 0.9)):
    given = logits, row(top_k, jnp.int32), row(top_p)
    differ = int((keep(*given) != sort(*given)).sum())
    ours, theirs = best(args.rounds, clock, given, keep, sort)
    print(
      f"top_k {top_k:2d} top_p {top_p}: {theirs / ours:.1f}x  ({ours:.0f} against {theirs:.0f} ms)  {differ} differ"
    )


if __name__ == "__main__":
  main()
